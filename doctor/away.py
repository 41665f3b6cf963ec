"""What keeps a GPU from driver or bus: tools that switch it off, and what they leave behind."""

from __future__ import annotations

import re
from typing import Callable

from doctor import distribution, kind, log
from doctor.finding import Finding, fail, warn
from host import limits, nvidia, pci
from host.machine import Machine

_LAST_FOR_MAXWELL = 580
ASIDE = ("vfio-pci", "nvgrace-gpu-vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback")
"""Drivers that hold a card for a virtual machine."""
# Not `blacklist nvidiafb`, which every Ubuntu has, nor `install nvidia modprobe …`, Debian's own.
_AWAY = re.compile(
    r"^\s*(blacklist\s+nvidia\s*$|alias\s+nvidia\s+off\b|install\s+nvidia\s+\S*(true|false)\b)",
    re.MULTILINE,
)
_ASUS = "/sys/devices/platform/asus-nb-wmi/dgpu_disable"


def switched_off(machine: Machine) -> tuple[str, str] | None:
    """What keeps NVIDIA's module away, and the command that takes that back."""
    for folder in ("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d"):
        for name in machine.names(folder):
            text = machine.read(f"{folder}/{name}") or ""
            if _AWAY.search(text):
                tools = {
                    "supergfx": "sudo supergfxctl -m Hybrid",
                    "EnvyControl": "sudo envycontrol -s hybrid",
                    "system76-power": "sudo system76-power graphics hybrid",
                }
                file = f"{folder}/{name}"
                fix = next((fix for word, fix in tools.items() if word in name + text), None)
                if fix is None and machine.has("prime-select"):
                    # openSUSE's has another word for it than Ubuntu's.
                    suse = "suse" in distribution.names(machine)
                    fix = f"sudo prime-select {'offload' if suse else 'on-demand'}"
                seen = f"{file} keeps its module from being loaded"
                first = f"sudo mv {file} {file}.off && sudo {distribution.initramfs(machine)}"
                return seen, f"{fix or first} && sudo reboot"
    if (machine.read("/etc/prime-discrete") or "") in ("off", "intel"):
        return "prime-select has switched it off", "sudo prime-select on-demand && sudo reboot"
    return None


def given_back(machine: Machine, address: str) -> str:
    """How a card is taken for good from what holds it, by where that was asked for."""
    if re.search(r'"mode"\s*:\s*"Vfio"', machine.read("/etc/supergfxd.conf") or ""):
        return (
            'sudo supergfxctl -m Hybrid (where it hangs: "mode": "Hybrid" in /etc/supergfxd.conf),'
            " and reboot"
        )
    first = distribution.initramfs(machine)
    if "truenas" in distribution.names(machine):
        return (
            "take it out of Isolated GPU Devices (System, Advanced Settings), then"
            f" {distribution.install(machine)}"
        )
    given = re.search(
        r"(?<!\S)(?:vfio[-_]pci\.ids|pci-stub\.ids|xen-pciback\.hide)=",
        machine.read("/proc/cmdline") or "",
    )
    if given:
        return f"take {given.group()} off the kernel's command line (boot entry), and reboot"
    named = _by_file(machine, first) or _by_guest(machine, address)
    if named is not None:
        return named
    fix = f"sudo driverctl unset-override {address}"
    if address in (machine.read("/boot/config/vfio-pci.cfg") or ""):
        fix = "untick it in Tools, System Devices (Unraid), and reboot"
    elif not machine.has("driverctl") and machine.exists("/var/lib/vastai_kaalia"):
        fix = "sudo python3 /var/lib/vastai_kaalia/enable_vms.py off, and reboot"
    elif not machine.has("driverctl") and machine.has("virsh"):
        node = re.sub(r"[:.]", "_", address)
        fix = f"end the guest that has it, and sudo virsh nodedev-reattach pci_{node}"
    return fix


