"""Which CUDA line, GPUs and engine for which host: a stand-in for nvidia-smi answers as drivers do."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nvidia_smi
import pytest
import yaml

from container import clean, compose, overlay, paths, pin, twice
from host import INSIDE, cuda, docker, image, nvidia, selection, settings
from host import lines as table
from host.errors import HostError, LockstepError, UsageError

ROOT = Path(__file__).parent.parent

A100, V100, H100 = (
    ("NVIDIA A100-SXM4-80GB", "8.0"),
    ("Tesla V100-SXM2-32GB", "7.0"),
    ("NVIDIA H100 80GB HBM3", "9.0"),
)
RTX, GTX, BLACKWELL = (
    ("NVIDIA GeForce RTX 4090", "8.9"),
    ("NVIDIA GeForce GTX 1080 Ti", "6.1"),
    ("NVIDIA B300 SXM6 AC", "10.3"),
)
T4, FUTURE = ("Tesla T4", "7.5"), ("NVIDIA R100", "14.0")
V535, V550, V580, V595 = "535.183.01", "550.54.15", "580.95.05", "595.45.04"
HIDE = "hide it with CUDA_VISIBLE_DEVICES, or train on the CPU with CPUS=1"

# driver, GPUs, CUDA= → the line, or what is said
HOSTS = {
    "535 A100": (V535, [A100], "auto", "cuda12"),
    "550 A100": (V550, [A100] * 4, "auto", "cuda12"),
    "550 GeForce": (V550, [RTX], "auto", "cuda12"),
    "580 A100": (V580, [A100], "auto", "cuda13"),
    "580 GeForce": (V580, [RTX] * 2, "auto", "cuda13"),
    "595 H100": (V595, [H100] * 8, "auto", "cuda13"),
    "580 V100": (V580, [V100], "auto", "cuda12"),
    "535 V100": (V535, [V100], "auto", "cuda12"),
    "580 V100 and H100": (V580, [V100, H100], "auto", "cuda12"),
    "595 B300": (V595, [BLACKWELL], "auto", "cuda13"),
    "580 T4": (V580, [T4], "auto", "cuda13"),
    "580 A100, cuda12 wanted": (V580, [A100], "cuda12", "cuda12"),
    "none": (None, [], "auto", "cuda13"),
    "none, cuda12 wanted": (None, [], "cuda12", "cuda12"),
    "550 A100, cuda13 wanted": (V550, [A100], "cuda13", "error: driver 550.54.15 is older than 580, which cuda13 needs → use CUDA=cuda12, or upgrade the driver to 580 or newer"),
    "580 V100, cuda13 wanted": (V580, [V100], "cuda13", "error: cuda13 has no kernels for the Tesla V100-SXM2-32GB (compute capability 7.0) → use CUDA=cuda12"),
    "470 A100": ("470.256.02", [A100], "auto", "error: driver 470.256.02 is older than 525, which cuda12 needs → upgrade the driver to 525 or newer"),
    "535 Pascal": (V535, [GTX], "auto", f"error: cuda12 has no kernels for the NVIDIA GeForce GTX 1080 Ti (compute capability 6.1) → {HIDE}; torch 2.14 for CUDA 12.6 was the last for Maxwell and Pascal"),
    "580 A100 and Pascal": (V580, [A100, GTX], "auto", f"error: cuda12 has no kernels for the NVIDIA GeForce GTX 1080 Ti (compute capability 6.1) → {HIDE}; torch 2.14 for CUDA 12.6 was the last for Maxwell and Pascal"),
    "595 unknown": (V595, [FUTURE], "auto", f"error: cuda12 has no kernels for the NVIDIA R100 (compute capability 14.0) → {HIDE}; a newer torch may know it, and requirements/ is where it stands"),
    "no such line": (V580, [A100], "cuda11", "error: CUDA=cuda11 is no CUDA line → use CUDA=auto or one of cuda13, cuda12"),
}  # fmt: skip


def smi(folder: Path, version: str | None, gpus: list[tuple[str, str]]) -> Path:
    """An nvidia-smi in `folder` that answers for these GPUs, or that there is no driver."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "index": n, "uuid": f"GPU-{n}f1a2b3c-0000-4d5e-8f90-a1b2c3d4e5f6", "name": name,
            "pci.bus_id": f"00000000:{n + 1:02X}:00.0", "driver_version": version,
            "compute_cap": capability, "memory.total": 81920, "memory.used": 0,
        }
        for n, (name, capability) in enumerate(gpus)
    ]  # fmt: skip
    none = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    # compute_cap came with driver 510.
    old = version is not None and int(version.split(".")[0]) < 510
    nvidia_smi.write(
        folder, rows, said=None if version else [9, none], unknown=["compute_cap"] if old else None
    )
    return folder


