"""What the kernel's log says of a card that does not start."""

from __future__ import annotations

import re

from doctor import branches, distribution, fallen, kind, log, room, sealed
from host import pci
from host.machine import Machine

# The second as kernels from 6.8 on say it.
_NO_ROOM = (
    r"BAR\d? is 0M|PCI I/O region assigned to your"
    r"|{card}: BAR \d+.*(no space|failed to assign|can't assign).*\[mem"
    r"|{card}: BAR \d+ \[mem.*(no space|failed to assign|can't assign)"
)
_FIRMWARE = r"(_kgspBootGspRm|GSP.*(fail|timeout|halt)|Xid.*: 1(19|20),)"
_HOPPER = range(0x2340, 0x2350)  # with a Grace beside it: the open modules alone drive it
_VERSION = "/proc/driver/nvidia/version"
_LEGACY = r"supported through the NVIDIA (\d+)\S* Legacy"
_NO_INTERRUPT = r"Can't find an IRQ for your NVIDIA card|No interrupts of any type are available"
_STARTS_NOT = r"RmInitAdapter failed|rm_init_adapter failed"
_UNKNOWN = r"installed in this system is not supported by the\s+NVIDIA [\d.]+ driver release"
# Sign, what is seen, why, and what helps; {card}: the address of one of the cards.
_LOG = (
    (
        r"remove device {card} with non-zero usage count",
        "it was unplugged, or taken from the driver, while a program had it (see dmesg)",
        "the driver waits for that program for ever, and nvidia-smi and CUDA hang with it",
        (
            "power machine and box off (a restart may hang as well), and on with the box attached;"
            " the next time end first what uses it: sudo fuser -v /dev/nvidia*"
        ),
    ),
    (
        r"libspdm expects LKCA but found stubs",
        "the driver was built without the kernel's cryptography (LKCA)",
        "in confidential mode it speaks to the card encrypted",
        "a newer driver: those of then do not find it in kernels from 6.13 on",
    ),
    (
        r"memmgrDeterminePageSize failed",
        "the driver cannot use this kernel's pages, of 16 KiB",
        "boards of ARM start such kernels",
        "a kernel of 4 KiB pages (Raspberry Pi 5: kernel=kernel8.img in config.txt), and reboot",
    ),
    (r"{card}.*(Unable to|Refused to|can't) change power state", *log.ASLEEP),
    (
        "No address space to allocate resized BAR1|Fatal Error while attempting to resize PCIe",
        "the driver would enlarge the card's window (BAR1), and there is no room for that",
        "it gives up the card then: told so by NVreg_EnableResizableBar=1, or by itself (595)",
        (
            "options nvidia NVreg_EnableResizableBar=0 in /etc/modprobe.d, in place of a 1 there"
            " (grep -r EnableResizableBar /etc/modprobe.d); build the initramfs anew (sudo"
            " update-initramfs -u, or dracut --force, or mkinitcpio -P), and reboot"
        ),
    ),
    (
        _NO_ROOM,
        "the card got no address space",
        "the firmware gave it no room below the addresses that it could use",
        "BIOS: Above 4G Decoding and Resizable BAR; else boot with pci=realloc",
    ),
    (
        r"64-bit BAR mapped above 4\s?GB",
        "its window lies above 4 GB, and the bridge above it has none there (dmesg: 64-bit BAR)",
        "the firmware or the kernel has placed it where the bridge does not reach",
        "update the BIOS, or change its setting Above 4G Decoding; else boot with pci=realloc",
    ),
    (
        r"failed to copy vbios to system memory",
        "the driver could not read the card's VBIOS (dmesg: failed to copy vbios)",
        "the laptop's firmware gave the card no power, or does not hand its VBIOS over",
        "newest BIOS; else boot with pcie_port_pm=off, or acpi_osi=! acpi_osi='Windows 2009'",
    ),
    (
        r"Xid.*: 79,|fallen off the bus|GPU lost from the bus",
        "it has fallen off the bus",
        "power, heat, riser, cable or the card itself",
        "power the machine off and on; then look at plugs, riser and cooling",
    ),
    (
        (
            r"Direct firmware load for nvidia/\S+ failed with error -2"
            r"|firmware: failed to load nvidia/\S+ \(-2\)"
        ),
        "a file of its firmware is not there (dmesg names it: Direct firmware load)",
        "driver and firmware come in two packages, and one is missing, or of another version",
        (
            "install the firmware of the driver's own version (Ubuntu: nvidia-firmware-…, Debian:"
            " firmware-nvidia-gsp, Fedora: the driver's packages again, openSUSE: kernel-firmware-"
            "nvidia-gspx-G06; NixOS: hardware.firmware ="
            " [ config.hardware.nvidia.package.firmware ];), then build the initramfs"
            " anew (sudo update-initramfs -u, or dracut --force), and reboot"
        ),
    ),
    (
        r"firmware load for nvidia/\S+ failed with error -4",
        "loading its firmware was interrupted: what opened it first was killed (dmesg: error -4)",
        "it stays as it is until the driver is loaded anew",
        (
            "with nothing on the GPUs: sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"
            " && sudo modprobe nvidia, or reboot; sudo systemctl enable --now nvidia-persistenced"
            " has them started by what nobody kills"
        ),
    ),
    (
        r"GSP firmware image version mismatch",
        "its module and its firmware (GSP) are of two versions: dmesg names them",
        "they were upgraded apart",
        (
            "bring both to one version: install the driver's packages again, build the module anew"
            " (sudo dkms autoinstall, or akmods --force) and the initramfs, and reboot; where the"
            " built module still has the old number, take the older firmware package"
        ),
    ),
    (
        _FIRMWARE,
        "its firmware (GSP) does not start or does not answer",
        "a fault of driver or card; the next boot may do",
        (
            "power the machine off, half a minute without current, and on; then update the driver,"
            " or take the release before where an update brought it;"
            " with closed modules also: options nvidia NVreg_EnableGpuFirmware=0 in /etc/modprobe.d"
        ),
    ),
    # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/971
    (
        r"Failed to update Rx Detect Link mask",
        "the state of its NVLinks cannot be had any more (dmesg: Rx Detect Link mask)",
        "a fault of driver 570 on B200 that comes after 66 days and a half without a restart",
        "reboot; then install a newer driver, or restart within that time",
    ),
    (
        r"Missing ENDBR: \S+ \[nvidia",
        "the kernel stopped its module as it was loaded (Missing ENDBR)",
        "the kernel watches where jumps go (IBT), and the module was built without what that needs",
        (
            "boot with ibt=off on the kernel's command line, or a kernel without IBT; or install a"
            " driver that is built with it"
        ),
    ),
    (
        r"RIP: [0-9a-f:]*(_nv\w*|nvidia_\w*|nv_\w*|init_module)\+\S+ \[nvidia",
        "the kernel faulted in its module (dmesg: Oops)",
        "driver and kernel do not fit each other, or the card hangs",
        "install a newer driver, or boot the kernel before",
    ),
    (
        r"{card}: GPU does not have the necessary power cables connected",
        "its power cables are not connected, says the kernel's log",
        "the card starts only with all of its plugs",
        "power the machine off, plug its power cables in, and on",
    ),
    (
        r"Open nvidia\.ko is only ready for use on Data Center GPUs",
        "the open kernel modules of this driver are for data centres' cards alone",
        "those of branch 515 did not start a GeForce or workstation card by themselves",
        (
            "install a newer driver (580), or the closed modules; until then options nvidia"
            " NVreg_OpenRmEnableUnsupportedGpus=1 in /etc/modprobe.d"
        ),
    ),
    (
        _NO_INTERRUPT,
        "it got no interrupt",
        "a virtual machine's host, or the firmware, hands none to the card",
        (
            "a virtual machine: mend how the host passes it through (IOMMU, MSI); else the newest"
            " BIOS, and Above 4G Decoding there"
        ),
    ),
    (
        r"Guest driver is incompatible with host driver",
        "this virtual GPU's driver does not fit the host's (Xid 78)",
        "the host runs another release of vGPU, which takes guest drivers (GRID) of its own branch",
        (
            "install the guest driver of the host's vGPU release, which whoever runs the host knows"
            " (a cloud: its page on GRID drivers), and reboot; no data-centre driver"
        ),
    ),
    (
        _STARTS_NOT,
        "the driver could not start it (RmInitAdapter failed)",
        "power plug, riser, address space, or a driver that is not for this card",
        "sudo dmesg | grep -i nvrm; power it off and on, check plugs and BIOS (Above 4G Decoding)",
    ),
)


