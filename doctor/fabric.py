"""The fabric manager, which sets up the switches between GPUs."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, fail, warn
from host import limits, nvidia
from host.machine import Machine

_LOG = "/var/log/fabricmanager.log"
_TALOS = "/var/log/ext-nvidia-fabricmanager.log"
_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_NO_SWITCH = "NV_WARN_NOTHING_TO_DO"
OF_HOST = (
    "the switches of a virtual machine's GPUs are set up by its host, and none is seen here",
    (
        "on the hypervisor: FABRIC_MODE=1 (2 for virtual GPUs) in fabricmanager.cfg, and the"
        " partition of these GPUs activated (fmpm -a); in the guest it need not run"
    ),
)
"""In a virtual machine: why its GPUs have no fabric, and what helps."""
_WITHOUT_IB = (
    "it reaches this board's switches by InfiniBand, and no module for that is loaded",
    (
        "sudo modprobe -a mlx5_ib ib_umad (of linux-modules-extra-$(uname -r) on Ubuntu, of"
        " kernel-modules-extra or DOCA's packages elsewhere); sudo systemctl restart"
        " nvidia-fabricmanager"
    ),
)
_NONE_FOUND = (
    "it found none of this board's switches, though modules for InfiniBand are loaded",
    (
        "sudo systemctl restart nvidia-fabricmanager; if it stays: ibstat has to show the switches'"
        " ports; power the machine off and on, or have the board serviced"
    ),
)
_HANGS = (
    "the fabric manager runs, and does not get done with it",
    (
        "end what uses the GPUs; sudo systemctl restart nvidia-fabricmanager, or reboot; if it"
        " stays so, its log says why: sudo tail /var/log/fabricmanager.log; it must be of the"
        " driver's version"
    ),
)
# What it says as it gives up; why; what helps.
_CAUSES = (
    (
        "number of NVSwitches don't match",
        "it finds fewer switches than such a board has (error 802): one is gone from the bus",
        (
            "power the machine off and on (a reboot is not enough); if it comes back, have the"
            " board serviced"
        ),
    ),
    (
        '"ib_umad" has not been loaded',
        "it reaches this board's switches by InfiniBand, whose module ib_umad is not loaded",
        (
            "sudo modprobe ib_umad; echo ib_umad | sudo tee /etc/modules-load.d/ib_umad.conf; sudo"
            " systemctl restart nvidia-fabricmanager"
        ),
    ),
    (
        "FABRIC_NODE_CONFIG_FILE has an invalid value",
        "its configuration names a file that is not there, and it refuses to start",
        (
            "FABRIC_NODE_CONFIG_FILE= in fabricmanager.cfg names one that is (Talos: a newer"
            " extension nvidia-fabricmanager); then restart it"
        ),
    ),
    (
        _NO_SWITCH,
        "this board's switches want NVLink's subnet manager, which is not here",
        "install nvlsm (and infiniband-diags), and sudo systemctl restart nvidia-fabricmanager",
    ),
)
_AGAIN = (
    "end what uses the GPUs; sudo systemctl stop nvidia-fabricmanager; sudo nvidia-smi -r; sudo"
    " systemctl start nvidia-fabricmanager; or reboot; until then NCCL_NVLS_ENABLE=0"
)


def cause(machine: Machine) -> tuple[str, str] | None:
    """Why it does not start, as it says itself, and what helps."""
    said = "".join(machine.read(file) or "" for file in (_LOG, _TALOS))
    said += machine.run("journalctl", "-u", "nvidia-fabricmanager", "-b").out[-20000:]
    modules = machine.read("/proc/modules") or ""
    new = any(re.search(r"\bB[23]00\b", gpu.name) for gpu in nvidia.ask(machine)[1])
    amazons = "Amazon" in (machine.read("/sys/class/dmi/id/sys_vendor") or "")  # whole boards
    own = amazons or not kind.is_guest(machine)
    if new and modules and "ib_umad " not in modules and own:
        if "mlx5_ib " not in modules:
            return _WITHOUT_IB
        said += '"ib_umad" has not been loaded'
    for sign, why, fix in _CAUSES:
        if sign not in said:
            continue
        if sign == _NO_SWITCH and _has_own_switches(machine):
            return OF_HOST
        if sign == _NO_SWITCH and machine.exists("/opt/nvidia/nvlsm/sbin/nvlsm"):
            loaded = re.findall(r"(?m)^(mlx5_ib|ib_umad) ", machine.read("/proc/modules") or "")
            return _NONE_FOUND if len(loaded) == 2 else _WITHOUT_IB
        return why, fix
    log = re.search(r"^LOG_FILE_NAME=(/.+)/", machine.read(_CONFIG) or "", re.MULTILINE)
    beside = machine.names(log.group(1).rpartition("/")[0]) if log else []
    if log is None or not beside or machine.exists(log.group(1)):
        runs = machine.run("systemctl", "is-active", "nvidia-fabricmanager").out.strip() == "active"
        return _HANGS if runs else None
    return (
        f"it is to write its log into {log.group(1)}, which is not there, and refuses to start",
        (
            f"sudo mkdir -p {log.group(1)}, or LOG_FILE_NAME= in {_CONFIG} names another folder;"
            " then sudo systemctl restart nvidia-fabricmanager"
        ),
    )


def _has_own_switches(machine: Machine) -> bool:
    """Whether boards with such GPUs, before Blackwell, have NVSwitches on PCIe, without nvlsm."""
    names = [gpu.name for gpu in nvidia.ask(machine)[1]]
    return kind.is_guest(machine) and any(re.search(r"\b[AH][128]00\b|H20\b", n) for n in names)


def switches(machine: Machine) -> Finding | None:
    """What sets up the switches between GPUs does not run, on a machine that has some."""
    if limits.in_container(machine.root):
        return None
    if not any(re.fullmatch(r"nvidia-nvswitch\d+", name) for name in machine.names("/dev")):
        return None
    forgotten = _forgotten(machine)
    if forgotten is not None:
        return forgotten
    said = machine.run("systemctl", "is-active", "nvidia-fabricmanager").out.strip()
    states = [gpu.text("fabric.state") or "" for gpu in nvidia.health(machine)]
    done = bool(states) and all(state == "Completed" for state in states)
    # What cannot be asked is not said; and it may run in a container.
    if said not in ("inactive", "failed") or (said == "inactive" and done):
        return None
    if done:
        return fail(
            "GPU health",
            f"there are NVSwitches, and nvidia-fabricmanager is {said}, after it had set them up",
            "what wants more of the switches ends with error 802: NVLink SHARP, new links",
            "end what uses the GPUs; sudo nvidia-smi -r; sudo systemctl restart"
            " nvidia-fabricmanager; until then NCCL_NVLS_ENABLE=0",
        )
    why, fix = cause(machine) or (
        "CUDA does not start on any of the GPUs (error 802)",
        (
            "install nvidia-fabricmanager of the driver's own version, and sudo systemctl enable"
            " --now nvidia-fabricmanager"
        ),
    )
    return fail("GPU health", f"there are NVSwitches, and nvidia-fabricmanager is {said}", why, fix)


def rack(machine: Machine) -> Finding | None:
    """A tray of a rack whose GPUs share memory with other machines', which nobody sets up."""
    nodes = machine.read("/etc/nvidia-imex/nodes_config.cfg") or ""
    named = [line for line in nodes.split("\n") if line.strip() and not line.startswith("#")]
    said = machine.run("systemctl", "is-active", "nvidia-imex").out.strip()
    racked = any("GB200" in gpu.name or "GB300" in gpu.name for gpu in nvidia.ask(machine)[1])
    if not racked or len(named) < 2:
        return None
    channels = "nvidia-caps-imex-channels"
    # A job may be given another one than channel0; and some get theirs with the job alone.
    none = f" {channels}" in (machine.read("/proc/devices") or "") and not machine.names(
        f"/dev/{channels}"
    )
    if none and (said != "active" or limits.in_job(machine.environ, machine.root)):
        return warn(
            "GPU health",
            f"a machine of a rack, and /dev/{channels} holds no channel",
            "NCCL may not share memory with other machines' GPUs (operation not permitted)",
            "options nvidia NVreg_CreateImexChannel0=1 in /etc/modprobe.d, and reboot; a container:"
            f" hand over /dev/{channels}",
        )
    if said != "failed":  # some start it with a job
        return None
    return warn(
        "GPU health",
        f"nvidia-imex is {said}, on a machine of a rack",
        "NCCL gets to other machines' GPUs not by NVLink, but by the network, or not at all",
        "sudo systemctl enable --now nvidia-imex, on all machines of its domain",
    )


def _forgotten(machine: Machine) -> Finding | None:
    """It was started anew while the GPUs kept what they had from the one before."""
    said = (machine.read(_LOG) or "").rpartition("Successfully configured")[2]
    if "in the multicast team" not in said:
        return None
    return warn(
        "GPU health",
        "nvidia-fabricmanager was started again, and no longer knows the GPUs (its log: multicast)",
        "NVLink SHARP fails: NCCL says Cuda failure 1, invalid argument",
        _AGAIN,
    )
