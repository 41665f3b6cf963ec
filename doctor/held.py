"""Why a GPU that NVIDIA's module holds is listed by nobody."""

from __future__ import annotations

import re
from typing import Callable

from doctor import distribution, kind, log, reasons, ungiven
from doctor.finding import Finding, fail
from host import limits, nvidia, pci
from host.machine import Machine

# A world of its own, without the driver's programs; and the way out of it.
_CLOSED = (
    (
        kind.is_apptainer,
        "this container (Apptainer) was started without the driver's libraries",
        "start it with --nv: apptainer exec --nv …",
    ),
    (
        kind.is_flatpak,
        "this shell is within a Flatpak, where the system's programs are not",
        "flatpak-spawn --host bash; or install the editor as a package, not as a Flatpak",
    ),
    (
        lambda machine: "alpine" in distribution.names(machine),
        "this is Alpine, whose musl does not run the driver's libraries, nor PyTorch",
        "take an image, or a distribution, with glibc: Debian, Ubuntu, Fedora",
    ),
)
_CPU = "or train on the CPU: CPUS=1"
_OWN_DEV = r"(?m)^tmpfs /dev tmpfs"  # where the system's is a devtmpfs
_MOUNTED = "/usr/local/nvidia"  # where Kubernetes' plugins mount the driver
_CONTROL = "/dev/nvidiactl"


def examine(
    machine: Machine, cards: list[pci.Card], on_bus: str, unwell: Callable[..., Finding]
) -> Finding:
    """NVIDIA's module holds it, and nvidia-smi is missing or lists nothing."""
    if not machine.has("nvidia-smi"):
        return _without_smi(machine, on_bus, unwell)
    kept = _kept_from(machine, on_bus, unwell) or _closed(machine, on_bus, unwell)
    if kept is not None:
        return kept
    bare = _no_devices(machine)
    if bare is not None:
        why, fix = bare
        seen = f"{on_bus}, held by nvidia, and /dev has no nvidiactl"
        return fail("driver", seen, why, f"{fix}; {_CPU}")
    answer, _ = nvidia.ask(machine)
    rows = [row for row in answer.said.splitlines() if row.strip()]
    said = (rows or ["nothing"])[-1][:120]
    known = reasons.logged(machine, cards)
    if known is not None:
        seen, why, fix = known
        return fail("driver", f"{on_bus}; nvidia-smi says: {said}; {seen}", why, f"{fix}; {_CPU}")
    service = _holder(machine)
    if service is not None:
        return fail(
            "driver",
            f"{on_bus}, and nvidia-smi says: {said}; {service} holds the driver's lock",
            "all that opens the GPU waits for it, and cannot be ended",
            f"sudo systemctl mask {service} && sudo reboot; {_CPU}",
        )
    again = "sudo reboot"
    if log.last(machine, r"task nvidia-smi:\d+ blocked for more than|Xid.*: 62,"):
        again = "power the machine off, half a minute without current, and on (a restart may hang)"
    return fail(
        "driver",
        f"{on_bus}, and nvidia-smi says: {said}",
        "the driver is loaded and does not answer, as with a GPU that hangs",
        f"sudo dmesg | grep -iE 'nvrm|xid'; then {again}; {_CPU}",
    )


def _closed(machine: Machine, on_bus: str, unwell: Callable[..., Finding]) -> Finding | None:
    """A world in which the driver's programs do not run, or are not."""
    closed = next((rest for holds, *rest in _CLOSED if holds(machine)), None)
    if closed is None:
        return None
    return unwell("driver", f"{on_bus}, and {closed[0]}", "it trains on the CPU", closed[1])


def _holder(machine: Machine) -> str | None:
    """NVIDIA's service for which all others wait, says the kernel."""
    line = log.last(machine, r"task nvidia-.*likely owned by task nvidia-(powerd|persiste)\b") or ""
    service = re.search("owned by task (nvidia-[a-z]+)", line)
    # The kernel cuts names.
    return service.group(1).replace("persiste", "persistenced") if service else None


def _no_devices(machine: Machine) -> tuple[str, str] | None:
    """Why nobody has made the driver's devices, and what makes them; None: they are there."""
    names = machine.names("/dev")
    if not names or "nvidiactl" in names:
        return None
    if limits.in_container(machine.root) or kind.is_lxc(machine):  # to be handed over
        return None
    params = machine.read("/proc/driver/nvidia/params") or ""
    if re.search(r"^ModifyDeviceFiles: 0", params, re.MULTILINE):
        return (
            "the driver is told to make no devices (NVreg_ModifyDeviceFiles=0 in /etc/modprobe.d)",
            "take that out, and reboot; or let a rule of udev make them",
        )
    first = "" if machine.has("nvidia-modprobe") else "the package nvidia-modprobe, then "
    return (
        "without a screen nobody has made the driver's devices",
        (
            f"{first}sudo nvidia-modprobe -c=0 -u; for good: sudo systemctl enable --now"
            " nvidia-persistenced"
        ),
    )


