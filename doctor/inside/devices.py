"""What torch was built for, what it sees, and whether it computes there."""

from __future__ import annotations

import platform
import re
import warnings

import pynvml
import torch

from doctor.finding import Finding, fail, ok, skip
from host import nvidia, visible
from host.machine import Machine

# CUDA's error numbers as torch prints them, what each means, and what helps.
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
_ERRORS = {
    "2": (
        "a GPU's memory is full before anything was computed: other programs hold it",
        "nvidia-smi   # who is there; GPUS=free takes another one",
    ),
    "3": (
        "CUDA does not start, though the driver answers: mostly the module for its memory",
        (
            "ls -l /dev/nvidia-uvm   # in a container: --gpus all; else sudo modprobe -r nvidia_uvm"
            " && sudo modprobe nvidia_uvm; if it stays, with open modules: options nvidia_uvm"
            " uvm_disable_hmm=1 in /etc/modprobe.d, and reboot"
        ),
    ),
    "36": (
        "this torch asks the driver for what only a newer one does",
        "CUDA=auto make train, or upgrade the driver",
    ),
    "209": (
        "this torch has no kernels for this GPU",
        "CUDA=auto make train, or hide it with CUDA_VISIBLE_DEVICES",
    ),
    "214": (
        "an error in the GPU's memory that could not be corrected",
        "sudo nvidia-smi --gpu-reset; if it comes back, have the GPU replaced",
    ),
    "304": (
        "the system does not let CUDA open its devices",
        "sudo modprobe nvidia_uvm; ls -l /dev/nvidia*; in a container: --gpus all",
    ),
    "500": (
        "libcuda is not of the driver's version; under WSL, the toolkit is too old for the driver",
        "update nvidia-container-toolkit, Docker Desktop, WSL (wsl --update); else sudo ldconfig",
    ),
    "805": (
        "CUDA is told to go through MPS, whose daemon does not answer",
        "nvidia-cuda-mps-control -d   # or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    "802": (
        "the switch between the GPUs is not up: no fabric manager, or one of another version",
        "sudo systemctl enable --now nvidia-fabricmanager; then nvidia-smi -q | grep -A2 Fabric",
    ),
    "803": (
        "libcuda is not of the driver's version: it was upgraded, or another one is found first",
        "sudo reboot; or unset LD_LIBRARY_PATH, and remove cuda-compat-* from host or image",
    ),
    "804": (
        "a forward-compatibility libcuda hides the driver's own; it works on data centre GPUs only",
        "sudo apt-get remove 'cuda-compat-*'; in an image: rm -rf /usr/local/cuda*/compat",
    ),
    "100": (
        "no GPU is left for this process",
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all, or make train",
    ),
    "101": (
        "CUDA_VISIBLE_DEVICES names a GPU that is not there, or one twice",
        "nvidia-smi -L; unset CUDA_VISIBLE_DEVICES",
    ),
    "46": (
        "a GPU is set aside for one process, waits for a reset, has no MIG instance, or no licence",
        "nvidia-smi -q -d COMPUTE; sudo nvidia-smi -c DEFAULT; make doctor says of a reset",
    ),
    "999": (
        "the module for CUDA's memory lost its devices, as after suspend",
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or reboot",
    ),
}
# Before what CUDA says torch puts a question of its own.
_PREAMBLE = re.compile(r"^.*already set an error\? *")
_WORDS = {
    "too old": ("35", "this torch needs a newer driver", "CUDA=auto make train, or upgrade it"),
    "driver initialization failed": ("3", *_ERRORS["3"]),
    "unknown error": ("999", *_ERRORS["999"]),
    "busy or unavailable": ("46", *_ERRORS["46"]),
    "uncorrectable ECC": ("214", *_ERRORS["214"]),
    "no kernel image": ("209", *_ERRORS["209"]),
    "out of memory": ("2", *_ERRORS["2"]),
    "No CUDA GPUs are available": ("100", *_ERRORS["100"]),
    "Found no NVIDIA driver": (
        "35",
        "this container or environment does not reach the driver's libcuda",
        "docker run --gpus all, or make train; on the host: nvidia-smi, and make doctor",
    ),
}


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
    return judge(said)


def judge(said: str) -> Finding:
    """A failure of CUDA's first call, by its number or its words."""
    said = _PREAMBLE.sub("", said)
    found = re.search(r"Error (\d+): ([^(]*)", said)
    if found and found.group(1) in _ERRORS:
        why, fix = _ERRORS[found.group(1)]
        return fail("CUDA", f"error {found.group(1)}: {found.group(2).strip()}", why, fix)
    for words, (number, why, fix) in _WORDS.items():
        if words in said:
            return fail("CUDA", f"error {number}: {said[:120]}", why, fix)
    return fail(
        "CUDA", said[:160], "nothing can be computed on the GPUs", "nvidia-smi; sudo dmesg | tail"
    )


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