def _by_file(machine: Machine, initramfs: str) -> str | None:
    """How it is taken back from a file of modprobe's that gives it away."""
    for name in machine.names("/etc/modprobe.d"):
        said = machine.read(f"/etc/modprobe.d/{name}") or ""
        script = re.search(r"(?m)^\s*install\s+vfio[-_]pci\s+(/\S+)", said)
        named = re.search(r"^\s*options\s+vfio[-_]pci\s.*\bids=", said, re.MULTILINE)
        if script or named:
            calls = f", which calls {script.group(1)}" if script else ""
            return (
                f"take its line out of /etc/modprobe.d/{name}{calls}; sudo {initramfs}; sudo reboot"
            )
    return None


def _by_guest(machine: Machine, address: str) -> str | None:
    """How it is taken back from a guest of Proxmox."""
    folder, slot = "/etc/pve/qemu-server", address.rpartition(".")[0]
    # Without its domain and its function it is the same card; a mapping has names of its own.
    card = rf"(?:{re.escape(slot)}|{re.escape(slot.partition(':')[2])})\b"
    mapping = machine.read("/etc/pve/mapping/pci.cfg") or ""
    blocks = re.findall(r"(?m)^([\w-]+)\n((?:[ \t].*\n?)*)", mapping)
    kept = [name for name, text in blocks if re.search(rf"path={card}", text)]
    card = "|".join([card, *(rf"mapping={re.escape(name)}(?![\w-])" for name in kept)])
    for name in machine.names(folder):
        text = machine.read(f"{folder}/{name}") or ""
        if re.search(rf"(?m)^hostpci\d+:.*?(?<![\w.:])(?:{card})", text):
            guest = name.partition(".")[0]
            return f"sudo qm shutdown {guest}, take hostpci out of its hardware, and reboot"
    return None


def _removing(machine: Machine) -> str | None:
    """A rule of udev, or of tmpfiles, that takes NVIDIA's GPUs off the bus."""
    for folder in (
        "/etc/udev/rules.d",
        "/lib/udev/rules.d",
        "/usr/lib/udev/rules.d",
        "/run/udev/rules.d",
    ):
        for name in machine.names(folder):
            for row in (machine.read(f"{folder}/{name}") or "").splitlines():
                ours = "0x10de" in row and "0x03" in row.replace("0x0c03", "")
                if ours and re.search(r'^[^#]*ATTR\{remove\}\s*=\s*"1"', row):
                    return f"{folder}/{name}"
    # It does not say whose address it is; a GPU's name, or a tool's, does.
    sign = re.compile(r"(?m)^w\S* +/sys/bus/pci/devices/[0-9a-f:.\\]+\.0/remove ")
    for name in machine.names("/etc/tmpfiles.d"):
        text = machine.read(f"/etc/tmpfiles.d/{name}") or ""
        if sign.search(text) and re.search("gpu|nvidia|envycontrol", name + text, re.IGNORECASE):
            return f"/etc/tmpfiles.d/{name}"
    return None


def gone(machine: Machine) -> Finding | None:
    """The driver is here, and no GPU is on the bus; None where none is to be expected."""
    if limits.in_container(machine.root) or not machine.has("nvidia-smi"):
        return None
    unwell = fail if machine.environ.get("GPUS") else warn
    rule = _removing(machine)
    if rule is not None:
        tool = "prime-select on-demand, or supergfxctl -m Hybrid; where neither is there any more:"
        if "EnvyControl" in (machine.read(rule) or ""):
            tool = "sudo envycontrol -s hybrid && sudo reboot; where that is not there any more:"
        return unwell(
            "driver",
            f"no NVIDIA GPU is on the bus: {rule} takes it off at each boot",
            "a tool that switches laptops' GPUs has left that rule: it trains on the CPU",
            f"{tool} sudo rm {rule} && sudo reboot",
        )
    if _is_of_job(machine):
        return unwell(
            "driver",
            "no NVIDIA GPU is on this node's bus, and the job asked for none",
            "it trains on the CPU",
            "ask for one: #SBATCH --gres=gpu:1, or srun --gres=gpu:1",
        )
    return None if _is_amds(machine) else _off_the_bus(machine, unwell)