def boxed(machine: Machine) -> str | None:
    """How a box of distrobox or Toolbx gets the driver's libraries, which the host has."""
    folders = [f"/run/host/usr/{lib}" for lib in ("lib64", "lib", "lib/x86_64-linux-gnu")]
    if not any("libnvidia-ml.so.1" in machine.names(folder) for folder in folders):
        return None
    if machine.exists("/run/.toolboxenv"):
        return (
            "a Toolbx of 2025 or newer hands them over: update it on the host, and enter this box"
            " anew; or train on the host"
        )
    return (
        "the host's libraries are in /run/host, and were not handed over: stop this box and"
        " enter it again; a distrobox newer than 1.6.0, made with --nvidia"
    )


def _without_smi(machine: Machine, on_bus: str, unwell: Callable[..., Finding]) -> Finding:
    """Nothing here asks the driver."""
    if machine.exists("/run/nvidia/driver/usr/bin/nvidia-smi"):
        return unwell(
            "driver",
            f"{on_bus}, and the driver is a container's (the GPU operator's)",
            "it is for pods: this machine's own programs find neither library nor device",
            "train in a pod that asks for nvidia.com/gpu; or install the driver on the machine",
        )
    if not nvidia.devices(machine):  # sysfs shows the host's cards in every container
        return ungiven.container(machine, unwell)
    closed = _closed(machine, on_bus, unwell)
    if closed is not None:
        return closed
    box = boxed(machine)
    if box is not None:
        seen = f"{on_bus}, and the driver's libraries were not handed into this box"
        return unwell("driver", seen, "CUDA does not start: it trains on the CPU", box)
    apart = mounted(machine)
    if apart is not None:
        return unwell(
            "driver",
            f"{on_bus}, and its libraries lie in {_MOUNTED}, where nobody looks for them",
            "CUDA does not start: it trains on the CPU",
            apart,
        )
    inside = limits.in_container(machine.root)
    lxc = kind.is_lxc(machine) and not inside
    fix = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    if inside and "NVIDIA_VISIBLE_DEVICES" not in machine.environ:  # its devices came another way
        fix = (
            "start the container with --gpus all (Compose: capabilities: [gpu]; a pod:"
            " resources.limits nvidia.com/gpu: 1): --privileged brings devices, and no library"
        )
    if lxc:
        version = nvidia.loaded(machine) or "VERSION"
        fix = (
            f"in the container: sudo sh NVIDIA-Linux-*-{version}.run --no-kernel-modules, of the"
            " host's own version"
        )
    if not inside and not lxc:
        major = (nvidia.loaded(machine) or "580").split(".")[0]
        apt = (
            f"sudo apt-get install nvidia-utils-{major}   # nvidia-utils-{major}-server beside"
            f" a -server driver; or, in a container, {fix}"
        )
        fix = distribution.utilities(machine, apt)
    return unwell(
        "driver",
        f"{on_bus}, {'given to this container' if inside or lxc else 'held by nvidia'}, and there"
        " is no nvidia-smi",
        "GPUs are counted by nvidia-smi: without it, it trains on the CPU",
        fix,
    )


def mounted(machine: Machine) -> str | None:
    """What has the driver's libraries found that Kubernetes' nodes mount into pods; None: none."""
    if not machine.exists(f"{_MOUNTED}/lib64"):
        return None
    paths = f"{_MOUNTED}/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} PATH=$PATH:{_MOUNTED}/bin"
    return f"export LD_LIBRARY_PATH={paths}"


def _kept_from(machine: Machine, on_bus: str, unwell: Callable[..., Finding]) -> Finding | None:
    """A job or a service from which the GPUs are kept."""
    if "SLURM_JOB_ID" in machine.environ and machine.run("test", "-r", _CONTROL).code == 1:
        return ungiven.job(machine, on_bus, unwell)
    if not nvidia.devices(machine) and re.search(_OWN_DEV, machine.read("/proc/mounts") or ""):
        return unwell(
            "driver",
            f"{on_bus}, and this service has a /dev of its own without them (PrivateDevices)",
            "it trains on the CPU",
            "systemd: PrivateDevices=no for the service; JupyterHub: c.SystemdSpawner."
            "isolate_devices = False; and start it anew",
        )
    bare = machine.names("/dev") and not any("nvidia" in name for name in machine.names("/dev"))
    if bare and kind.is_lxc(machine):
        return unwell(
            "driver",
            f"{on_bus}, and this LXC container has none of their devices",
            "nvidia-smi and CUDA see no driver: it trains on the CPU",
            "on the host: incus (lxc) config device add NAME gpu gpu; in Proxmox devN:"
            " /dev/nvidia0, nvidiactl and nvidia-uvm in its configuration; then start it anew",
        )
    return None
