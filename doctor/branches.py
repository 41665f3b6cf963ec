"""Which driver a card is made for, where the installed one does not start it."""

from __future__ import annotations

import re

from doctor import distribution, kind
from host import nvidia, pci
from host.machine import Machine

_VOLTA = range(0x1D81, 0x1DF7)
_LAST_FOR_KEPLER = 470
# Small chips of Maxwell and Pascal: GM108, GP108 (GT 1030), Quadro P400 to P620.
_FOR_SCREENS = (range(0x1340, 0x1380), range(0x1D00, 0x1D81), range(0x1CB0, 0x1CC0))
_LAST = "580"  # the branch that is the last for Maxwell, Pascal and Volta
_OF_BRANCH = {
    "nixos": "hardware.nvidia.package = config.boot.kernelPackages.nvidiaPackages.legacy_{0}",
    "rhel": "sudo dnf module reset nvidia-driver && sudo dnf module install nvidia-driver:{0}-dkms",
    **dict.fromkeys(("amzn", "debian"), "install a driver of branch {0}, of NVIDIA's repository"),
    "fedora": "sudo dnf remove 'xorg-x11-drv-nvidia*' 'akmod-nvidia*'; sudo dnf install"
    " akmod-nvidia-{0}xx xorg-x11-drv-nvidia-{0}xx-cuda; sudo reboot   # of RPM Fusion",
    "arch": "install nvidia-{0}xx-dkms and nvidia-{0}xx-utils (AUR), and reboot",
    "ubuntu": "sudo apt-get install nvidia-driver-{0}",
}
_OPEN = {
    "ubuntu": "sudo apt-get install nvidia-driver-{0}-open",
    "debian": "sudo apt-get install nvidia-open-kernel-dkms",
    "arch": "sudo pacman -S nvidia-open",
    "rhel": "sudo dnf module reset nvidia-driver && sudo dnf module install"
    " nvidia-driver:open-dkms",
    "fedora": "echo '%_with_kmod_nvidia_open 1' | sudo tee /etc/rpm/macros.nvidia-kmod; sudo akmods"
    " --force --rebuild",
    "suse": "sudo zypper install nvidia-open-driver-G06-signed-kmp-meta",
    "amzn": "a newer image for EKS, AL2023_x86_64_NVIDIA; elsewhere sudo dnf install nvidia-open",
    "nixos": "hardware.nvidia.open = true;",
}
_EVERYWHERE = (
    "Ubuntu: nvidia-driver-{0}-open, Debian: nvidia-open-kernel-dkms, Arch: nvidia-open, a .run"
    " file: --kernel-module-type=open, Amazon's images for EKS: a newer one"
)
_OPEN_ONLY = 10  # compute capability of Blackwell, the first that the closed modules do not start
_BLACKWELL = 0x2900  # its first device
_WHOLE_CARDS = ("Amazon EC2", "Google")  # as the firmware names clouds that give no parts of one


def passed_over(cards: list[pci.Card], branch: str) -> list[pci.Card]:
    """Cards that a driver knows no more which names this branch, in the kernel's log, for them."""
    # 580 is the last for Maxwell to Volta; 470 and older ones are for what was before.
    last = branch == _LAST
    return [card for card in cards if not (card.has_gsp if last else card.is_maxwell)]


def unknown_to(machine: Machine, cards: list[pci.Card]) -> list[pci.Card]:
    """Cards that are too old for the driver that is loaded, by its number and kind: all of Kepler,
    and later ones that are there for a screen. Others were to train.
    """
    major = (nvidia.loaded(machine) or "").partition(".")[0]
    open_ = "Open Kernel Module" in (machine.read("/proc/driver/nvidia/version") or "")
    if not major.isdecimal() or int(major) <= _LAST_FOR_KEPLER:
        return []
    kepler = passed_over(cards, str(_LAST_FOR_KEPLER))
    later = passed_over(cards, _LAST) if open_ or int(major) > int(_LAST) else []
    small = [card for card in later if any(card.device in each for each in _FOR_SCREENS)]
    return kepler + [card for card in small if card not in kepler]


def legacy(machine: Machine, cards: list[pci.Card], branch: str) -> tuple[str, str, str]:
    """The driver is too new for the card."""
    seen = f"the installed driver no longer knows this card, branch {branch} does (see dmesg)"
    if branch == _LAST:
        usual = f"install your distribution's driver of branch {branch}"
        fix = usual if _is_image(machine) else _of_branch(machine, branch, usual)
        why = "the driver is too new for it"
        if not any(card.device in _VOLTA for card in cards):
            why += (
                "; with that one a PyTorch for CUDA 12.6 computes on it (2.14 is the last), make"
                " train's own does not"
            )
        return seen, why, fix
    return (
        seen,
        "no torch of today has kernels for cards as old as this",
        "train on another GPU, or in an older container with that driver",
    )


