"""Another PyTorch that python finds on this machine; make train takes its own."""

from __future__ import annotations

import re

from doctor.finding import Finding, ok, skip, warn
from host import INSIDE, visible
from host import lines as table
from host.machine import Machine
from host.nvidia import Capability, Gpu
from host.text import whole

ASKED = (
    "import torch; v = torch.version; print(torch.__version__, v.cuda or v.hip,"
    " torch.cuda.is_available(), *torch._C._cuda_getArchFlags().split() if v.cuda else ())"
)
"""Version, CUDA's, whether that starts, and what it has kernels for."""
# Wheels for CUDA 12.6 are the last for what is older than Turing; Thor and Spark came with 13.
_OLD, _NEW = (7, 5), ((11, 0), (12, 1))


def said(machine: Machine) -> tuple[list[str], str] | None:
    """What python's own torch says: version, CUDA's, whether that starts, and what it is built for;
    and its complaints. None: there is none, or it is ours.
    """
    program = "python" if machine.has("python") else "python3"
    place = machine.place(program) or ""
    if not place or machine.exists(str(INSIDE)) or place.startswith(f"{machine.home}/.venv/"):
        return None
    answer = machine.run(program, "-c", ASKED, seconds=60)
    words = answer.out.split()
    return (words, answer.err) if answer.code == 0 and len(words) >= 3 else None


def other(machine: Machine) -> Finding:
    """It is built for CUDA, has kernels for these GPUs, and the driver is new enough for it."""
    name, gpus = "other PyTorch", visible.seen(machine)
    told = said(machine) if gpus else None
    if told is None:
        return skip(name, "no GPU" if not gpus else "none that python finds")
    version, cuda = told[0][:2]
    unfit = _unfit(gpus, *told)
    if unfit is None:
        return ok(name, f"{version} for CUDA {cuda}")
    return warn(
        name,
        f"python's, {version}, {unfit}",
        "with it nothing is computed on these GPUs; make train has a PyTorch of its own",
        f"python -m pip install --force-reinstall torch --index-url {_index(gpus)}",
    )


def _unfit(gpus: list[Gpu], words: list[str], complaints: str) -> str | None:
    """What keeps it from computing on these GPUs."""
    version, cuda, starts, *built = words
    if cuda == "None" or "rocm" in version:
        return f"is built for {'the CPU' if cuda == 'None' else 'GPUs of AMD'}"
    # Where the driver is too old for any, another row says so.
    if starts == "False" and "too old" in complaints and not _too_old_for_all(gpus):
        return f"is built for CUDA {cuda}, which needs a newer driver"
    without = sorted({g.name for g in gpus if g.capability and not _runs(built, g.capability)})
    return f"has no kernels for {', '.join(without)}" if built and without else None


def _too_old_for_all(gpus: list[Gpu]) -> bool:
    major = whole(gpus[0].row["driver_version"].split(".")[0])
    return major is not None and major < min(line.driver for line in table.lines())


def _index(gpus: list[Gpu]) -> str:
    """Where pip finds wheels for all of these GPUs."""
    known = [gpu.capability for gpu in gpus if gpu.capability]
    line = "cu128"
    if any(capability < _OLD for capability in known):
        line = "cu126"
    elif any(capability in _NEW for capability in known):
        line = "cu130"
    return f"https://download.pytorch.org/whl/{line}"


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
        if found.group(4) != "a" and (same if found.group(1) == "sm" else of <= capability):
            return True
    return False