def logged(machine: Machine, cards: list[pci.Card]) -> tuple[str, str, str] | None:
    """What the kernel's log says of a card that does not start: seen, why, fix."""
    text = "\n".join(log.lines(machine) or [])
    # Sentences of the driver go on over several lines; the journal has a date and a host before.
    text = re.sub(r"[ \t]*\n(\s*\[[^]\n]*\] *|[^\n]*? kernel: |\s*)NVRM: +(?=[a-zA-Z])", " ", text)
    known = _driver(machine, cards, text) or sealed.unreached(machine, text)
    if known is not None:
        return known
    places = "|".join(re.escape(card.address) for card in cards) or "(?!)"
    for sign, seen, why, fix in _LOG:
        if re.search(sign.replace("{card}", f"({places})"), text, re.IGNORECASE):
            once = sign == _STARTS_NOT and sealed.is_sealed(machine)
            return (seen, *(sealed.ONCE if once else (why, _placed(machine, sign) or fix)))
    return None


def _driver(machine: Machine, cards: list[pci.Card], text: str) -> tuple[str, str, str] | None:
    """What the log says of a driver that is none for the card."""
    if re.search(r"does not include the required GPU(\s+System Processor|\.)", text):
        return branches.without_gsp(machine, cards)
    if re.search(_UNKNOWN, text):
        return branches.unknown(machine, cards)
    branch = re.search(_LEGACY, text)
    if branch and (not cards or branches.passed_over(cards, branch.group(1))):
        return branches.legacy(machine, cards, branch.group(1))
    told = re.search(r"requires use of the NVIDIA open kernel modules", text)
    if told or (re.search(_STARTS_NOT, text) and branches.wants_open(machine, cards)):
        return branches.closed(machine)
    return None