def _of_branch(machine: Machine, branch: str, usual: str) -> str:
    """How a distribution installs an older branch with the closed modules."""
    if "rhel" in distribution.names(machine) and distribution.version(machine) == "7":
        return usual
    if distribution.is_without_modules(machine):
        return (
            f"sudo dnf install cuda-drivers-{branch} --allowerasing, and reboot   # of NVIDIA's"
            " repository; dnf versionlock keeps it"
        )
    return distribution.of(machine, _OF_BRANCH, usual).format(branch)


def _is_image(machine: Machine) -> bool:
    return machine.exists("/run/ostree-booted")


def unknown(machine: Machine, cards: list[pci.Card]) -> tuple[str, str, str]:
    """The driver does not know the card: it is newer, or a part of one, or too old for it."""
    vendor = (machine.read("/sys/class/dmi/id/sys_vendor") or "").strip()
    size = (machine.read("/sys/class/dmi/id/product_name") or "").strip()
    whole = vendor in _WHOLE_CARDS and not re.match(r"gr?\d+f\.", size)  # g6f: parts of an L4
    if kind.is_guest(machine) and not whole:
        return (
            "this driver does not know the card",
            (
                "in a virtual machine it may be a part of a card (vGPU), which has a driver of its"
                " own; else the card is newer than the driver"
            ),
            (
                "ask who runs the host for the guest driver (GRID) that fits his; else install a"
                " newer driver"
            ),
        )
    if not any(card.has_gsp for card in cards):
        return (
            "this driver does not know the card",
            "the card is older than the driver, or made for something else (mining)",
            "install an older branch (580 is the last for cards before Turing, 470 for Kepler)",
        )
    own = nvidia.loaded(machine) or machine.run("modinfo", "-F", "version", "nvidia").out.strip()
    branch = own.partition(".")[0]
    late = branch.isdecimal() and int(branch) >= int(_LAST)
    newer = f"than {own}" if late else "580 or newer"
    return (
        "the installed driver does not know this card yet",
        "the card is newer than the driver",
        f"install a newer driver, with the open kernel modules ({newer})",
    )


def wants_open(machine: Machine, cards: list[pci.Card]) -> bool:
    """Whether the closed kernel modules are loaded, and a card is one that they do not start."""
    version = machine.read("/proc/driver/nvidia/version") or ""
    closed = "Kernel Module" in version and "Open Kernel Module" not in version
    return closed and any(card.device >= _BLACKWELL for card in cards)


def closed(machine: Machine) -> tuple[str, str, str]:
    """The closed kernel modules do not start cards from Blackwell on."""
    major = (nvidia.loaded(machine) or "580").split(".")[0]
    how = distribution.of(machine, _OPEN, _EVERYWHERE).format(major)
    if distribution.is_without_modules(machine):
        how = "sudo dnf install nvidia-open"
    if _is_image(machine):
        how = "an image that has them: of Universal Blue, one whose name has nvidia-open"
    return (
        "the closed kernel modules are loaded",
        "from Blackwell on (RTX 50, B200, GB10) only the open ones start the card",
        f"install the open modules of the same driver ({how}), and reboot",
    )


def without_gsp(machine: Machine, cards: list[pci.Card]) -> tuple[str, str, str]:
    """The open kernel modules do not find the firmware's processor: too old a card, or it hangs."""
    if any(card.has_gsp for card in cards):
        return (
            "the driver does not find the card's own processor (GSP), which it has",
            "the card hangs",
            "power the machine off, half a minute without current, and on",
        )
    _, listed = nvidia.ask(machine)
    if any((gpu.number("compute_cap") or 0) >= _OPEN_ONLY for gpu in listed):
        return (
            "the open kernel modules do not know cards before Turing",
            "the newer card needs the open ones, and no driver has both",
            "take the older card out, or leave it to a machine of its own",
        )
    fix = "sudo apt-get install nvidia-driver-580   # without -open; 580 is the last for them"
    if machine.exists("/run/ostree-booted"):
        fix = "rpm-ostree rollback, or rebase to the image with the closed modules (580)"
    elif not {"ubuntu", "debian"} & {*distribution.names(machine)}:
        usual = "install your distribution's closed modules (without -open), 580 at the most"
        fix = _of_branch(machine, _LAST, usual)
    return (
        "the open kernel modules do not know cards before Turing",
        "they need the closed ones",
        fix,
    )
