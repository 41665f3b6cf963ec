"""What a CDI description of NVIDIA's GPUs hands over to a container, and what is wrong with it."""

from __future__ import annotations

import re
from typing import Iterator

from doctor.finding import Finding, fail, warn
from host import limits
from host.machine import Machine

FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
SEVEN = re.compile(r"""cdiVersion["']?\s*:\s*["']?0\.7""")
_READS_SEVEN = (26, 1)
KIND = re.compile(r"""kind["']?\s*:\s*["']?nvidia\.com/gpu(?=["'\s,}]|$)""")
_NODE = re.compile(
    r"""["']?path["']?\s*:\s*["']?(/dev/nvidia-(?:uvm|caps)[\w/-]*)["']?,?\s*"""
    r"""(?:["']?\w+["']?\s*:\s*["']?[\w/-]+["']?,?\s*){0,4}?["']?major["']?\s*:\s*(\d+)"""
)


def _described(machine: Machine) -> Iterator[tuple[str, str]]:
    """All files of descriptions, and what they say."""
    for folder in FOLDERS:
        for name in machine.names(folder):
            yield f"{folder}/{name}", machine.read(f"{folder}/{name}") or ""


def in_force(machine: Machine) -> Iterator[tuple[str, str]]:
    """The same without those of /etc/cdi that one below /run describes anew: later folders win.

    https://github.com/cncf-tags/container-device-interface (SPEC.md, priority of directories)
    """
    every = list(_described(machine))
    again = any(
        KIND.search(text) is not None for file, text in every if not file.startswith(FOLDERS[0])
    )
    for file, text in every:
        if not (again and file.startswith(FOLDERS[0]) and KIND.search(text)):
            yield file, text


def of_gpus(machine: Machine) -> str | None:
    """The file of one of NVIDIA's GPUs."""
    found = (file for file, text in _described(machine) if "nvidia.com/gpu" in text)
    return next(found, None)


def other_number(machine: Machine) -> tuple[str, str, str, str] | None:
    """One that hands over a device by a number that the kernel gave to another one since: the file,
    the device, the number it has there, and its own.
    """
    devices = machine.read("/proc/devices") or ""
    given = re.findall(r"^\s*(\d+) (nvidia-(?:uvm|caps))$", devices, re.MULTILINE)
    own = {name: number for number, name in given}
    for file, text in _described(machine):
        for device, number in _NODE.findall(text):
            kind = "nvidia-uvm" if "uvm" in device else "nvidia-caps"
            if own.get(kind, number) != number:
                return file, device, number, own[kind]
    return None


def missing_device(machine: Machine) -> tuple[str, str] | None:
    """One that hands over a GPU's device which is not there any more: file and device."""
    there, screens = machine.names("/dev"), machine.names("/dev/dri")
    for file, text in in_force(machine):
        named = re.findall(
            r"""["']?path["']?\s*:\s*["']?/dev/(nvidia\d+|dri/\w+\d+)(?=["'\s,}\]]|$)""", text
        )
        gone = [name for name in named if name not in (*there, *(f"dri/{n}" for n in screens))]
        if not screens:
            gone = [name for name in gone if "/" not in name]
        if "nvidiactl" in there and gone:
            return file, f"/dev/{gone[0]}"
    return None


def too_new(machine: Machine) -> tuple[str, str] | None:
    """Why the engine cannot read a description, and what helps: 0.7.0 wants newer ones."""
    found = next((file for file, text in _described(machine) if SEVEN.search(text)), None)
    engine = machine.run("docker", "version", "--format", "{{.Server.Version}}").out
    told = re.match(r"(\d{1,4})\.(\d{1,4})", engine)
    if found is None or told is None or tuple(map(int, told.groups())) >= _READS_SEVEN:
        return None
    return (
        f"{found} is of version 0.7.0, which Docker reads from 26.1 on: this is {engine.strip()}",
        (
            "update Docker Engine; or sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
            " --feature-flag no-additional-gids-for-device-nodes"
        ),
    )


def missing_file(machine: Machine) -> tuple[str, str] | None:
    """One that hands over a file of the driver's which is not there any more, or calls a program
    that is not: both files.
    """
    for file, text in in_force(machine):
        for path in re.findall(
            r"""path["']?\s*:\s*["']?(/[^\s"',]+/nvidia-c(?:di-hook|tk))\b""", text
        ):
            beside = machine.names(path.rpartition("/")[0])
            if beside and path.rpartition("/")[2] not in beside:
                return file, path
        for path in re.findall(r"""hostPath["']?\s*:\s*["']?(/[^\s"',]+)""", text):
            folder, _, name = path.rpartition("/")
            beside = machine.names(folder)
            # Where the driver has others, so that the folder is known to be its.
            known = any(re.match(r"lib(nvidia|cuda)", other) for other in beside)
            if known and re.match("lib", name) and name not in beside:
                return file, path
    return None


def without_memory_device(machine: Machine) -> str | None:
    """The file of one that hands over GPUs, and not the device for their memory."""
    for file, text in _described(machine):
        whole = all(word in text for word in ("nvidia.com/gpu", "/dev/nvidiactl", "/dev/nvidia0"))
        if whole and not any(word in text for word in ("nvidia-uvm", "/dev/dxg")):
            return file
    return None


