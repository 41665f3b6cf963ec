"""A recorded machine made real: its files in a folder, its programs as scripts that say the same.

A machine is a YAML or JSON file. What `python3 -m doctor --record` writes is one as it stands: home,
files, folders, links, programs, commands. Composed ones say less, and these words are unfolded:

    gpus: [[count, model, {field: value}], …]   rows of nvidia-smi, from gpus.yaml
    unknown: [field, …]     fields that this driver does not know
    gpus: [{field: value}, …]                   rows as a report shows them, with any field
    smi: [code, words]      what nvidia-smi says instead of rows; complaint: words before them
    smi: {before, after, err, code}             what it writes around rows, or instead of them
    smi_q, dmesg: text      what `nvidia-smi -q` and the kernel's log say
    cards: [{at, model, path, width, port, held}]   GPUs in sysfs; default: one each GPU
    cards: [{at, class, device, held, path, speed, width, max_speed, …, port_max_width}]   as reported
    docker: version         an engine that answers; toolkit: version, handover: nvidia | cdi
    df: {path: GB free, or [GB free, GB in all]}

`expect` maps each check that is neither ok nor skipped to [status, words of the finding].
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import nvidia_smi
import yaml

from doctor import pytorch
from host.followed import FOLLOWED
from host.machine import Answer, Machine

HERE = Path(__file__).parent
MACHINES = sorted(
    path for path in (HERE / "machines").iterdir() if path.suffix in (".yaml", ".json")
)


def load(path: Path) -> Any:
    """What a YAML file holds, read by libyaml: five hundred machines take seconds otherwise."""
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


_GPUS = load(HERE / "gpus.yaml")
_HOME = "/home/ada/lockstep"
_SINCE_535 = "clocks_event_reasons.active"
_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max open files            1048576              1048576              files
Max locked memory         8388608              8388608              bytes
"""


class _Told(Machine):
    """A machine whose programs are not started: what each of them would print is told.

    Most of the time that a thousand machines take is that of twenty processes each.
    """

    answers: dict[str, Answer]

    def _started(self, words: tuple[str, ...], seconds: float) -> Answer:
        if self.place(words[0]) is None or words[0] == "nvidia-smi":
            return super()._started(words, seconds)
        return self.answers.get(shlex.join(words), Answer(1, "", ""))


def build(recorded: dict[str, Any], folder: Path, *, told: bool = False) -> Machine:
    """The machine, below an empty folder; PATH names its programs and nothing else.

    Args:
        told: whether its programs' answers are told, and no process is started but nvidia-smi.
    """
    root, programs = folder / "root", folder / "bin"
    root.mkdir(parents=True)
    programs.mkdir()
    known = _unfold(recorded)
    made: set[Path] = set()
    for name, target in sorted(known["links"].items(), key=lambda link: len(link[0])):
        above, _, last = target.rpartition("/")
        # A module's dangles where it is not among the files, and what its folder is known not to hold.
        if not target.endswith(".ko") and last in known["folders"].get(above, [last]):
            _inside(root, target).mkdir(parents=True, exist_ok=True)
        link = _inside(root, name)
        _make(link.parent, made)
        if not link.exists():
            link.symlink_to(_inside(root, target))
    for name, names in known["folders"].items():
        for entry in ["", *names]:
            path = _inside(root, f"{name}/{entry}")
            if (
                not path.exists()
                and not path.is_symlink()
                and f"{name}/{entry}" not in known["files"]
            ):
                _make(path, made)
    for name, text in known["files"].items():
        path = _inside(root, name)
        _make(path.parent, made)
        if path.is_dir():
            path.rmdir()
            made.discard(path)
        path.write_text(text, encoding="utf-8")
    answers: dict[str, list[str]] = {name: [] for name in known["programs"]}
    for line, answer in known["commands"].items():
        program, *words = shlex.split(line)
        if answer["code"] == 127 or ("/" in program and program[0] != "/"):  # nobody asks
            continue
        out, err = (_printed(answer[stream]) for stream in ("out", "err"))
        sign = "*" if program.startswith("/") else shlex.quote(" ".join(words))
        case = f"{sign}) {out}; {err} >&2; exit {answer['code']};;"
        answers.setdefault(program, []).append(case)
    for program, cases in answers.items():
        place = programs / program
        if program.startswith("/"):  # one that PATH does not name
            place = _inside(root, program)
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                place.rmdir()
        _script(place, '#!/bin/sh\ncase "$*" in\n' + "\n".join(cases) + "\nesac\nexit 1\n")
    smi = known.get("smi")
    if smi:
        nvidia_smi.write(programs, **smi)
    environ = _Environ(known["environ"], PATH=str(programs))
    if not told:
        return Machine(root, environ, known["home"])
    machine = _Told(root, environ, known["home"])
    machine.answers = {
        shlex.join(shlex.split(line)): Answer(**answer)
        for line, answer in known["commands"].items()
        if answer["code"] != 127
    }
    return machine


