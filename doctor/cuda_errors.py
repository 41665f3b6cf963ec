"""Whether CUDA starts, what its errors mean, and what helps."""

from __future__ import annotations

import re
from dataclasses import replace

from doctor import distribution, kind, log, pytorch, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, visible
from host.machine import NO_ANSWER, Machine
from host.text import whole

_FIRST = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"

# CUDA's error numbers as torch prints them, what each means, and what helps.
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
ERRORS = {
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
    "34": (
        "a CUDA toolkit's stub is found in the place of the driver's libcuda",
        "take that folder (stubs) out of LD_LIBRARY_PATH",
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
    "807": (
        "NVIDIA's MPS takes no new program: it serves another user, or is stuck",
        (
            "echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d   # or unset"
            " CUDA_MPS_PIPE_DIRECTORY"
        ),
    ),
    "805": (
        "CUDA is told to go through MPS, whose daemon does not answer",
        "nvidia-cuda-mps-control -d   # or unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    "802": (
        "the switch between the GPUs is not up: no fabric manager, or one of another version",
        (
            "install nvidia-fabricmanager of the driver's very version where there is none, and"
            " sudo systemctl enable --now nvidia-fabricmanager; then nvidia-smi -q | grep -A2"
            " Fabric; in a confidential machine: sudo nvidia-smi conf-compute -srs 1"
        ),
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
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm (a container's host), or reboot",
    ),
}
# Before what CUDA says torch puts a question of its own.
_PREAMBLE = re.compile(r"^.*already set an error\? *")
_WORDS = {
    "too old": ("35", "this torch needs a newer driver", "CUDA=auto make train, or upgrade it"),
    "driver initialization failed": ("3", *ERRORS["3"]),
    "unknown error": ("999", *ERRORS["999"]),
    "busy or unavailable": ("46", *ERRORS["46"]),
    "uncorrectable ECC": ("214", *ERRORS["214"]),
    "no kernel image": ("209", *ERRORS["209"]),
    "out of memory": ("2", *ERRORS["2"]),
    "No CUDA GPUs are available": ("100", *ERRORS["100"]),
    "Found no NVIDIA driver": (
        "35",
        "this container or environment does not reach the driver's libcuda",
        "docker run --gpus all, or make train; on the host: nvidia-smi, and make doctor",
    ),
}


def starts(machine: Machine) -> Finding:
    """The driver's own CUDA starts, of which nvidia-smi says nothing."""
    if not visible.seen(machine):
        return skip("CUDA starts", "no GPU")
    answer = machine.run("python3", "-c", _FIRST, seconds=60)
    if answer.code == NO_ANSWER:
        return fail(
            "CUDA starts",
            "it does not come back within a minute",
            "what computes on a GPU would wait for ever",
            "sudo dmesg | grep -iE 'nvrm|xid'; then sudo reboot",
        )
    usual = ("nothing can be computed on the GPUs", "nvidia-smi; sudo dmesg | tail")
    number = whole(answer.out.strip())
    if answer.code < 0:
        return fail("CUDA starts", f"no: its library ends what starts it ({-answer.code})", *usual)
    if number is None:
        return _by_torch(machine)
    if number == 0:
        return ok("CUDA starts", "yes")
    # Another library than the driver's own may be found first; a container has its own.
    unwell = warn if machine.environ.get("LD_LIBRARY_PATH") else fail
    meant = _here(machine, str(number)) or ERRORS.get(str(number), usual)
    return unwell("CUDA starts", f"no: error {number}", *meant)


def _here(machine: Machine, number: str) -> tuple[str, str] | None:
    """What an error with several causes means on this machine; None: what it mostly does."""
    by_hmm = (machine.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") or "").strip()
    nix = "/run/opengl-driver/lib"
    if number in ("3", "999") and wsl.is_windows(machine):
        return (
            (
                "Windows' driver and its kernel for Linux do not go together any more, as after an"
                " upgrade of the one while the other ran"
            ),
            "in Windows: wsl --shutdown; else restart it, NVIDIA's newest driver, wsl --update",
        )
    if number == "999":  # WSL and Jetsons have other devices
        other = wsl.is_windows(machine) or kind.is_jetson(machine)
        return None if other else _unknown(machine)
    if number == "3" and by_hmm == "N":
        return (
            "CUDA does not start, though the driver answers: with some kernels by HMM, which is on",
            (
                "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, sudo"
                f" {distribution.initramfs(machine)}, and reboot; else {ERRORS['3'][1]}"
            ),
        )
    if number == "35" and "libcuda.so.1" in machine.names(nix):
        return (
            f"libcuda lies in {nix}, where this python does not look for it",
            f"export LD_LIBRARY_PATH={nix}; for good: programs.nix-ld, or nixpkgs' own torch",
        )
    if number == "2" and wsl.is_windows(machine) and len(visible.seen(machine)) > wsl.MANY:
        return (
            "under WSL CUDA often does not start with four GPUs or more",
            "export CUDA_VISIBLE_DEVICES=0,1,2",
        )
    return None


def _unknown(machine: Machine) -> tuple[str, str] | None:
    """What CUDA's unknown error comes from, and what helps."""
    names = machine.names("/dev")
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    if inside and names and "nvidia-uvm" not in names:
        return (
            "/dev/nvidia-uvm is not in this container, and CUDA does not start without",
            "hand it over, as the row `driver` says",
        )
    symbol = log.last(machine, r"nvidia_uvm: (?:Unknown symbol|module using GPL-only symbols)")
    if names and "nvidia-uvm" not in names and symbol:
        return (
            "this kernel refuses the module nvidia_uvm (a symbol that it does not give away)",
            "a newer driver, which knows this kernel; or boot the kernel that was there before",
        )
    if names and "nvidia-uvm" not in names:
        loaded = "nvidia_uvm " in (machine.read("/proc/modules") or "")
        return (
            "the module nvidia_uvm is loaded, and its device /dev/nvidia-uvm is not there"
            if loaded
            else "the module nvidia_uvm is not loaded, and no program may load it",
            (
                "sudo nvidia-modprobe -u -c=0, or sudo modprobe nvidia_uvm; at each boot: echo"
                " nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"
            ),
        )
    params = machine.read("/proc/driver/nvidia/params") or ""
    if inside or "PreserveVideoMemoryAllocations: 0" not in params:
        return None
    why, fix = ERRORS["999"]
    return (
        why,
        (
            f"{fix}; so that it lasts: options nvidia NVreg_PreserveVideoMemoryAllocations=1 in"
            " /etc/modprobe.d, sudo systemctl enable nvidia-suspend nvidia-resume, and"
            " reboot"
        ),
    )


def _by_torch(machine: Machine) -> Finding:
    """Where python3 finds no libcuda, a PyTorch of its own may."""
    told = pytorch.ask(machine, pytorch.STARTS)
    words, answer = told if told is not None else ([], None)
    if words[1:] == ["True"]:
        return ok("CUDA starts", "yes")
    said = answer.err.partition("CUDA initialization: ")[2].strip() if answer and words else ""
    # What is built for another CUDA, or for none, has a row of its own.
    if not said or "too old" in said:
        return skip("CUDA starts", "not known: there is no python3 that finds libcuda.so.1")
    found = judge(said.splitlines()[0])
    number = re.match(r"error (\d+):", found.seen)
    here = _here(machine, number.group(1)) if number else None
    why, fix = here or (found.why, found.fix)
    return replace(
        found, name="CUDA starts", seen=f"no, says PyTorch: {found.seen}", why=why, fix=fix
    )


def judge(said: str) -> Finding:
    """A failure of CUDA's first call, by its number or its words."""
    said = _PREAMBLE.sub("", said)
    found = re.search(r"Error (\d+): ([^(]*)", said)
    if found and found.group(1) in ERRORS:
        why, fix = ERRORS[found.group(1)]
        return fail("CUDA", f"error {found.group(1)}: {found.group(2).strip()}", why, fix)
    for words, (number, why, fix) in _WORDS.items():
        if words in said:
            return fail("CUDA", f"error {number}: {said[:120]}", why, fix)
    return fail(
        "CUDA", said[:160], "nothing can be computed on the GPUs", "nvidia-smi; sudo dmesg | tail"
    )