def unlisted(machine: Machine) -> Finding | None:
    """A description of the GPUs in a folder where podman is told not to look."""
    home = machine.environ.get("HOME", "/root")
    files = ("/usr/share", "/etc", f"{home}/.config")  # the last one that says it holds
    said = [machine.read(f"{file}/containers/containers.conf") or "" for file in files]
    told = re.findall(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", "\n".join(said), re.MULTILINE)
    found = [file for file, text in _described(machine) if "nvidia.com/gpu" in text]
    if not (machine.has("podman") and told and found):
        return None
    folders = re.findall(r'"([^"]+)"', told[-1])
    if any(file.rpartition("/")[0] in folders for file in found):
        return None
    own = found[-1].rpartition("/")[0]
    return fail(
        "toolkit",
        f"the GPUs are described in {found[-1]} (CDI), and podman looks in {', '.join(folders)}",
        "no container with GPUs starts: unresolvable CDI devices",
        f'in containers.conf, [engine]: cdi_spec_dirs = ["/etc/cdi", "{own}"];'
        f" or podman --cdi-spec-dir={own}",
    )


def denied(machine: Machine) -> Finding | None:
    """A description (CDI) that whoever trains may not read."""
    for folder in FOLDERS:
        for name in machine.names(folder):
            file = f"{folder}/{name}"
            if not name.endswith((".yaml", ".json")):
                continue
            if file in machine.run("find", "-L", file, "!", "-readable").out.split():
                return fail(
                    "toolkit",
                    f"you may not read {file} (CDI)",
                    "your containers do not start with GPUs: unresolvable CDI devices",
                    f"sudo chmod 644 {file}; a newer nvidia-container-toolkit writes it so",
                )
    return None


def stale(machine: Machine) -> Finding | None:
    """A description (CDI) of a driver that was there before."""
    found = missing_file(machine) or missing_device(machine) or _missing_socket(machine)
    if found is None:
        return _of_windows(machine) or _incomplete(machine)
    file, path = found
    return fail(
        "toolkit",
        f"{file} hands over {path}, which is not there",
        "no container with GPUs starts: the driver, or the toolkit, was changed since",
        f"sudo nvidia-ctk cdi generate --output={file}",
    )


def _missing_socket(machine: Machine) -> tuple[str, str] | None:
    """One that hands over the socket of a daemon which does not run: file and socket."""
    socket = "/run/nvidia-persistenced/socket"
    file = next((file for file, text in in_force(machine) if f"hostPath: {socket}" in text), None)
    if file is None or machine.exists(socket):
        return None
    state = machine.run("systemctl", "is-active", "nvidia-persistenced").out.strip()
    return (file, socket) if state in ("inactive", "failed") else None


def _incomplete(machine: Machine) -> Finding | None:
    """It was made when there were fewer GPUs."""
    texts = [(file, text) for file, text in in_force(machine) if KIND.search(text)]
    named = {name for _, text in texts for name in re.findall(r"/dev/(nvidia\d+)\b", text)}
    there = [name for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name)]
    new = sorted({*there} - named)
    if not named or not new or limits.in_container(machine.root):
        return None
    return warn(
        "toolkit",
        f"{texts[0][0]} does not have /dev/{new[0]}",
        "containers get the GPUs that were there when it was made",
        f"sudo nvidia-ctk cdi generate --output={texts[0][0]}",
    )


def _of_windows(machine: Machine) -> Finding | None:
    """Of two drivers that Windows has, the one that was there when a description was made."""
    store = "/usr/lib/wsl/drivers"
    drivers = [
        name
        for name in machine.names(store)
        if name.startswith("nv") and machine.exists(f"{store}/{name}/nvidia-smi")
    ]
    used = [name for name in drivers if _is_used(machine, f"{store}/{name}")]
    for file, text in _described(machine):
        named = [name for name in drivers if f"{store}/{name}/" in text]
        gone = {*re.findall(rf"{store}/(nv[^/]+)/", text)} - {*machine.names(store)}
        if used and gone and not named:
            named = sorted(gone)
        if named and used and not set(used) & set(named):
            return warn(
                "toolkit",
                f"{file} hands over {named[0]}, and Windows uses {used[0]}",
                "its driver was upgraded since: CUDA fails in containers",
                f"sudo nvidia-ctk cdi generate --output={file}   # after each upgrade",
            )
    return None


def _is_used(machine: Machine, driver: str) -> bool:
    """Whether WSL has its copy of a program from this one of Windows' drivers."""
    own = "/usr/lib/wsl/lib/nvidia-smi"
    return machine.run("cmp", "-s", own, f"{driver}/nvidia-smi").code == 0


def wrong(machine: Machine, way: str) -> Finding | None:
    """What is wrong with the descriptions (CDI) of what containers get."""
    outdated = stale(machine) if way == "cdi" else None
    if outdated is not None:
        return outdated
    lacking = without_memory_device(machine) if way == "cdi" else None
    if lacking is not None:
        return fail(
            "toolkit",
            f"{lacking} hands over GPUs, and not /dev/nvidia-uvm",
            "in containers nvidia-smi works, and CUDA does not start: it was made too early",
            "sudo nvidia-modprobe -u -c=0 && sudo nvidia-ctk cdi generate"
            " --output=/etc/cdi/nvidia.yaml",
        )
    other = other_number(machine)
    if other is not None:
        file, device, theirs, own = other
        return fail(
            "toolkit",
            f"{file} hands over {device} as device {theirs}, and it is {own} since this boot",
            "in containers nvidia-smi works, and CUDA does not start (999): numbers change",
            f"sudo nvidia-ctk cdi generate --output={file}; where it stays so, at each boot"
            " (nvidia-cdi-refresh)",
        )
    return None