class _Environ(dict[str, str]):
    """Variables, of which no other is asked for than a record would hold."""

    def get(self, name: str, otherwise: Any = None) -> Any:
        return dict.get(self, self._held(name), otherwise)

    def __getitem__(self, name: str) -> str:
        return dict.__getitem__(self, self._held(name))

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, self._held(name))

    def _held(self, name: Any) -> Any:
        assert name in FOLLOWED or name == "PATH", f"{name} is missing in FOLLOWED"
        return name


def _make(folder: Path, made: set[Path]) -> None:
    """Make a folder unless it was made before: most of a machine's files share a few."""
    if folder not in made:
        folder.mkdir(parents=True, exist_ok=True)
        made.add(folder)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _printed(text: str) -> str:
    return f"printf '%s' {shlex.quote(text)}" if text else ":"


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _unfold(recorded: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "home": recorded.get("home", _HOME), "environ": recorded.get("environ", {}),
        **{key: dict(recorded.get(key, {})) for key in ("files", "folders", "links", "commands")},
        "programs": list(recorded.get("programs", [])),
    }  # fmt: skip
    if "source" not in recorded:  # as it was recorded
        return known
    mounts = known["files"].get("/proc/self/mountinfo", "")
    for line in mounts.splitlines() if "/proc/mounts" not in known["files"] else ():
        place, _, rest = line.partition(" - ")
        kind, source, *_ = [*rest.split(), "", ""]
        text = f"{source} {place.split()[4]} {kind} rw 0 0\n"
        known["files"]["/proc/mounts"] = known["files"].get("/proc/mounts", "") + text
    for folder in ("/usr/bin", "/usr/sbin", "/opt/bin"):
        known["programs"] += known["folders"].get(folder, [])
    for name, text in {
        "/proc/self/status": f"Cpus_allowed_list:\t0-{recorded.get('cpus', 16) - 1}\n",
        "/proc/meminfo": f"MemTotal: {recorded.get('memory', 64) << 20} kB\n",
        "/proc/self/limits": _LIMITS,
        "/proc/sys/kernel/osrelease": "6.8.0-87-generic\n",
        f"{known['home']}/.venv/bin/python": "",
    }.items():
        if not (recorded.get("bare") and ".venv" in name):
            known["files"].setdefault(name, text)
    known["folders"].setdefault(f"{known['home']}/runs", [])
    known["folders"].setdefault(f"{known['home']}/.cache", [])
    for name in [n for n in known["folders"] if n.startswith("/usr/lib/modules/")]:
        known["folders"].setdefault(name.removeprefix("/usr"), known["folders"][name])  # one folder
    rows = _rows(recorded)
    said, around = recorded.get("smi"), {}
    if isinstance(said, dict):
        around, said = said, None
        if not rows:
            said = [around.get("code", 0), f"{around.get('before', '')}{around.get('err', '')}"]
    others = {"-q": [0, recorded["smi_q"], ""]} if "smi_q" in recorded else {}
    for line, answer in recorded.get("says", {}).items():
        if line.startswith("nvidia-smi "):
            others[line.split(" ", 1)[1]] = answer if isinstance(answer, list) else [0, answer, ""]
    apps = [
        {"gpu_uuid": rows[n]["uuid"], "pid": pid, "process_name": name, "used_memory": used}
        for n, pid, name, used in recorded.get("apps", [])
    ]
    if said and said[0] == 127:
        said = None
    elif rows or said:
        unknown = recorded.get("unknown", [])
        known["smi"] = {"rows": rows, "apps": apps, "said": said, "unknown": unknown}
        first = recorded.get("complaint", "")
        known["smi"] |= {
            "before": f"{around.get('before') or first}".rstrip("\n") + "\n" * bool(around or first),
            "after": around.get("after", ""), "complaint": around.get("err", ""),
            "code": around.get("code", 0), "others": others,
        }  # fmt: skip
    if any("Laptop GPU" in row.get("name", "") for row in rows):
        known["files"].setdefault("/sys/class/dmi/id/chassis_type", "10\n")
    for card in recorded.get("cards", [{"at": r["pci.bus_id"], "model": r["model"]} for r in rows]):
        _card(known, card)
    _says(known, "dmesg", recorded.get("dmesg", "[    0.000000] Linux version 6.8.0-87-generic\n"))
    _engine(known, recorded, rows)
    given = recorded.get("df", {})
    usual = [f"{known['home']}/runs", f"{known['home']}/.cache", "/var/lib/docker"]
    df = {"/dev/shm": [32, 32], **{path: _mounted(given, path) for path in usual}}
    for path, free in {**df, **given}.items():
        left, total = free if isinstance(free, list) else (free, 1000)
        row = f"/dev/nvme0n1p2 {int(total * 1e9 / 1024)} 1 {int(left * 1e9 / 1024)} 1% {path}"
        head = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        _says(known, f"df -kP {path}", f"{head}{row}\n")
    for line, out in {
        "date -u +%s": "1795257000\n", "id -u": "1000\n",
        "timedatectl show -p NTPSynchronized --value": "yes\n",
        **{f"test -w {known['home']}/{name}": "" for name in ("runs", ".cache")},
    }.items():  # fmt: skip
        _says(known, line, out)
    for line, answer in recorded.get("says", {}).items():
        if line.startswith("nvidia-smi "):
            continue
        code, out, err = answer if isinstance(answer, list) else (0, answer, "")
        _says(known, line, out, err, code)
        if line.startswith("python -c "):
            _says(known, line.replace("python", "python3", 1), out, err, code)
        if line.startswith("df -k /"):
            _says(known, line.replace("-k", "-kP"), out, err, code)
    _torch(known)
    return known