def _placed(machine: Machine, sign: str) -> str | None:
    """What helps on a machine of this kind; None where it is what helps elsewhere."""
    guest = kind.is_guest(machine)
    if sign == _NO_INTERRUPT and re.search(r"(?m)^nouveau ", machine.read("/proc/modules") or ""):
        away = distribution.KEPT_AWAY.format(more="", initramfs=distribution.initramfs(machine))
        return f"nouveau was there first, and has left it so: {away}, and reboot"
    if sign == _NO_ROOM:
        return room.of_guest(machine) if guest else room.of_board(machine)
    if guest and (sign == _FIRMWARE or "RmInitAdapter" in sign or "fallen off" in sign):
        return "restart this virtual machine; then ask who runs its host to look at the card"
    return _on_metal(machine, sign)


def _on_metal(machine: Machine, sign: str) -> str | None:
    """The same of a machine of its own."""
    new = any(card.is_blackwell or card.device in _HOPPER for card in pci.cards(machine))
    if sign == _FIRMWARE and not new and "Open" in (machine.read(_VERSION) or ""):
        return (
            "power the machine off, half a minute without current, and on; where it stays so,"
            " another version of the driver, or its closed modules (the package without -open) with"
            " options nvidia NVreg_EnableGpuFirmware=0 in /etc/modprobe.d"
        )
    if "fallen off" in sign:
        return fallen.raised(machine)
    if kind.is_laptop(machine) and "RmInitAdapter" in sign:
        return fallen.OF_A_LAPTOP
    return None