def make_says(path: Path, *words: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", **(environ or {})}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("host", HOSTS)
def test_the_newest_line_that_fits_or_a_refusal_with_the_way_out(host, tmp_path) -> None:
    version, gpus, wanted, expected = HOSTS[host]
    code, said = make_says(
        smi(tmp_path / "bin", version, gpus), sys.executable, "-m", "host.cuda",
        environ={"CUDA": wanted, "GPUS": "", "CPUS": "", "ACCELERATE": ""},
    )  # fmt: skip
    assert said == expected
    assert code == (0 if expected.startswith("cuda") else 2 if "no CUDA line" in said else 6)


@pytest.mark.parametrize("gpus", ["1,3", "free", "free:2"])
def test_a_choice_of_gpus_does_not_hide_why_none_fits(gpus, tmp_path) -> None:
    code, said = make_says(
        smi(tmp_path / "bin", "470.256.02", [A100] * 4), sys.executable, "-m", "host.cuda",
        environ={"CUDA": "auto", "GPUS": gpus, "CPUS": "", "ACCELERATE": ""},
    )  # fmt: skip
    assert said.startswith("error: driver 470.256.02 is older than 525")
    assert code == 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["CPUS=0"], "error: CPUS=0 is no number of processes → give a number from 1"),
        (["GPUS=1", "CPUS=1"], "error: GPUS and CPUS are both set → set one of them"),
        (["GPUS=free", "CPUS=1"], "error: GPUS and CPUS are both set → set one of them"),
        (["ACCELERATE=nope"], "error: there is no hardware config configs/accelerate/nope.yaml"),
        (["GPUS=two"], "error: GPUS=two is no choice of GPUS"),
    ],
)
def test_variables_without_sense_are_one_line_before_anything_runs(words, says, tmp_path) -> None:
    code, said = make_says(lent(tmp_path / "bin"), "make", "train", *words, "ENGINE=local")
    makes = [line for line in said.splitlines() if line.startswith("make")]
    lines = [line for line in said.splitlines() if line not in makes]
    assert code == 2
    assert len(lines) == 1
    assert lines[0].lower().startswith(says.lower())
    assert makes[-1].endswith("Error 2")  # the true code


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("GPU=2", "no variable GPU; did you mean GPUS?"),
        ("config=configs/cifar10.yaml", "no variable config; did you mean CONFIG?"),
        ("NCCL_DEBUG=INFO", "stands before make: NCCL_DEBUG=… make"),
        ("LOGDIR=logs", 'LOGDIR → see `make help`; knobs go into ARGS (ARGS="--lanes 4").  Stop'),
        ("it's=1", "no variable it's → see `make help`"),
        ("EPOCHS=3", 'no variable EPOCHS; it is a knob: ARGS="--epochs …"'),
        ("lr=0.1", 'no variable lr; it is a knob: ARGS="--optim.lr …"'),
        ("MODEL=resnet18", 'no variable MODEL; it is a knob: ARGS="--model.name …"'),
        ("BATCH_SIZE=64", 'no variable BATCH_SIZE; it is a knob: ARGS="--batch_size …"'),
        ("data.size=32", 'no variable data.size; it is a knob: ARGS="--data.size …"'),
    ],
)
def test_a_variable_that_make_does_not_know_is_an_error(word, says, tmp_path) -> None:
    for target in ("train", "help"):
        code, said = make_says(tmp_path, "make", target, word)
        assert code == 2
        assert said.count("\n") == 0
        assert says in said


