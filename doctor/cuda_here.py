"""What an error of CUDA's means on this machine, where it has several causes."""

from __future__ import annotations

import re

from doctor import distribution, kind, log, sealed, wsl
from doctor.cuda_numbers import ERRORS
from host import limits, visible
from host.machine import Machine

_ADDRESSES = 1 << 38  # bytes; CUDA reserves as many as machine and GPUs have, and more


def meant(machine: Machine, number: str) -> tuple[str, str] | None:
    """What it means and what helps; None: what it mostly does."""
    if number == "802" and sealed.waits(machine):
        return sealed.UNREADY
    if number == "802" and (limits.in_container(machine.root) or kind.is_lxc(machine)):
        why, fix = ERRORS[number]
        return why, f"on the host: {fix}; if it is not yours, tell its owner, or take another"
    if number == "803" and limits.in_container(machine.root):
        return (
            "libcuda in this container is of another version than the host's driver",
            (
                "an image made for that driver, without cuda-compat and libraries of a driver of"
                " its own; or a host with a newer driver"
            ),
        )
    return _meant(machine, number)


def _meant(machine: Machine, number: str) -> tuple[str, str] | None:
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
    return _full(machine) if number == "2" else None


def _full(machine: Machine) -> tuple[str, str] | None:
    """Out of memory as CUDA starts, where no GPU's is full."""
    said = machine.read("/proc/self/limits") or ""
    bound = re.search(r"(?m)^Max (?:address space|data size) +(\d+)", said)
    if bound and int(bound.group(1)) < _ADDRESSES:
        return (
            "a limit of this shell's keeps CUDA from reserving addresses (ulimit -v, -d)",
            "ulimit -v unlimited; ulimit -d unlimited; see the row `limits`",
        )
    if wsl.is_windows(machine) and len(visible.seen(machine)) > wsl.MANY:
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
