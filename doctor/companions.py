"""What is installed beside a PyTorch and has to fit it: torchvision, torchaudio, NumPy, Triton."""

from __future__ import annotations

import re

from host.machine import Machine
from host.nvidia import Gpu

_VISION = 15  # torchvision 0.17 belongs to torch 2.2
_AUDIO = 8  # up to torch 2.8 torchaudio has the same number
_NUMPY = re.compile(r"compiled using NumPy 1\.x cannot be run in|_ARRAY_API not found")
_SPARK = (12, 1)
_COMPILER = "triton/backends/nvidia/bin"
_CPU = re.compile(r"(?m)^[^#;\n]*/whl/cpu")
_PIP = ("/etc/pip.conf", "{home}/.config/pip/pip.conf", "{home}/.pip/pip.conf")


def wrong(
    machine: Machine, version: str, place: str, said: str, gpus: list[Gpu]
) -> tuple[str, str, str] | None:
    """What does not fit: what is seen, why it matters, what helps.

    Args:
        version: PyTorch's, as `2.4.0+cu121`.
        place: the file of its package; "" where that is not known.
        said: what its import wrote beside the answer.
    """
    if _NUMPY.search(said):
        return (
            "was built for NumPy 1, and NumPy 2 is installed",
            "arrays and tensors do not become each other: Numpy is not available",
            "pip install 'numpy<2'; or PyTorch 2.3 or newer",
        )
    beside = re.sub(r"/torch/__init__\.py$", "", place)
    if not beside or beside == place:
        return None
    return _other_release(machine, version, beside) or _compiler(machine, beside, gpus)


def _other_release(machine: Machine, version: str, beside: str) -> tuple[str, str, str] | None:
    """A torchvision or torchaudio of another release, or for another CUDA."""
    own = re.match(r"2\.(\d{1,2})\.\w+(?:\+(cu\d+|cpu))?$", version)
    for name, major in (("torchvision", "0"), ("torchaudio", "2")):
        text = machine.read(f"{beside}/{name}/version.py") or ""
        found = re.search(
            rf"^__version__ = '({major}\.(\d{{1,2}})\.\w+(?:\+(cu\d+|cpu))?)'", text, re.MULTILINE
        )
        if own is None or found is None:
            continue
        release, number = int(own.group(1)), int(found.group(2))
        fits = number == (release + _VISION if major == "0" else release)
        known = major == "0" or release <= _AUDIO
        # cu128 and cu126 go together: both compare CUDA's first number alone.
        built = {(tag or "")[:4] for tag in (own.group(2), found.group(3))} - {""}
        if (fits or not known) and len(built) < 2:
            continue
        return (
            f"has {name} {found.group(1)} beside it, which is not made for it",
            f"{name} does not load, or knows no CUDA: operator torchvision::nms does not exist"
            if major == "0"
            else f"{name} does not load: undefined symbol",
            f"pip install --upgrade --force-reinstall torch {name}   # both from one index",
        )
    return None


def _compiler(machine: Machine, beside: str, gpus: list[Gpu]) -> tuple[str, str, str] | None:
    """Triton's assembler is older than the GPU.

    https://github.com/triton-lang/triton/issues/8539
    """
    new = any(gpu.capability == _SPARK for gpu in gpus)
    text = machine.read(f"{beside}/triton/__init__.py") or ""
    release = re.search(r"__version__ = ['\"](\d+)\.(\d+)", text)
    if release and (int(release.group(1)), int(release.group(2))) >= (3, 6):
        return None
    names = machine.names(f"{beside}/{_COMPILER}")
    chosen = machine.environ.get("TRITON_PTXAS_PATH")
    if not new or chosen or "ptxas" not in names or "ptxas-blackwell" in names:
        return None
    return (
        "has a Triton whose ptxas does not know this GPU (sm_121a)",
        "torch.compile, and what else uses Triton, fails: not defined for option 'gpu-name'",
        "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas   # of CUDA 13; or Triton 3.6 or newer",
    )


def uncompiled(machine: Machine) -> str:
    """What torch.compile lacks, as a note: most trainings do without it."""
    compilers = ("cc", "gcc", "clang", machine.environ.get("CC") or "cc")
    return "" if any(map(machine.has, compilers)) else "; torch.compile finds no C compiler"


def index_for_the_cpu(machine: Machine) -> str | None:
    """The file that sends pip to PyTorch's wheels for the CPU."""
    home = machine.environ.get("HOME", "")
    files = [file.format(home=home) for file in _PIP]
    return next((file for file in files if _CPU.search(machine.read(file) or "")), None)
