"""What is installed beside a PyTorch and has to fit it: torchvision, torchaudio, NumPy, Triton."""

from __future__ import annotations

import re

from host.machine import Machine
from host.nvidia import Gpu

_VISION = 15  # torchvision 0.17 belongs to torch 2.2
_AUDIO = 8  # up to torch 2.8 torchaudio has the same number
_NUMPY = re.compile(r"compiled using NumPy 1\.x cannot be run in|_ARRAY_API not found")
_TRITON = range(4, 11)  # of PyTorch 2
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
        or _other_compiler(machine, version, beside)
        or _flash(machine, version, beside)
        or _quantised(machine, cuda, beside)
        or _attention(machine, version, beside)
        or _locked(machine)
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
        "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas   # of CUDA 13; or Triton 3.6 or newer",
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


def _other_compiler(machine: Machine, version: str, beside: str) -> tuple[str, str, str] | None:
    """A Triton of another release than PyTorch's wheels name: 3.4 belongs to 2.8.

    https://github.com/woct0rdho/triton-windows/issues/158
    """
    own = re.match(r"2\.(\d{1,2})\.\d+(?:\+(?:cu\d+|cpu))?$", version)
    text = machine.read(f"{beside}/triton/__init__.py") or ""
    found = re.search(r"__version__ = ['\"]3\.(\d+)\.\d+['\"]", text)
    if own is None or found is None or int(own.group(1)) not in _TRITON:
        return None
    if int(found.group(1)) <= int(own.group(1)) - _TRITON.start:
        return None
    return (
        f"has Triton 3.{found.group(1)} beside it, which is not made for it",
        "torch.compile fails: cannot import name 'triton_key'",
        "pip install --force-reinstall torch, of the same version, which brings its own",
    )


def _flash(machine: Machine, version: str, beside: str) -> tuple[str, str, str] | None:
    """Its flash-attn is a wheel for another PyTorch.

    https://github.com/Dao-AILab/flash-attention/issues/931
    """
    names = [n for n in machine.names(beside) if re.match(r"flash_attn-.*\.dist-info$", n)]
    said = machine.read(f"{beside}/{names[0]}/direct_url.json") or "" if names else ""
    built = re.search(r"\+cu\d+torch(\d+\.\d+)", said)
    if built is None or version.startswith(f"{built.group(1)}."):
        return None
    return (
        f"has a flash-attn beside it that is built for PyTorch {built.group(1)}",
        "what imports it ends, transformers as well: undefined symbol",
        (
            "pip uninstall flash-attn; then the wheel whose name has this torch and CUDA, or one"
            " built here: MAX_JOBS=2 pip install flash-attn --no-build-isolation"
        ),
    )


def _quantised(machine: Machine, cuda: str, beside: str) -> tuple[str, str, str] | None:
    """Its bitsandbytes has no library for its CUDA.

    https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1848
    """
    own = "libbitsandbytes_cuda"
    names = [n for n in machine.names(f"{beside}/bitsandbytes") if n.startswith(own)]
    chosen = machine.environ.get("BNB_CUDA_VERSION", "")
    if f"{own}{chosen}.so" in names:
        return None
    if not names or not cuda[:1].isdigit() or f"{own}{cuda.replace('.', '')}.so" in names:
        return None
    numbers = [x.group(1) for n in names if (x := re.fullmatch(rf"{own}(\d+)\.so", n))]
    kin = [number for number in numbers if number.startswith(cuda.partition(".")[0])]
    other = f"; or BNB_CUDA_VERSION={max(kin)}" if kin else ""
    return (
        f"has a bitsandbytes beside it without a library for CUDA {cuda}",
        "optimizers of 8 bits, and layers of 4 or 8, end: Configured CUDA binary not found",
        f"pip install --upgrade bitsandbytes{other}",
    )


def _attention(machine: Machine, version: str, beside: str) -> tuple[str, str, str] | None:
    """Its xFormers is built for another PyTorch.

    https://github.com/facebookresearch/xformers/issues/982
    """
    text = machine.read(f"{beside}/xformers/cpp_lib.json") or ""
    built = re.search(r'"torch": *"(\d+\.\d+)\.[^"]*"', text)
    own = re.match(r"(\d+)\.(\d+)\.", version)
    if built is None or own is None:
        return None
    made = tuple(int(each) for each in built.group(1).split("."))
    here = (int(own.group(1)), int(own.group(2)))
    # From xFormers 0.0.34 on it is built for torch 2.10 and whatever comes later.
    if made == here or (2, 10) <= made <= here:
        return None
    return (
        f"has an xformers beside it that is built for PyTorch {built.group(1)}",
        "its kernels do not load: xFormers can't load C++/CUDA extensions",
        "pip install --upgrade xformers, from torch's own index; or take it out",
    )


def _locked(machine: Machine) -> tuple[str, str, str] | None:
    """A build of an extension was ended, and left its lock.

    https://github.com/pytorch/pytorch/issues/189245
    """
    folder = f"{machine.environ.get('HOME', '')}/.cache/torch_extensions"
    places = [
        f"{folder}/{kind}/{n}"
        for kind in machine.names(folder)
        for n in machine.names(f"{folder}/{kind}")
    ]
    left = next((place for place in places if machine.exists(f"{place}/lock")), None)
    if left is None or machine.run("pgrep", "-x", "ninja").code == 0:
        return None
    name = left.rpartition("/")[2]
    return (
        f"builds extensions such as {name}, and a build that was ended has left its lock",
        "whoever loads that one (DeepSpeed's cpu_adam) waits for ever, without a word",
        f"rm ~{left[len(machine.environ.get('HOME', '')) :]}/lock, with no build running",
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


def index_for_the_cpu(machine: Machine) -> str | None:
    """The file that sends pip to PyTorch's wheels for the CPU."""
    home = machine.environ.get("HOME", "")
    files = [file.format(home=home) for file in _PIP]
    return next((file for file in files if _CPU.search(machine.read(file) or "")), None)
