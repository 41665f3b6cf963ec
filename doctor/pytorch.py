"""Another PyTorch that python finds on this machine; make train takes its own."""

from __future__ import annotations

import re

from doctor import companions, kind, unimported
from doctor.finding import Finding, ok, skip, warn
from host import INSIDE, nvidia, visible
from host import lines as table
from host.machine import NO_ANSWER, Answer, Machine
from host.nvidia import Capability, Gpu
from host.text import whole

ASKED = (
    "import torch; v = torch.version; f = getattr(torch._C, '_cuda_getArchFlags', str);"
    " print('torch:', torch.__version__,"
    " v.cuda or (v.hip and 'AMD') or (getattr(v, 'xpu', None) and 'Intel') or 'CPU',"
    " *(f().split() if v.cuda else ()), 'cudnn_%s' % torch.backends.cudnn.version(),"
    " 'at_' + torch.__file__)"
)
"""Version, what it is built for, what it has kernels for, its cuDNN, and its file. CUDA is not
started.
"""
STARTS = "import torch; print('torch:', torch.version.cuda, torch.cuda.is_available())"
"""Whether CUDA starts; what hinders it is said on the other stream."""
_WHOLE = 21  # of cuDNN 9
_CU118 = 450  # the driver that CUDA 11.8 needs
_CUDNN_OF_TURING = 91100  # the first: https://github.com/pytorch/pytorch/issues/162574
_PART = "libcudnn_engines_tensor_ir.so.9"
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/ (CUDA and the drivers that it needs)
_BEFORE_12 = (
    (r"8\.", 375),
    (r"9\.0", 384),
    (r"9\.1", 390),
    (r"9\.2", 396),
    (r"10\.0", 410),
    (r"10\.1", 418),
    (r"10\.2", 440),
    (r"11\.", 450),
)
_OLDEST = (5, 0)  # of which there are wheels for CUDA 12
# Wheels for CUDA 12.6 are the last for what is older than Turing, and have none for Blackwell; Thor
# and Spark came with 13.
_TEGRA = ((5, 3), (6, 2), (7, 2), (8, 7))  # which run no kernels of other GPUs
_TURING, _BLACKWELL, _LATEST = (7, 5), (10, 0), ((11, 0), (12, 1))


def ask(machine: Machine, program: str) -> tuple[list[str], Answer] | None:
    """What a PyTorch that is not ours prints, by the first python that has one; no words where its
    import fails.
    """
    hindered = None
    for python in ("python", "python3"):
        place = machine.place(python) or ""
        if not place or machine.exists(str(INSIDE)) or place.startswith(f"{machine.home}/.venv/"):
            continue
        answer = machine.run(python, "-c", program, seconds=60)
        lines = [line for line in answer.out.splitlines() if line.startswith("torch: ")]
        if answer.code == NO_ANSWER:  # the other one would hang as well
            return None
        if answer.code == 0 and lines:
            return lines[-1].split()[1:], answer
        if hindered is None and unimported.of(answer) is not None:
            hindered = answer
    return None if hindered is None else ([], hindered)


def other(machine: Machine) -> Finding:
    """It is built for CUDA, has kernels for these GPUs, and the driver is new enough for it."""
    name, gpus = "other PyTorch", visible.seen(machine)
    told = ask(machine, ASKED) if gpus else None
    hindered = unimported.of(told[1]) if told else None
    if hindered is not None:
        return warn(name, f"python's {hindered[0]}", *hindered[1:])
    if told is None or len(told[0]) < 2:
        return skip(name, "no GPU" if not gpus else "none that python finds")
    words, _, place = " ".join(told[0]).partition(" at_")
    version, of, *built = words.split()
    unfit = _unfit(machine, gpus, of, built)
    beside = companions.wrong(machine, version, of, place, said=told[1].err, gpus=gpus)
    if unfit is None and beside is not None:
        return warn(name, f"python's, {version}, {beside[0]}", *beside[1:])
    if unfit is None:
        note = companions.uncompiled(machine, place) + companions.other_nvcc(machine, of)
        other = _mixed(machine, built, version) or _past(gpus, built, version)
        return other or ok(name, f"{version} for CUDA {of}{note}")
    return warn(
        name,
        f"python's, {version}, {unfit}",
        "what runs with it computes elsewhere, or fails; make train has a PyTorch of its own",
        _found_first(machine, place) or _instead(machine, gpus),
    )