def _is_of_job(machine: Machine) -> bool:
    """Whether this is a job of Slurm's that asked for no GPU, and was not told to do without."""
    asked = limits.job_gpus(machine.environ) is not None or machine.environ.get("CPUS")
    return "SLURM_JOB_ID" in machine.environ and not asked


def _is_amds(machine: Machine) -> bool:
    """Whether it is an image with NVIDIA's driver, on a machine of AMD's."""
    image = machine.exists("/dev/kfd") and machine.exists("/run/ostree-booted")
    return image and not any(map(machine.exists, (_ASUS, "/etc/supergfxd.conf")))


def _off_the_bus(machine: Machine, unwell: Callable[..., Finding]) -> Finding | None:
    """No GPU is there, where the kernel or the machine says that there was one."""
    untrained = log.last(machine, "retraining non-functional downstream link|retraining failed")
    port = re.search(r"\b([\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d)\b", untrained or "")
    if port:
        return unwell(
            "driver",
            f"no NVIDIA GPU is on the bus, and the link at {port.group(1)} does not come up",
            "what is plugged in there does not answer: a riser, or a slot set too fast for it",
            "set the slot's PCIe generation lower in the BIOS, another riser or none; seat the card"
            " and its power plugs again",
        )
    if not log.last(machine, r"NVRM: No NVIDIA (GPU|graphics adapter) found"):
        switched = machine.exists(_ASUS)
        # The card of a Surface Book is in its keyboard.
        laptop = kind.is_laptop(machine) or "surface_dtx" in (machine.read("/proc/modules") or "")
        if not switched and not (laptop and nvidia.on_disk(machine)):
            return None
    if kind.is_guest(machine):
        return unwell(
            "driver",
            "the driver is installed, and this virtual machine was given no NVIDIA GPU, or lost it",
            "it trains on the CPU",
            "at a cloud: stop and start it, which moves it to another host; or a size with a GPU"
            if kind.is_rented(machine)
            else "pass one through on the machine that runs it (KVM, ESXi, Hyper-V; VirtualBox and"
            " VMware Workstation cannot), or train there",
        )
    return unwell(
        "driver",
        "the driver is installed, and no NVIDIA GPU is on the bus",
        "it is switched off, or an external one not plugged in; or its link does not come up",
        "a laptop: switch it to Hybrid, echo 1 | sudo tee /sys/bus/pci/rescan, or switch it on in"
        " the BIOS; a riser: set the slot's PCIe generation lower in the BIOS; else seat the card"
        " and its power plugs again",
    )


def _is_meant(machine: Machine, card: pci.Card) -> bool:
    """Whether somebody has given a card to nouveau by name."""
    return (machine.read(f"{card.path}/driver_override") or "").strip() == "nouveau"


def taken(machine: Machine, count: int) -> Finding | None:
    """Another driver has a GPU beside the `count` that NVIDIA's lists."""
    cards = [] if limits.in_container(machine.root) else pci.cards(machine)
    major = (nvidia.loaded(machine) or "").partition(".")[0]
    open_ = "Open Kernel Module" in (machine.read("/proc/driver/nvidia/version") or "")
    old = major.isdecimal() and int(major) <= _LAST_FOR_MAXWELL and not open_
    # One that this driver does not know may well drive a screen.
    known = (card for card in cards if card.has_gsp or (old and card.is_maxwell))
    other = [card for card in known if card.driver == "nouveau" and not _is_meant(machine, card)]
    if not other:
        return None
    initramfs = distribution.initramfs(machine)
    return warn(
        "all GPUs",
        f"{count} listed; nouveau holds another one: {other[0].address}",
        "nouveau cannot compute, and was there before NVIDIA's driver",
        distribution.KEPT_AWAY.format(more="", initramfs=initramfs) + " && sudo reboot",
    )
