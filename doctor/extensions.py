"""What is built for one PyTorch, or by it, and stands beside it: Triton, flash-attn, xFormers."""

from __future__ import annotations

import re

from host.machine import Machine

_TRITON = range(4, 11)  # of PyTorch 2


def wrong(machine: Machine, version: str, cuda: str, beside: str) -> tuple[str, str, str] | None:
    """What does not fit it: what is seen, why it matters, what helps.

    Args:
        version: PyTorch's, as `2.4.0+cu121`.
        cuda: what it is built for, as `12.1`.
        beside: the folder that its package is in.
    """
    return (
        _other_compiler(machine, version, beside)
        or _flash(machine, version, cuda, beside)
        or _of_graphs(machine, version, beside)
        or _quantised(machine, cuda, beside)
        or _attention(machine, version, beside)
        or _locked(machine)
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


def _flash(machine: Machine, version: str, cuda: str, beside: str) -> tuple[str, str, str] | None:
    """Its flash-attn, or the like, is a wheel for another PyTorch, CUDA or way of C++.

    https://github.com/Dao-AILab/flash-attention/issues/931
    """
    for name in machine.names(beside):
        own = re.match(r"(flash_attn|causal_conv1d|mamba_ssm)-.*\.dist-info$", name)
        said = name + (machine.read(f"{beside}/{name}/direct_url.json") or "") if own else ""
        built = re.search(r"(?:\+|%2[Bb])cu(\d\d)\d*torch(\d+\.\d+)(?:cxx11abi(TRUE|FALSE))?", said)
        other = _other_build(version, cuda, *built.groups()) if built else None
        if own and other:
            package = own.group(1).replace("_", "-")
            return (
                f"has a {package} beside it that is built for {other}",
                "what imports it ends, transformers as well: undefined symbol",
                (
                    f"pip uninstall {package}; then the wheel whose name has this torch and CUDA,"
                    f" or one built here: MAX_JOBS=2 pip install {package} --no-build-isolation"
                ),
            )
    return None


def _other_build(version: str, cuda: str, major: str, release: str, abi: str | None) -> str | None:
    """What a wheel is built for, where that is not this PyTorch.

    Args:
        major: of the CUDA that it is built with.
        abi: TRUE where it is built with the newer of the two ways in which C++ names things, as
            PyTorch's own wheels are from 2.7 on, and 2.6 for CUDA 12.6.
    """
    if not version.startswith(f"{release}."):
        return f"PyTorch {release}"
    if cuda.partition(".")[0].isdigit() and major != cuda.partition(".")[0]:
        return f"CUDA {major}"
    own = re.match(r"2\.(\d+)\.\d+\+cu\d+$", version)  # neither NVIDIA's builds nor conda's
    if own is None or abi is None:
        return None
    newer = int(own.group(1)) >= 7 or (own.group(1) == "6" and cuda == "12.6")
    return f"the {'older' if newer else 'newer'} ABI of C++ (cxx11abi{abi})" * (
        newer != (abi == "TRUE")
    )


def _of_graphs(machine: Machine, version: str, beside: str) -> tuple[str, str, str] | None:
    """A wheel of PyG's for another PyTorch: torch_scatter-2.1.2+pt20cu118.

    https://github.com/rusty1s/pytorch_scatter/issues/414
    """
    own = re.match(r"(\d)\.(\d+)\.", version)
    for name in machine.names(beside):
        found = re.match(
            r"(torch_(?:scatter|sparse|cluster|spline_conv)|pyg_lib)-.*\+pt(\d)(\d+)\w*\.dist-info$",
            name,
        )
        if own and found and found.groups()[1:] != own.groups():
            release = f"{found.group(2)}.{found.group(3)}"
            of = re.sub(r"^(\d+\.\d+)\.\d+", r"torch-\1.0", version)
            package = found.group(1)
            return (
                f"has a {package} beside it that is built for PyTorch {release}",
                "what imports it ends: undefined symbol",
                f"pip install --force-reinstall --no-deps {package} -f https://data.pyg.org/whl/{of}.html",
            )
    return None


def _quantised(machine: Machine, cuda: str, beside: str) -> tuple[str, str, str] | None:
    """Its bitsandbytes has no library for its CUDA.

    https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1848
    """
    own = "libbitsandbytes_cuda"
    names = [n for n in machine.names(f"{beside}/bitsandbytes") if n.startswith(own)]
    chosen = machine.environ.get("BNB_CUDA_VERSION", "")
    if chosen and names and f"{own}{chosen}.so" not in names:
        return (
            f"has a bitsandbytes beside it without a library for BNB_CUDA_VERSION={chosen}",
            "optimizers of 8 bits, and layers of 4 or 8, end: Configured CUDA binary not found",
            "unset BNB_CUDA_VERSION",
        )
    if chosen:
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
