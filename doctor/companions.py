"""What is installed beside a PyTorch and has to fit it: torchvision, torchaudio, NumPy, Triton."""

from __future__ import annotations

import re

from doctor import extensions
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
    machine: Machine, version: str, cuda: str, place: str, *, said: str, gpus: list[Gpu]
) -> tuple[str, str, str] | None:
    """What does not fit: what is seen, why it matters, what helps.

    Args:
        version: PyTorch's, as `2.4.0+cu121`.
        cuda: what it is built for, as `12.1`.
        place: the file of its package; "" where that is not known.
        said: what its import wrote beside the answer.
    """
    if _NUMPY.search(said):
        return (
            "was built for NumPy 1, and NumPy 2 is installed",
            "arrays and tensors do not become each other: Numpy is not available",
            "pip install 'numpy<2'; or PyTorch 2.3 or newer",
        )
    if "Failed to initialize NumPy: No module named 'numpy'" in said:
        return (
            "has no NumPy beside it",
            "arrays and tensors do not become each other: Numpy is not available",
            "pip install numpy",
        )
    if "but this version of numpy is" in said:
        return (
            "is built for a newer NumPy than there is",
            "arrays and tensors do not become each other: Numpy is not available",
            "pip install --upgrade numpy",
        )
    hidden = _hidden(machine, place)
    if hidden is not None:
        return hidden
    beside = re.sub(r"/torch/__init__\.py$", "", place)
    if not beside or beside == place:
        return None
    return (
        _other_release(machine, version, beside)
        or _compiler(machine, beside, gpus)
        or _without_libcuda(machine, version)
        or extensions.wrong(machine, version, cuda, beside)
    )


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
        "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas   # of CUDA 13; or PyTorch 2.10",
    )


def _hidden(machine: Machine, place: str) -> tuple[str, str, str] | None:
    """A PyTorch of the user's own is found before the one of conda's environment."""
    prefix, home = machine.environ.get("CONDA_PREFIX", ""), machine.environ.get("HOME", "")
    own = re.match(rf"{re.escape(home)}/\.local/(lib/python3\.\d+/site-packages)/torch/", place)
    if not prefix or not home or own is None:
        return None
    if not machine.exists(f"{prefix}/{own.group(1)}/torch"):
        return None
    return (
        "is in ~/.local, and found before the one of the active conda environment",
        "parts of both are mixed: operator torchvision::nms does not exist, undefined symbols",
        "export PYTHONNOUSERSITE=1; or, outside of the environment, pip uninstall torch",
    )


def uncompiled(machine: Machine, place: str) -> str:
    """What torch.compile lacks, as a note: most trainings do without it.

    Args:
        place: the file of torch's package.
    """
    compilers = ("cc", "gcc", "clang", machine.environ.get("CC") or "cc")
    if not any(map(machine.has, compilers)):
        return "; torch.compile finds no C compiler"
    told = "TRITON_LIBCUDA_PATH" in machine.environ or machine.exists("/sbin/ldconfig")
    if machine.exists("/run/opengl-driver") and not told:
        return "; torch.compile needs TRITON_LIBCUDA_PATH=/run/opengl-driver/lib (NixOS)"
    # A Python of uv's or conda's brings its headers; the system's has them in a package.
    found = re.match(r"(.*)/lib(?:64)?/(python3\.\d+)/(?:site|dist)-packages/torch/", place)
    home = machine.read(f"{found.group(1)}/pyvenv.cfg") or "" if found else ""
    own = found is not None and (found.group(1) == "/usr" or "home = /usr/bin" in home)
    header = f"/usr/include/{found.group(2)}/Python.h" if found else ""
    known = bool(machine.names("/usr/include"))
    lacking = own and known and not machine.exists(header)
    return "; torch.compile finds no Python.h (python3-dev, python3-devel)" * lacking


def other_nvcc(machine: Machine, cuda: str) -> str:
    """A compiler of CUDA's of another first number, as a note: few build extensions.

    https://github.com/pytorch/pytorch/issues/73047
    """
    found = re.search(r"release (\d+)\.(\d+)", machine.run("nvcc", "--version").out)
    told = machine.environ.get("CUDA_HOME")
    if told or found is None or found.group(1) == cuda.partition(".")[0]:
        return ""
    return (
        f"; nvcc is CUDA {found.group(1)}.{found.group(2)}'s: extensions (flash-attn, DeepSpeed)"
        f" cannot be built here: CUDA_HOME= a toolkit of CUDA {cuda}"
    )


def _without_libcuda(machine: Machine, version: str) -> tuple[str, str, str] | None:
    """Triton 2 and cuDNN 8 look for the driver's library by its name without a number.

    https://github.com/pytorch/pytorch/issues/107960
    """
    listed = machine.run("ldconfig", "-p").out
    place = re.search(r"libcuda\.so\.1 .*=> (\S+)/libcuda", listed)
    old = re.match(r"2\.[012]\.", version)
    if old is None or place is None or re.search(r"libcuda\.so ", listed):
        return None
    folder = place.group(1)
    names = machine.names(folder) or machine.names(f"/usr{folder}")
    # What lies in a usual folder is found without that list.
    if not names or "libcuda.so" in names:
        return None
    return (
        f"looks for libcuda.so, and of {folder} the loader knows libcuda.so.1 alone",
        "torch.compile (cannot find -lcuda), or the first convolution with cuDNN 8, fails",
        f"sudo ln -s libcuda.so.1 {folder}/libcuda.so && sudo ldconfig",
    )


def index_for_the_cpu(machine: Machine) -> str | None:
    """The file that sends pip to PyTorch's wheels for the CPU."""
    home = machine.environ.get("HOME", "")
    files = [file.format(home=home) for file in _PIP]
    return next((file for file in files if _CPU.search(machine.read(file) or "")), None)