def test_a_target_that_takes_no_words_refuses_them(tmp_path) -> None:
    for goal, word in (
        ("tensorboard", "ARGS=--port 1"), ("tensorboard", "RUN=runs/a"), ("lint", "ARGS=a,b (c)"),
        ("knobs", "CONFIG=configs/cifar10.yaml"),
    ):  # fmt: skip
        code, said = make_says(tmp_path, "make", goal, word)
        assert code == 2
        assert f"{word.split('=')[0]} does nothing with make {goal} → take it away" in said
    assert make_says(tmp_path, "make", "-n", "clean", "ARGS=")[0] == 0
    assert make_says(tmp_path, "make", "-n", "ready", "ARGS=-k own")[0] == 0  # test-container's


def test_a_knob_that_stands_before_make_is_warned_of(tmp_path) -> None:
    for goal, told, warned in (
        ("train", ["SEED=3", "EPOCHS=2"], True), ("train", [], False), ("runs", ["SEED=3"], False)
    ):  # fmt: skip
        _, said = make_says(tmp_path, "env", *told, "make", "-n", goal)
        assert ("warning: nothing here reads EPOCHS SEED, " in said) is warned
        assert ("nothing here reads" in said) is warned


def test_make_knows_what_compose_asks_the_user(tmp_path) -> None:
    ours = {"REVISION", "LOCK_SHA256", "TORCH", "INPUTS", "BASE_NAME", "CHECKOUT", "GPU_IDS"}
    ours |= {"UID", "GID"}  # whoever calls make
    ours |= {"NETWORK"}  # NODES decides it
    files = [path.read_text() for path in ROOT.glob("docker-compose*.yml")]
    names = {name for text in files for name in re.findall(r"\$\{([A-Z_0-9]+)", text)} - ours
    assert {"SHM_SIZE", "DATA"} <= names
    code, said = make_says(
        tmp_path, "make", "help", *(f"{name}=1" for name in sorted(names - {"CUDA"}))
    )
    assert code == 0, said