def _torch(known: dict[str, Any]) -> None:
    """What the doctor asks of torch at once, of what a report shows line by line."""

    def answer(what: str) -> dict[str, Any]:
        line = shlex.join(["python", "-c", f"import torch; print({what})"])
        no: dict[str, Any] = {"code": 1, "out": "", "err": ""}
        return known["commands"].get(line, known["commands"].get(f"python3{line[6:]}", no))

    cuda, starts = answer("torch.version.cuda"), answer("torch.cuda.is_available()")
    of_torch = [a for line, a in known["commands"].items() if "import torch" in line]
    failed = re.compile(
        r"^(?:(Import|ModuleNotFound|Attribute|OS|Key|Value|[\w.]*Digestmod)Error\b"
        r"|RuntimeError: cuDNN version)",
        re.MULTILINE,
    )
    broken = [a for a in of_torch if a["code"] > 128 or failed.search(a["err"])]
    other = [a for a in broken if "RuntimeError: cuDNN version" in a["err"]]  # as it is asked
    if other:
        line = shlex.join(["python", "-c", pytorch.ASKED])
        _says(known, line, "", other[0]["err"], other[0]["code"])
    if not cuda["out"].strip():
        for program in (pytorch.ASKED, pytorch.STARTS) if broken else ():
            line = shlex.join(["python", "-c", program])
            _says(known, line, "", broken[0]["err"], broken[0]["code"])
        if not broken and starts["out"].strip():
            line = shlex.join(["python", "-c", pytorch.STARTS])
            _says(known, line, f"torch: ? {starts['out'].strip()}\n", starts["err"])
        return
    lists = answer("torch.cuda.get_arch_list()")["out"] or next(
        (a["err"] for a in of_torch if "supports CUDA capabilities" in a["err"]), ""
    )
    built = re.findall(r"(?:sm|compute)_\d+[af]?", lists.rpartition("supports CUDA capab")[2])
    version = answer("torch.__version__")["out"].strip() or "2.7.1"
    of = {"None": "CPU"}.get(cuda["out"].strip(), cuda["out"].strip())
    cudnn = f"cudnn_{answer('torch.backends.cudnn.version()')['out'].strip() or None}"
    file, err = answer("torch.__file__")["out"].strip(), answer("torch.__version__")["err"]
    at = [f"at_{file}"] if file else []
    told = {
        pytorch.ASKED: (" ".join([version, of, *built, cudnn, *at]), err),
        pytorch.STARTS: (f"{cuda['out'].strip()} {starts['out'].strip() or '?'}", starts["err"]),
    }
    for program, (out, err) in told.items():
        line = shlex.join(["python", "-c", program])
        if line not in known["commands"]:
            _says(known, line, f"torch: {out}\n", err)