def _found_first(machine: Machine, place: str) -> str | None:
    """What has another one found, where a variable or the user's own folder comes before all."""
    home = machine.environ.get("HOME", "")
    if home and place.startswith(f"{home}/.local/lib/"):
        return (
            "it lies in ~/.local, which comes before every environment's: export"
            " PYTHONNOUSERSITE=1 (apptainer: APPTAINERENV_PYTHONNOUSERSITE=1), or pip uninstall"
            " torch outside of them"
        )
    paths = [path for path in machine.environ.get("PYTHONPATH", "").split(":") if path]
    if any(place.startswith(f"{path.rstrip('/')}/") for path in paths):
        return (
            "it comes from PYTHONPATH, before every environment's, make train's own as well: unset"
            " PYTHONPATH (module purge; apptainer exec --cleanenv)"
        )
    return None


def _unfit(machine: Machine, gpus: list[Gpu], of: str, built: list[str]) -> str | None:
    """What keeps it from computing on these GPUs."""
    if not of[:1].isdigit():
        return "is built for the CPU" if of == "CPU" else f"is built for GPUs of {of}"
    rows = [gpu.text("driver_version") for gpu in gpus]  # all that WSL and a sandbox tell
    major = whole((nvidia.loaded(machine) or next(iter(rows), None) or "").partition(".")[0])
    wanted = f"cuda{of.partition('.')[0]}"
    needed = next((line.driver for line in table.lines() if line.name == wanted), 0)
    # Where the driver is too old for any, another row says so.
    old = major is not None and min(line.driver for line in table.lines()) <= major < needed
    # Which a consumer's card does not have.
    able = all(nvidia.takes_newer_cuda(gpu.name) for gpu in gpus)
    if old and not (able and _by_compat(machine, needed)):
        return f"is built for CUDA {of}, which needs driver {needed} or newer"
    before = next((least for sign, least in _BEFORE_12 if re.match(sign, of)), 0)
    if major is not None and major < before and not (able and _by_compat(machine, before)):
        return f"is built for CUDA {of}, which needs driver {before} or newer"
    known = [(g.name, own) for g in gpus if (own := g.capability) and own >= _OLDEST]
    without = sorted({name for name, capability in known if not _runs(built, capability)})
    kernels = any(word.startswith(("sm_", "compute_")) for word in built)
    return f"has no kernels for {', '.join(without)}" if kernels and without else None


def _by_compat(machine: Machine, needed: int) -> bool:
    """Whether CUDA's forward compatibility stands in for a newer driver."""
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    found = re.search(r"libcuda\.so\.1 .*=> (/\S+)/libcuda", machine.run("ldconfig", "-p").out)
    paths += ["/usr/local/cuda/compat/lib", found.group(1) if found else ""]
    folders = [path for path in paths if "compat" in path]
    names = [name for folder in folders for name in machine.names(folder)]
    versions = (re.fullmatch(r"libcuda\.so\.(\d+)[\d.]+", name) for name in names)
    return any(int(each.group(1)) >= needed for each in versions if each)


