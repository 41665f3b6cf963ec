"""What torch was built for, what it sees, and whether it computes there."""

from __future__ import annotations

import platform
import warnings

import pynvml
import torch

from doctor import cuda_errors
from doctor.finding import Finding, fail, ok, skip
from doctor.inside import copies
from host import nvidia, visible
from host.machine import Machine


def count() -> int:
    """GPUs that torch can use; none, without a word, where CUDA does not start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def build(machine: Machine) -> Finding:
    """What torch is, and that it is one for the GPUs that are here."""
    python = platform.python_version()
    if torch.version.cuda is None and visible.seen(machine):
        return fail(
            "torch",
            f"{torch.__version__} is built without CUDA, Python {python}",
            "it trains on the CPU, whatever the driver can do",
            "rm -rf .venv, and make train installs that of the lock; in an environment of your own"
            " a wheel with CUDA, from PyTorch's index",
        )
    return ok("torch", f"{torch.__version__} for CUDA {torch.version.cuda}, Python {python}")


def sees(machine: Machine) -> Finding:
    """Torch sees the GPUs that the driver lists; or what CUDA says instead."""
    _, listed = nvidia.ask(machine)
    usable = count()
    hidden = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if usable:
        names = sorted({torch.cuda.get_device_name(n) for n in range(usable)})
        if hidden is None and listed and usable < len(listed):
            return fail(
                "CUDA",
                f"{usable} of the {len(listed)} GPUs that the driver lists",
                "training on all of them would stop",
                "nvidia-smi -L; sudo dmesg | grep -i xid",
            )
        return ok("CUDA", f"{usable} × {', '.join(names)}")
    devices = any(name.startswith("nvidia") for name in machine.names("/dev"))
    if not listed and not devices:
        return skip("CUDA", "no GPU")
    if hidden is not None and hidden in visible.HIDDEN:
        return skip("CUDA", "hidden by CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()
        said = "torch sees none of them"
    except (RuntimeError, AssertionError) as error:
        said = " ".join(str(error).split())
    return cuda_errors.judge(said)


def libraries(_machine: Machine) -> Finding:
    """The libraries that come with torch."""
    if not count():
        return skip("cuDNN and NCCL", "no GPU")
    cudnn = torch.backends.cudnn.version()
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return ok("cuDNN and NCCL", f"cuDNN {cudnn}, NCCL {nccl}")


def kernels(_machine: Machine) -> Finding:
    """A product of matrices on each GPU, compared with the CPU's: small integers are exact."""
    if not count():
        return skip("kernels", "no GPU")
    one = torch.arange(64 * 64).reshape(64, 64).remainder(13).float()
    expected = one @ one.T
    for n in range(count()):
        name = torch.cuda.get_device_name(n)
        try:
            there = one.to(f"cuda:{n}")
            got = (there @ there.T).cpu()
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            if "out of memory" in said:
                raise
            archs = " ".join(torch.cuda.get_arch_list())
            return fail(
                "kernels",
                f"GPU {n} ({name}): {said[:120]}",
                f"this torch has kernels for {archs}",
                "CUDA=cuda12 make train, or hide it with CUDA_VISIBLE_DEVICES",
            )
        if not torch.equal(got, expected):
            return fail(
                "kernels",
                f"GPU {n} ({name}) computes wrongly",
                "weights would be wrong as well",
                f"hide it with CUDA_VISIBLE_DEVICES, and have it replaced; dcgmi diag -r 3 -i {n}",
            )
    return ok("kernels", f"right on {count()} GPU{'s' * (count() != 1)}")


def precisions(_machine: Machine) -> Finding:
    """What the GPUs compute in hardware; PRECISION takes fp16 and bf16."""
    if not count():
        return skip("precisions", "no GPU")
    least = min(torch.cuda.get_device_capability(n) for n in range(count()))
    known = {(7, 0): "FP16", (8, 0): "BF16, TF32", (8, 9): "FP8"}
    found = [words for since, words in known.items() if least >= since]
    return ok("precisions", ", ".join(found) or "FP32 alone")


def peers(_machine: Machine) -> Finding:
    """Which GPUs reach each other's memory without the host's."""
    usable = count()
    if usable < 2:
        return skip("peer access", "fewer than two GPUs" if usable else "no GPU")
    pairs = [(a, b) for a in range(usable) for b in range(a + 1, usable)]
    wrong = copies.wrong(usable)
    if wrong is not None:
        return fail(
            "peer access",
            wrong,
            "several GPUs compute with wrong numbers, or wait for each other for ever",
            "BIOS: IOMMU and ACS off, or boot with iommu=pt; until then NCCL_P2P_DISABLE=1 (NCCL"
            " goes through the machine's memory), or train on one: GPUS=1",
        )
    direct = [pair for pair in pairs if torch.cuda.can_device_access_peer(*pair)]
    how = _paths(pairs)
    return ok("peer access", f"{len(direct)} of {len(pairs)} pairs{': ' * bool(how)}{how}")


def _paths(pairs: list[tuple[int, int]]) -> str:
    """What lies between the pairs, counted: NVLink, or the nearest point they share on the bus."""
    words = {
        0: "one board",
        10: "one switch",
        20: "several switches",
        30: "one host bridge",
        40: "one socket",
        50: "across sockets",
    }
    found: dict[str, int] = {}
    try:
        pynvml.nvmlInit()
        for a, b in pairs:
            one, other = (handle(n) for n in (a, b))
            linked = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            shared = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
            word = "NVLink" if linked == pynvml.NVML_P2P_STATUS_OK else words.get(shared, "?")
            found[word] = found.get(word, 0) + 1
    except pynvml.NVMLError:
        return ""
    return ", ".join(f"{number} {word}" for word, number in found.items())


def handle(device: int) -> object:
    """NVML's handle of torch's device: their numbers differ where some are hidden."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    handle: object = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return handle