def _mounted(given: dict[str, Any], path: str) -> Any:
    """The room of the file system that a folder is on, as far as a report shows it."""
    # Where the image is the root, /home leads to /var/home.
    if "/home" not in given and given.get("/", [1])[0] == 0 and "/var" in given:
        path = f"/var{path}" if path.startswith("/home") else path
    above = [str(parent) for parent in Path(path).parents if str(parent) in given]
    return given[above[0]] if above else 800


def _says(known: dict[str, Any], line: str, out: str, err: str = "", code: int = 0) -> None:
    known["commands"][shlex.join(shlex.split(line))] = {"code": code, "out": out, "err": err}


def _rows(recorded: dict[str, Any]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for entry in recorded.get("gpus", []):
        as_reported = isinstance(entry, dict)
        count, model, *changes = (1, "reported", entry) if as_reported else entry
        for _ in range(count):
            n = len(rows)
            own = {
                "index": n, "uuid": f"GPU-{n}f1a2b3c-0000-4d5e-8f90-a1b2c3d4e5f6",
                "pci.bus_id": f"00000000:{n + 1:02X}:00.0", "driver_version": recorded.get("driver", "[N/A]"),
            }  # fmt: skip
            row = {
                **_GPUS["every"],
                **_GPUS.get(model, {}),
                **own,
                **(changes[0] if changes else {}),
            }
            if _SINCE_535 not in row and _float(str(row["driver_version"])) >= 535:
                row[_SINCE_535] = row["clocks_throttle_reasons.active"]  # the same
            rows.append({"model": model, **{key: str(value) for key, value in row.items()}})
    return rows


def _float(version: str) -> float:
    """The first two numbers of a driver's version."""
    return float((re.match(r"\d+\.\d+", version) or ["0"])[0])


def _card(known: dict[str, Any], card: dict[str, Any]) -> None:
    """A GPU's folder in sysfs, and the port above it."""
    model = {**_GPUS["every"], **_GPUS.get(card.get("model", ""), {}), **card}
    domain, rest = model["at"].lower().split(":", 1)
    address = f"{domain[-4:]}:{rest}"
    bus = int(address[5:7], 16)
    path = model.get("path", f"/sys/devices/pci0000:00/0000:00:{bus:02x}.0/{address}")
    known["links"][f"/sys/bus/pci/devices/{address}"] = path
    driver = model.get("held", "nvidia")
    if driver:
        known["links"][f"{path}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    speed, width = model["link"]
    port_speed, port_width = model.get("port", [speed, width])
    above = path.rsplit("/", 1)[0]
    files = {
        f"{path}/vendor": "0x10de", f"{path}/class": model["class"],
        f"{path}/device": model.get("device", "0x2204"),
        f"{path}/max_link_speed": model.get("max_speed", f"{speed} GT/s PCIe"),
        f"{path}/max_link_width": model.get("max_width", width),
        # Idle, as cards are when nothing runs.
        f"{path}/current_link_speed": model.get("speed", "2.5 GT/s PCIe"),
        f"{path}/current_link_width": model.get("width", min(width, port_width)),
        f"{above}/max_link_speed": model.get("port_max_speed", f"{port_speed} GT/s PCIe"),
        f"{above}/max_link_width": model.get("port_max_width", port_width),
    }  # fmt: skip
    for name, text in files.items():
        known["files"].setdefault(name, f"{text}\n")
    listed = known["folders"].setdefault("/sys/bus/pci/devices", [])
    listed.append(address)


def _engine(known: dict[str, Any], recorded: dict[str, Any], rows: list[dict[str, str]]) -> None:
    version = recorded.get("docker")
    reported = recorded.get("says", {}).get("docker info")
    if isinstance(reported, list) and reported[0] == 127:
        return
    if reported is not None:
        _reported_engine(known, recorded, reported if isinstance(reported, str) else reported[1])
        return
    if version is None:
        return
    way = recorded.get("handover", "nvidia" if rows else None)
    runtimes = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
    if way == "nvidia":
        runtimes["nvidia"] = {"path": "nvidia-container-runtime"}
    _says(known, "docker version --format {{.Server.Version}}", f"{version}\n")
    _says(known, "docker compose version --short", "2.33.1\n")
    _says(known, "docker info --format '{{json .Runtimes}}'", json.dumps(runtimes) + "\n")
    _says(known, "docker info --format '{{json .CDISpecDirs}}'", '["/etc/cdi","/var/run/cdi"]\n')
    _says(known, "docker info --format '{{.DockerRootDir}}'", "/var/lib/docker\n")
    if way == "cdi":
        spec = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"
        known["files"].setdefault("/etc/cdi/nvidia.yaml", spec)
    toolkit = recorded.get("toolkit", "1.18.1" if way else None)
    if toolkit:
        said = f"NVIDIA Container Toolkit CLI version {toolkit}\ncommit: 3f4a1b2\n"
        _says(known, "nvidia-ctk --version", said)
    if recorded.get("image", True):
        lines = ("cuda13", "cuda12")
        for line in lines:
            words = f"docker image inspect --format '{{{{.Id}}}}' lockstep:{line}"
            _says(known, words, "sha256:1f2e3d\n")
            given = "--gpus all" if way == "nvidia" else "--device nvidia.com/gpu=all"
            run = (
                f"docker run --rm --network=none {given} --entrypoint nvidia-smi lockstep:{line} -L"
            )
            listed = "".join(f"GPU {r['index']}: {r['name']} (UUID: {r['uuid']})\n" for r in rows)
            _says(known, run, listed)


def _reported_engine(known: dict[str, Any], recorded: dict[str, Any], info: str) -> None:
    """What `docker info` says in a report, as answers to the questions that are asked of it."""
    found = dict(re.findall(r"^ *([A-Z][\w ]+): (.*)$", info, re.MULTILINE))
    code = 0 if "Server Version" in found else 1
    dirs = re.search(r"CDI spec directories:\n((?: +/.*\n)+)", info)
    options = re.search(r"Security Options:\n((?: +.*\n)+?) Kernel", info)
    answers = {
        "{{json .Runtimes}}": json.dumps({name: {} for name in found.get("Runtimes", "").split()}),
        "{{json .CDISpecDirs}}": json.dumps(dirs.group(1).split() if dirs else None),
        "{{json .DiscoveredDevices}}": json.dumps(
            [
                {"Source": "cdi", "ID": name}
                for name in re.findall(r"^ +cdi: (\S+)$", info, re.MULTILINE)
            ]
        ),
        "{{.DockerRootDir}}": found.get("Docker Root Dir", ""),
        "{{.Driver}}": found.get("Storage Driver", ""),
        "{{.DriverStatus}}": " ".join(re.findall(r"driver-type: (\S+)", info)),
        "{{.OperatingSystem}}": found.get("Operating System", ""),
        "{{.SecurityOptions}}": " ".join(options.group(1).split()) if options else "",
    }
    if code == 0:
        version = found["Server Version"]
        _says(known, "docker version --format {{.Server.Version}}", f"{version}\n")
        if int(version.split(".")[0]) >= 20:
            _says(known, "docker compose version --short", "2.33.1\n")
    for field, said in answers.items():
        _says(known, f"docker info --format '{field}'", f"{said}\n", "", code)
    answers_run = recorded["says"].get("docker run --rm --gpus all ubuntu nvidia-smi -L")
    if isinstance(answers_run, str):
        answers_run = [0, answers_run, ""]
    for line in ("cuda13", "cuda12"):
        words = f"docker image inspect --format '{{{{.Id}}}}' lockstep:{line}"
        _says(known, words, "sha256:1f2e3d\n", "", int(code or not recorded.get("image", True)))
        for given in ("--gpus all", "--device nvidia.com/gpu=all"):
            run = (
                f"docker run --rm --network=none {given} --entrypoint nvidia-smi lockstep:{line} -L"
            )
            if answers_run:
                _says(known, run, answers_run[1], answers_run[2], answers_run[0])