def _past(gpus: list[Gpu], built: list[str], version: str) -> Finding | None:
    """Its cuDNN has no kernels for a GPU of before Turing, for which PyTorch has some."""
    cudnn = next((whole(word[6:]) for word in built if word.startswith("cudnn_9")), None)
    old = next((gpu.name for gpu in gpus if gpu.capability and gpu.capability < _TURING), None)
    if old is None or cudnn is None or cudnn < _CUDNN_OF_TURING:
        return None
    return warn(
        "other PyTorch",
        f"python's, {version}, has cuDNN 9.{cudnn // 100 % 100}, which knows nothing before Turing",
        f"convolutions on the {old} fail: unable to find an engine to execute this computation",
        "pip install 'nvidia-cudnn-cu12<9.11'; make train has a PyTorch of its own",
    )


def _mixed(machine: Machine, built: list[str], version: str) -> Finding | None:
    """Its cuDNN lacks a part that a newer one of the system's has, and loads that.

    https://github.com/pytorch/pytorch/issues/188892
    """
    own = next((whole(word[6:]) for word in built if word.startswith("cudnn_9")), None)
    listed = machine.run("ldconfig", "-p").out
    place = re.search(rf"{_PART} .*=> (\S+)/{_PART}", listed)
    # /lib leads to /usr/lib.
    names = [n for up in ("", "/usr") for n in machine.names(up + place.group(1))] if place else []
    found = [re.fullmatch(r"libcudnn\.so\.9\.(\d{1,4})\.\d+", name) for name in names]
    newer = max((int(each.group(1)) for each in found if each), default=0)
    # Wheels have that part of their own from 9.21 on, as far as is known.
    if own is None or place is None or not own // 100 % 100 < min(newer, _WHOLE):
        return None
    return warn(
        "other PyTorch",
        f"{version}, with cuDNN 9.{own // 100 % 100}; {place.group(1)} has cuDNN 9.{newer}",
        "parts that its own lacks it takes from there: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        "take the system's cuDNN away (Debian, Ubuntu: sudo apt-get remove 'libcudnn9-*'), or give"
        " the environment a newer one: nvidia-cudnn-cu12, or -cu13",
    )


def _instead(machine: Machine, gpus: list[Gpu]) -> str:
    """What to install for these GPUs."""
    if kind.is_jetson(machine):
        return "take the wheel of NVIDIA's that is made for this JetPack"
    known = [gpu.capability for gpu in gpus if gpu.capability]
    driver = whole((nvidia.loaded(machine) or "").partition(".")[0])
    if known and max(known) < _OLDEST:
        return "no PyTorch of today computes on it: train on the CPU"
    if driver is not None and driver < min(line.driver for line in table.lines()):
        older = "; or, with this driver, the wheel for CUDA 11.8 (cu118), PyTorch 2.7 at the most"
        return f"upgrade the driver first: {driver} knows no CUDA 12" + older * (driver >= _CU118)
    line = "cu128"
    if any(capability in _LATEST for capability in known):
        line = "cu130"
    if any(capability < _TURING for capability in known):
        if any(capability >= _BLACKWELL for capability in known):
            return "no one build runs on all of them: name some with CUDA_VISIBLE_DEVICES"
        line = "cu126"
    told = companions.index_for_the_cpu(machine)
    first = f"take the index that ends in /whl/cpu out of {told}; then, " if told else ""
    return (
        f"{first}in an environment of its own, install the wheel for CUDA {line[2:4]}.{line[4:]}"
        f" ({line}): the command is on https://pytorch.org/get-started/locally"
    )


def _runs(built: list[str], capability: Capability) -> bool:
    """Kernels for sm_80 run on 8.6 as well; compute_80 is translated for whatever is newer."""
    for word in built:
        found = re.fullmatch(r"(sm|compute)_([0-9]{1,3})([0-9])([af]?)", word)
        if found is None:
            continue
        of = (int(found.group(2)), int(found.group(3)))
        if found.group(4) == "a" and of == capability:
            return True
        same = of[0] == capability[0] and of[1] <= capability[1]
        same = of == capability if capability in _TEGRA else same
        if found.group(4) != "a" and (same if found.group(1) == "sm" else of <= capability):
            return True
    return False