def test_gpus_are_of_no_concern_on_the_cpu_or_when_they_are_hidden(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{smi(tmp_path / 'bin', V580, [GTX, A100])}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda.fitting_line({"CPUS": "2"}, cuda.look()).name == "cuda13"
    with pytest.raises(HostError):
        cuda.fitting_line({}, cuda.look())
    for shown in ("1", "GPU-1f1a2b3c", " 1 , 7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        host = cuda.look()
        assert host is not None
        assert [gpu.name for gpu in host.gpus] == [A100[0]]
        assert cuda.fitting_line({}, host).name == "cuda13"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7f3a")
    host = cuda.look()
    assert host is not None
    assert [gpu.index for gpu in host.gpus] == ["MIG-7f3a"]


def test_what_trains_nowhere_is_refused_nowhere(tmp_path, monkeypatch) -> None:
    """An image for a cluster may be built, and tests run, on a machine that could not train."""
    monkeypatch.setenv("PATH", f"{smi(tmp_path / 'bin', V550, [GTX])}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda.fitting_line({"CUDA": "cuda13"}, cuda.look(), any_host=True).name == "cuda13"
    assert cuda.fitting_line({}, cuda.look(), any_host=True).name == "cuda13"
    assert not cuda.fits(table.lines()[0], cuda.look())  # and it gets no GPU there


def test_the_table_is_the_locks() -> None:
    """Each row has its lock, and its torch's own word for CUDA."""
    names = [line.name for line in table.lines()]
    assert names == sorted(names, reverse=True)
    assert {path.name for path in (ROOT / "requirements").glob("cuda*.txt")} == {
        f"{name}.txt" for name in names
    }
    for line in table.lines():
        major = line.name.removeprefix("cuda")
        assert re.search(
            rf"^nvidia-[a-z-]+-cu{major}==|cuda-toolkit.*=={major}\.",
            line.lock.read_text(),
            re.MULTILINE,
        )
        assert f":{major}." in line.image
        assert line.capabilities


def test_base_images_stand_in_the_table_alone() -> None:
    files = subprocess.run(
        ["git", "grep", "-l", "nvidia/cuda:"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(files.stdout.split()) <= {*("Dockerfile", "docs/EXTENDING.md", "tests/test_host.py")}


def host(*gpus: tuple[str, str]) -> cuda.Driver:
    listed = [
        nvidia.Gpu({"index": str(n), "uuid": f"GPU-{n}", "name": name, "compute_cap": text})
        for n, (name, text) in enumerate(gpus)
    ]
    return cuda.Driver(V580, listed)


# variables, GPUs here, how the engine hands them over → Compose files, variables
GPUS = {
    "default": ({}, 2, "nvidia", ["docker-compose.gpu.yml"], {}),
    "1": ({"GPUS": "1"}, 4, "nvidia", ["docker-compose.gpu.yml"], {}),
    "4": ({"GPUS": "4"}, 4, "nvidia", ["docker-compose.gpu.yml"], {}),
    "all": ({"GPUS": "all"}, 2, "nvidia", ["docker-compose.gpu.yml"], {}),
    "0": ({"GPUS": "0"}, 2, "nvidia", [], {}),
    "CPUS": ({"CPUS": "2"}, 2, "nvidia", [], {}),
    "a config for the CPU": ({"ACCELERATE": "multi_cpu"}, 2, "nvidia", [], {}),
    "ids": ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, "nvidia", ["docker-compose.gpu-ids.yml"], {"GPU_IDS": "0,1"}),
    "one of the ids": ({"GPUS": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, 2, "nvidia", ["docker-compose.gpu-ids.yml"], {"GPU_IDS": "0"}),
    "a job's": ({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1"}, 2, "nvidia", ["docker-compose.gpu-ids.yml"], {"GPU_IDS": "GPU-0,GPU-1"}),
    "one of a job's": ({"SLURM_JOB_ID": "7", "GPUS": "1"}, 2, "nvidia", ["docker-compose.gpu-ids.yml"], {"GPU_IDS": "GPU-0"}),
    "cdi": ({"GPUS": "1"}, 2, "cdi", ["docker-compose.cdi.yml"], {"CUDA_VISIBLE_DEVICES": "GPU-0", "CDI_GPU": "all"}),
    "a part of a GPU": ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 1, "nvidia", ["docker-compose.gpu-ids.yml"], {"GPU_IDS": "0"}),
    "none here": ({"CUDA_VISIBLE_DEVICES": ""}, 0, "nvidia", [], {}),
    "all hidden": ({"CUDA_VISIBLE_DEVICES": "7"}, 0, "nvidia", [], {}),
    "no toolkit, nothing asked": ({}, 2, None, [], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", GPUS)
def test_gpus_asked_for_become_compose_files(case) -> None:
    environ, count, handover, files, extra = GPUS[case]
    got, variables, said = overlay.choose(environ, host(*[A100] * count), handover)
    assert (got, variables) == (files, extra)
    assert bool(said) == (case in ("no toolkit, nothing asked", "all hidden"))
    assert "NVIDIA Container Toolkit" in said or "hides all GPUs" in said or not said


@pytest.mark.parametrize(
    ("environ", "count", "handover", "says"),
    [
        ({"GPUS": "4"}, 2, "nvidia", "error: GPUS=4, and 2 GPUs can be seen here → use GPUS=2"),
        ({"GPUS": "1"}, 0, None, "error: GPUS=1, and no GPUs can be seen here → use CPUS=1"),
        ({"GPUS": "all"}, 0, None, "error: GPUS=all, and no GPUs can be seen here → use CPUS=1"),
        ({"GPUS": "some"}, 2, "nvidia", "error: GPUS=some is no number of processes"),
        ({"GPUS": "1"}, 1, None, "error: 1 GPU is here, and Docker has no NVIDIA Container Toolkit → install it"),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_had(environ, count, handover, says) -> None:
    with pytest.raises(LockstepError, match=re.escape(says.replace("error: ", ""))):
        overlay.choose(environ, host(*[A100] * count), handover)


@pytest.mark.skipif(INSIDE.exists(), reason="inside an image there is nothing to choose")
def test_engines_that_cannot_be_used(tmp_path) -> None:
    """auto falls back and says so in one line; docker refuses with the way out."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("sh", "env"):
        (bare / name).symlink_to(str(shutil.which(name)))
    python = sys.executable

    def ask(wanted: str, docker: str | None) -> tuple[int, str]:
        if docker is not None:
            (bare / "docker").write_text(f"#!/bin/sh\n{docker}\n")
            (bare / "docker").chmod(0o755)
        done = subprocess.run(
            [python, "-m", "host.docker", wanted], cwd=ROOT, env={"PATH": str(bare)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, (done.stderr + done.stdout).strip()

    assert ask("local", None) == (0, "local")
    assert ask("auto", None) == (
        0,
        "engine: local environment (there is no Docker on this machine)\nlocal",
    )
    assert ask("docker", None)[0] == 6
    assert ask("podman", None) == (
        2,
        "error: ENGINE=podman is no engine → use auto, docker or local",
    )
    denied = (
        "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
    )
    # The cure is another in a container, which the machine may be; tests/doctor/machines has both.
    assert "this user may not use Docker → " in ask("docker", denied)[1]
    assert ask("auto", denied)[1].startswith("engine: local environment (this user may not")
    down = "echo 'Cannot connect to the Docker daemon. Is the docker daemon running?' >&2; exit 1"
    assert "no Docker engine answers → `sudo systemctl start docker`" in ask("docker", down)[1]
    old = 'case "$1" in version) echo 24.0.1 ;; compose) echo 2.20.3 ;; esac'
    assert "Docker Compose is 2.20.3, and 2.24 is needed" in ask("docker", old)[1]
    without = 'case "$1" in version) echo 24.0.1 ;; *) exit 1 ;; esac'
    assert "Docker Compose is missing" in ask("docker", without)[1]
    good = 'case "$1" in version) echo 28.0.1 ;; compose) echo v2.33.1 ;; esac'
    assert ask("auto", good) == (0, "engine: Docker 28.0.1\ndocker")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["fit", "--config", "/etc/digits.yaml"], "configs"),
        (["fit", "--config", "configs/../../x.yaml"], "configs"),
        (["fit", "--config", "configs/digits.yaml", "--run", "/tmp/mine"], "runs"),
        (["fit", "--run=elsewhere/mine"], "runs"),
        (["fit", "--resume", "old/run"], "runs"),
        (["reproduce", "old/run"], "runs"),
        (["compare", "old/run", "runs/new"], "runs"),
        (["fit", "--data.root", "/mnt/pictures"], "DATA=DIR"),
        (["fit", "--model.weights", "/tmp/net.safetensors"], "runs"),
        (["predict", "--run", "/tmp/mine", "data/new"], "runs"),
        (["predict", "--csv", "/mnt/new"], "DATA=DIR"),
        (["predict", "--top", "3", "new/*.png"], "DATA=DIR"),
        (["predict", "data/new", "--show", "new.png"], "runs"),
    ],
)
def test_paths_that_a_container_would_not_see_are_refused(words, folder) -> None:
    with pytest.raises(LockstepError, match=f"is outside what the container sees.*{folder}"):
        paths.check(words)


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--config", "./configs/digits.yaml", "--run", "runs/a", "--resume", "--data.root",
         "data/pictures", "--optim.lr", "0.1", "--model.weights", "owner/net"],
        ["fit", "--model.weights", "runs/net.safetensors"],
        ["predict", "--run", "runs/a", "--top", "3", "--csv", "data/new", "-"],
        ["predict", "data/*.png", "--show=runs/a.png"],
        ["runs", "digits", "--sort", "best"],
        ["compare", "runs/a", "runs/b"],
    ],
)  # fmt: skip
def test_paths_that_a_container_sees_pass(words) -> None:
    paths.check(words)


def test_a_picture_from_the_root_is_named_as_a_container_sees_it() -> None:
    with pytest.raises(LockstepError, match=r"named from the root.* → say data/new"):
        paths.check(["predict", str(ROOT / "data" / "new")])


@pytest.mark.parametrize(
    ("flag", "path"), [("--data.root", "data/mine"), ("--model.weights", "runs/net.safetensors")]
)
def test_a_path_from_the_root_to_what_a_container_sees_is_named_as_it_sees_it(flag, path) -> None:
    with pytest.raises(LockstepError, match=f"named from the root.* → say {flag} {path}"):
        paths.check(["fit", flag, str(ROOT / path)])


def test_a_line_without_its_lock_says_how_to_make_it(tmp_path, monkeypatch) -> None:
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    text = (ROOT / "Dockerfile").read_text()
    row = re.search(r"^FROM [^\n]+ AS cuda13\nLABEL [^\n]+\n", text, re.MULTILINE)[0]
    (tmp_path / "Dockerfile").write_text(row.replace("cuda13", "cuda14") + text)
    monkeypatch.setattr("host.image.HOME", tmp_path)
    monkeypatch.setattr("host.lines.HOME", tmp_path)
    problem = "there is no lock requirements/cuda14.txt → make it: make lock CUDA=cuda13"
    with pytest.raises(UsageError, match=problem):
        image.labels(table.lines()[0], "dev", "")
    done = subprocess.run(
        ["requirements/install.sh", "cuda14"], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (6, f"error: {problem}\n")


def test_an_edit_of_the_code_needs_no_build_and_one_of_the_lock_does(tmp_path, monkeypatch) -> None:
    for name in ("Dockerfile", ".dockerignore", "requirements", "container"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    monkeypatch.setattr("host.image.HOME", tmp_path)
    monkeypatch.setattr("host.lines.HOME", tmp_path)

    def inputs(service: str = "train", base: str = "") -> str:
        return image.labels(table.lines()[0], service, base)["INPUTS"]

    before, dev = inputs(), inputs("dev")
    assert inputs("train", "mirror/cuda:13") != before
    dated = image.labels(table.lines()[0], "train", "", snapshot="20261101T000000Z")["INPUTS"]
    assert dated != before
    (tmp_path / "train.py").write_text("")
    assert inputs() == before
    (tmp_path / "requirements" / "dev.txt").write_text("")
    assert inputs() == before
    assert inputs("dev") != dev
    (tmp_path / "container" / "image" / "entrypoint").write_text("")
    changed = inputs()
    assert changed != before
    (tmp_path / "requirements" / "cuda13.txt").write_text("torch==1\n")
    assert inputs() != changed


def test_services_are_confined() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert set(services) == {"train", "evaluate", "predict", "tensorboard", "dev"}
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["init"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert services["tensorboard"]["ports"][0].startswith("127.0.0.1:")


def test_what_a_build_may_see_is_listed_by_name() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line for line in lines if line.startswith("!")} == {
        "!LICENSE", "!pyproject.toml", "!requirements/*.txt", "!configs/**/*.yaml",
        "!configs/schema.json", "!container/image/*", "!train/**/*.py", "!doctor/**/*.py",
        "!host/**/*.py", "!train/**/*.html", "!train/**/*.css", "!train/**/*.md",
    }  # fmt: skip


def test_inside_an_image_its_environment_is_the_engine(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("host.docker.INSIDE", tmp_path)
    assert docker.choose("auto") == ("local", "")


def test_settings_come_from_the_environment_and_else_from_the_env_file(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("host.settings.HOME", tmp_path)
    (tmp_path / ".env").write_text("# mine\nDATA='/mnt/pictures'\nCUDA=cuda12\nHF_TOKEN=secret\n")
    monkeypatch.setenv("CUDA", "cuda13")
    monkeypatch.delenv("DATA", raising=False)
    found = settings.read()
    assert (found["DATA"], found["CUDA"]) == ("/mnt/pictures", "cuda13")
    assert "HF_TOKEN" not in found  # the container's, not ours
    (tmp_path / ".env").write_text("DATA=here\nHF_TOKEN=${SECRET}\n")
    with pytest.raises(UsageError, match=r"\.env line 2 is not NAME=value"):
        settings.read()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("GPU=2", ".env: make has no variable GPU; did you mean GPUS? → rename it"),
        ("gpus=2", "did you mean GPUS?"),
        ("PRECISON=bf16", "did you mean PRECISION?"),
        ("RUN=runs/mine", ".env: RUN does nothing there → write it behind make: RUN=…"),
        ("ARGS='--epochs 3'", "ARGS does nothing there"),
    ],
)
def test_what_does_nothing_in_the_env_file_is_refused(line, says, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("host.settings.HOME", tmp_path)
    (tmp_path / ".env").write_text(line + "\n")
    with pytest.raises(UsageError, match=re.escape(says)):
        settings.read()


def test_the_env_file_holds_what_others_read_as_well(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("host.settings.HOME", tmp_path)
    example = (ROOT / ".env.example").read_text()
    named = re.findall(r"^# ([A-Z_]+)=", example, re.MULTILINE)
    assert {"WANDB_API_KEY", "HF_HOME", "HF_TOKEN"} <= {*named}
    others = [*named, "MODE", "CUDA_HOME", "MY_DATABASE", "OMP_NUM_THREADS", "TENSORBOARD_PORT"]
    (tmp_path / ".env").write_text("".join(f"{name}=x\n" for name in others))
    settings.read()


def test_where_to_train_is_said_by_the_environment_or_by_the_env_file(
    tmp_path, monkeypatch
) -> None:
    """Not half by each: CPUS=2 of .env must not contradict GPUS=1 on the command line."""
    monkeypatch.setattr("host.settings.HOME", tmp_path)
    (tmp_path / ".env").write_text(
        "CPUS=2  # two cores\nACCELERATE='multi_cpu'\nPRECISION=bf16\n#GPUS=4\nCUDA=\"cuda12\" # old\n"
    )
    for name in ("GPUS", "CPUS", "ACCELERATE", "PRECISION", "CUDA"):
        monkeypatch.delenv(name, raising=False)
    found = settings.read()
    assert [found.get(n) for n in ("GPUS", "CPUS", "ACCELERATE")] == [None, "2", "multi_cpu"]
    assert (found["PRECISION"], found["CUDA"]) == ("bf16", "cuda12")
    monkeypatch.setenv("GPUS", "1")
    found = settings.read()
    assert [found.get(n) for n in ("GPUS", "CPUS", "ACCELERATE")] == ["1", "", ""]
    assert found["PRECISION"] == "bf16"
    monkeypatch.setattr("host.docker.rootless", lambda: False)
    told = compose.variables(found, table.lines()[0])
    assert (told["GPUS"], told["CPUS"], told["ACCELERATE"]) == ("1", "", "")
    monkeypatch.delenv("GPUS")
    monkeypatch.setenv("ACCELERATE", "")  # make train ACCELERATE=
    found = settings.read()
    assert [found.get(n) for n in ("GPUS", "CPUS", "ACCELERATE")] == [None, "2", ""]


def test_what_the_env_file_says_of_shares_and_memory_reaches_a_container_or_is_overruled(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("host.settings.HOME", tmp_path)
    (tmp_path / ".env").write_text("GPUS=2\nSHARES=5,3\nMEMLOCK=1024\n")
    for name in ("GPUS", "SHARES", "MEMLOCK", "ACCELERATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CPUS", "2")
    monkeypatch.setattr("host.docker.rootless", lambda: True)
    told = compose.variables(settings.read(), table.lines()[0])
    assert (told["GPUS"], told["SHARES"], told["MEMLOCK"]) == ("", "", "1024")


def test_variables_of_libraries_reach_a_container() -> None:
    there = {
        "NCCL_ALGO": "Ring", "NVIDIA_TF32_OVERRIDE": "0", "HF_ENDPOINT": "https://mirror",
        "CUBLAS_WORKSPACE_CONFIG": ":16:8", "PYTORCH_ALLOC_CONF": "x",
    }  # fmt: skip
    places = {
        "HF_HOME": "/a",
        "TORCH_HOME": "/b",
        "HF_TOKEN": "secret",
        "TORCH_LOGS_OUT": "/c",
        "NCCL_NET_PLUGIN": "ofi",
        "NCCL_NET": "OFI",
        "NVIDIA_VISIBLE_DEVICES": "0",
    }
    assert settings.libraries({**there, **places, "HOME": "/root"}) == sorted(there)


def test_data_that_is_not_there_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("host.docker.rootless", lambda: False)
    line = table.lines()[0]
    with pytest.raises(LockstepError, match=r"DATA=.*missing is no directory"):
        compose.variables({"DATA": str(tmp_path / "missing")}, line)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert compose.variables({"DATA": "here"}, line)["DATA"] == str(tmp_path / "here")


def test_trees_that_differ_are_told_by_path_and_kind() -> None:
    one = {"a": ("0", "0o644", 0, 0, 1, "", "x"), "b": ("0", "0o644", 0, 0, 1, "", "y")}
    assert twice.differences(one, dict(one)) == []
    other = {"a": ("0", "0o755", 0, 0, 2, "", "x"), "c": one["b"]}
    assert twice.differences(one, other) == [
        "a: mode, date",
        "b: only in the first",
        "c: only in the second",
    ]


def test_pins_are_written_into_the_table(tmp_path, monkeypatch) -> None:
    """The registry's answer is a stand-in's; what becomes of it is real."""
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    monkeypatch.setattr("host.lines.HOME", tmp_path)
    monkeypatch.setattr("container.pin.HOME", tmp_path)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f"#!/bin/sh\necho sha256:{'ab' * 32}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    before = table.lines()
    assert pin.main() == 0
    assert [line.image for line in table.lines()] == [
        f"{b.image}@sha256:{'ab' * 32}" for b in before
    ]
    assert pin.main() == 0  # again: the digest is replaced, not added
    assert all(line.image.count("@") == 1 for line in table.lines())
    (folder / "docker").write_text("#!/bin/sh\nexit 1\n")
    text = (tmp_path / "Dockerfile").read_text()
    assert pin.main() == 6
    assert (tmp_path / "Dockerfile").read_text() == text


def test_clean_knows_the_checkout_by_its_links_and_no_other_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert clean.folders() == {str(ROOT), str(tmp_path / "link")}
    monkeypatch.setenv("PWD", str(tmp_path))
    assert clean.folders() == {str(ROOT)}


def lent(folder: Path) -> Path:
    """Four GPUs: 1 computes, 3 has somebody's 30 GiB, 2 has a screen."""
    folder.mkdir()
    used = {0: 12, 1: 40960, 2: 600, 3: 30000}
    rows = [
        {
            "index": n, "uuid": f"GPU-{n}", "name": A100[0], "pci.bus_id": f"00000000:{n + 1:02X}:00.0",
            "driver_version": V580, "compute_cap": "8.0", "memory.total": 81920, "memory.used": used[n],
        }
        for n in range(4)
    ]  # fmt: skip
    app = {"gpu_uuid": "GPU-1", "pid": 4711, "process_name": "python3", "used_memory": 40950}
    nvidia_smi.write(folder, rows, apps=[app])
    return folder


@pytest.mark.parametrize(
    ("asked", "visible", "found"),
    [
        ("2", None, {}),
        ("all", None, {}),
        ("1,3", None, {"GPUS": "2", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3"}),
        ("3,", None, {"GPUS": "1", "CUDA_VISIBLE_DEVICES": "GPU-3"}),
        ("free", None, {"GPUS": "most", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-2"}),
        ("free:1", None, {"GPUS": "1", "CUDA_VISIBLE_DEVICES": "GPU-0"}),
        ("free", "1,2", {"GPUS": "most", "CUDA_VISIBLE_DEVICES": "GPU-2"}),
        (
            "free:3",
            None,
            "error: GPUS=free:3, and 2 of 4 GPUs are free → see who is there: make doctor; or wait, or GPUS= with numbers",
        ),
        (
            "free",
            "1,3",
            "error: GPUS=free, and none of 2 GPUs are free → see who is there: make doctor; or wait, or GPUS= with numbers",
        ),
        (
            "free",
            "",
            "error: GPUS=free, and no GPU can be seen here → check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, or train on the CPU: CPUS=1",
        ),
        (
            "0,7",
            None,
            "error: there is no GPU 7 here, but 0, 1, 2, 3 → check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES",
        ),
        ("1,1", None, "error: GPUS=1,1 names a GPU twice → name each once"),
        (
            "some",
            None,
            "error: GPUS=some is no choice of GPUs → give a number (2), all, a list (1,3), free, or free:2",
        ),
    ],
)
def test_gpus_by_number_or_by_being_free(asked, visible, found, tmp_path) -> None:
    environ = {"PATH": str(lent(tmp_path / "bin")), "GPUS": asked}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    if isinstance(found, dict):
        assert selection.resolve(environ) == found
    else:
        with pytest.raises(LockstepError, match=re.escape(found.replace("error: ", ""))):
            selection.resolve(environ)


def test_make_starts_as_many_processes_as_gpus_are_named(tmp_path) -> None:
    """The launch that make would make, for two that are free, and what it says where none is."""
    folder = lent(tmp_path / "bin")
    for asked, said in (("free", r"CUDA_VISIBLE_DEVICES=GPU-0,GPU-2 \S+/bin/python -m train.launch"),
                        ("free:3", "error: GPUS=free:3, and 2 of 4 GPUs are free")):  # fmt: skip
        _, text = make_says(folder, "make", "--dry-run", "train", f"GPUS={asked}", "ENGINE=local")
        assert re.search(said, text), text
    code, text = make_says(
        folder, sys.executable, "-m", "doctor", "--quick", environ={"GPUS": "free"}
    )
    assert (code, text) == (0, "")  # the busy ones are not its own
