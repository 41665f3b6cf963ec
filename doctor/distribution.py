"""How each distribution installs the driver, builds modules, and makes keys known."""

from __future__ import annotations

import re
from typing import Mapping

from host import pci
from host.machine import Machine

# Like Enterprise Linux, which not all of them say.
_OF_RHEL = ("openEuler", "kylin", "anolis", "alinux", "opencloudos", "tencentos")
# How each family of distributions installs the driver, builds the first files, and builds modules.
UBUNTU = "sudo ubuntu-drivers install"
INSTALL = {
    "fedora": "sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda && sudo akmods --force"
    "   # of RPM Fusion",
    "rhel": "sudo dnf install nvidia-open   # of NVIDIA's repository",
    "debian": "sudo apt-get install nvidia-driver firmware-misc-nonfree   # of contrib and"
    " non-free, which /etc/apt/sources.list must name",
    "cachyos": "sudo chwd -a",
    "arch": "sudo pacman -S nvidia-open nvidia-utils",
    "suse": "sudo zypper install nvidia-open-driver-G06-signed-kmp-meta nvidia-compute-utils-G06"
    "   # of NVIDIA's repository; openSUSE: first openSUSE-repos-Leap-NVIDIA (or -Tumbleweed-)",
    "manjaro": "sudo mhwd -a pci nonfree 0300",
    "amzn": "sudo dnf module enable nvidia-driver:open-dkms && sudo dnf install nvidia-open   # of"
    " NVIDIA's repository; or an image that has it: Deep Learning AMI, EKS's AL2023_x86_64_NVIDIA",
    "azurelinux": "sudo tdnf install nvidia-open   # of NVIDIA's repository",
    **dict.fromkeys(
        _OF_RHEL,
        "sudo dnf install kernel-devel-$(uname -r) gcc make, and sudo sh NVIDIA-Linux-*.run --dkms"
        "   # nvidia.com has that file",
    ),
    "gentoo": "sudo emerge x11-drivers/nvidia-drivers",
    "nixos": 'services.xserver.videoDrivers = [ "nvidia" ]; hardware.nvidia.open = true;',
    "nobara": "nobara-driver-manager   # which installs it",
    "pop": "sudo apt-get install system76-driver-nvidia",
    "void": "sudo xbps-install void-repo-nonfree && sudo xbps-install nvidia",
    "ubuntu": UBUNTU,
}
_UBLUE = "/usr/share/ublue-os/image-info.json"
_INITRAMFS = {
    **dict.fromkeys(
        ("fedora", "rhel", "suse", "gentoo", "azurelinux", "mariner"), "dracut --force"
    ),
    "arch": "mkinitcpio -P",
    "void": "xbps-reconfigure -fa",
}
BUILD = {
    "fedora": "sudo akmods --force && sudo reboot",
    "amzn": "sudo dkms autoinstall && sudo modprobe nvidia",
    "arch": "sudo mkinitcpio -P && sudo reboot",
    "gentoo": "sudo emerge @module-rebuild && sudo modprobe nvidia",
}

KEPT_AWAY = (
    "printf 'blacklist %s\\n' nouveau nova nova_core nova_drm{more} | sudo tee"
    " /etc/modprobe.d/no-nouveau.conf; sudo {initramfs}"
)
"""How open drivers are kept from the cards."""
UTILITIES = {
    "debian": "sudo apt-get install nvidia-smi",
    "fedora": "sudo dnf install xorg-x11-drv-nvidia-cuda   # of RPM Fusion, as akmod-nvidia",
    **dict.fromkeys(
        ("rhel", "amzn"), "sudo dnf install nvidia-driver-cuda   # of NVIDIA's repository"
    ),
    "azurelinux": "sudo tdnf install nvidia-driver-cuda   # of NVIDIA's repository",
    "arch": "sudo pacman -S nvidia-utils",
    "suse": "sudo zypper install nvidia-compute-utils-G06",
    "void": "sudo xbps-install nvidia",
    "gentoo": 'export PATH="$PATH:/opt/bin"   # x11-drivers/nvidia-drivers has it there',
    "nixos": 'services.xserver.videoDrivers = [ "nvidia" ];',
}
LIBRARIES = {
    "debian": "sudo apt-get install libnvidia-ml1 libcuda1",
    "fedora": "sudo dnf install xorg-x11-drv-nvidia-cuda-libs   # of RPM Fusion, as akmod-nvidia",
    **dict.fromkeys(
        ("rhel", "amzn"), "sudo dnf install nvidia-driver-cuda-libs   # of NVIDIA's repository"
    ),
    "azurelinux": "sudo tdnf install nvidia-driver-cuda-libs   # of NVIDIA's repository",
    "arch": "sudo pacman -S nvidia-utils",
    "suse": "sudo zypper install nvidia-compute-G06",
    "gentoo": "sudo emerge x11-drivers/nvidia-drivers",
    "void": "sudo xbps-install nvidia-libs",
}
APT_TOOLKIT = "sudo apt-get install nvidia-container-toolkit"
APT_NEWER_TOOLKIT = (
    "sudo apt-get update && sudo apt-get install --only-upgrade nvidia-container-toolkit"
)
TOOLKIT = {
    **dict.fromkeys(("fedora", "rhel"), "sudo dnf install nvidia-container-toolkit"),
    "arch": "sudo pacman -S nvidia-container-toolkit",
    "suse": "sudo zypper install nvidia-container-toolkit",
    **dict.fromkeys(("azurelinux", "mariner"), "sudo tdnf install nvidia-container-toolkit"),
}

DKMS = (
    "sudo dkms autoinstall; sudo modprobe nvidia || dkms status; without DKMS: the package of"
    " modules for $(uname -r)"
)
# Systems that are an image, into which no package is installed; and one that has no driver.
_IMAGES = {
    "cos": "sudo cos-extensions install gpu   # anew at each boot",
    "flatcar": "name its sysext of NVIDIA's in /etc/flatcar/enabled-sysext.conf, and reboot",
    "bottlerocket": "take the variant of the image whose name ends in -nvidia",
    "ubuntu-core": "sudo snap install the components nvidia-…-ko and -user of your pc-kernel",
    "sl-micro": "sudo transactional-update pkg install nvidia-open-driver-G06-signed-kmp-meta"
    " nvidia-compute-utils-G06, and reboot   # of SUSE's repository of NVIDIA's",
    **dict.fromkeys(
        ("opensuse-microos", "opensuse-aeon", "opensuse-kalpa"),
        "sudo transactional-update pkg install nvidia-open-driver-G06-signed-kmp-meta"
        " nvidia-compute-utils-G06, and reboot   # of NVIDIA's repository",
    ),
    "alpine": "take a distribution with glibc: NVIDIA's driver does not run with Alpine's musl",
    "truenas": "tick Install NVIDIA Drivers (Apps, Configuration, Settings), and reboot",
    "unraid": "the plugin Nvidia Driver (Apps), then switch Docker off and on in the settings",
    "rhcos": "the GPU operator installs it: Node Feature Discovery, then a ClusterPolicy",
}
INSTALL.update(_IMAGES)
_BEFORE_DNF = (("rhel", "7"), ("amzn", "2"))


def names(machine: Machine) -> list[str]:
    """The distribution, and what it is like: /etc/os-release."""
    words = re.findall(r"^ID(?:_LIKE)?=(.*)$", _release(machine), re.MULTILINE)
    found = " ".join(words).replace('"', "").split()
    if "+truenas" in (machine.read("/proc/sys/kernel/osrelease") or ""):
        return ["truenas"]
    if "-Unraid" in (machine.read("/proc/sys/kernel/osrelease") or ""):
        return ["unraid"]
    if "OPENSHIFT_VERSION=" in _release(machine):
        return ["rhcos"]
    # What some say that they are like, or say first, is not what helps here.
    like = {"nobara": "fedora", **dict.fromkeys(_OF_RHEL, "rhel")}
    if found[:1] and found[0] in like:
        return [found[0], like[found[0]]]
    if found[:1] and found[0] in _IMAGES:  # what these are like installs nothing here
        return found[:1]
    return [
        {
            "opensuse": "suse",
            "sles": "suse",
            "centos": "rhel",
            "rocky": "rhel",
            "almalinux": "rhel",
            "ol": "rhel",
        }.get(word.split("-")[0], word.split("-")[0])
        for word in found
    ]


def version(machine: Machine) -> str:
    """The distribution's number, without what stands behind its first point."""
    found = re.search(r'^VERSION_ID="?([0-9]+)', _release(machine), re.MULTILINE)
    return found.group(1) if found else ""


def is_without_modules(machine: Machine) -> bool:
    """Whether dnf has no modules of packages here: Enterprise Linux 10."""
    return "rhel" in names(machine) and version(machine) == "10"


def install(machine: Machine, usual: str = UBUNTU) -> str:
    """How the driver is installed."""
    new = any(card.is_blackwell for card in pci.cards(machine))
    if new and names(machine)[:1] == ["debian"]:
        return "sudo apt-get install nvidia-open   # of NVIDIA's repository: Debian's is too old"
    kernel = kernel_of_arch(machine)
    if kernel is not None and "cachyos" not in names(machine):
        if kernel == "linux-lts":
            return "sudo pacman -S nvidia-open-lts nvidia-utils"
        return f"sudo pacman -S nvidia-open-dkms {kernel}-headers nvidia-utils"
    return of(machine, INSTALL, usual)


def layered(machine: Machine) -> str:
    """How a system installs it whose image is not written into: of RPM Fusion, or another image."""
    said = machine.read(_UBLUE) or ""
    name = re.search(r'"image-name":\s*"([\w-]+)"', said)
    if not name or "nvidia" in said:
        return "rpm-ostree install akmod-nvidia xorg-x11-drv-nvidia-cuda"
    image = f"{name.group(1)}-nvidia" + "-open" * all(card.has_gsp for card in pci.cards(machine))
    return (
        f"rpm-ostree rebase to {image}, Universal Blue's image with the driver"
        " (brh rebase, or ujust rebase-helper), in place of layering it"
    )


def kernel_of_arch(machine: Machine) -> str | None:
    """The package of Arch's kernel that runs, where it is not the usual one."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    found = re.search(r"-(zen|lts|hardened|rt-lts|rt)$", running)
    return f"linux-{found.group(1)}" if found and "arch" in names(machine)[:2] else None


def libraries(machine: Machine, driver: str) -> str:
    """How the libraries of a loaded driver, 550.90, are installed."""
    apt = f"sudo apt-get install libnvidia-compute-{driver.split('.', maxsplit=1)[0] or 580}"
    # Ubuntu is like Debian, and has other packages.
    return apt if "ubuntu" in names(machine) else _ostree(machine, of(machine, LIBRARIES, apt))


def utilities(machine: Machine, apt: str) -> str:
    """How nvidia-smi is installed beside a loaded driver; `apt` is Ubuntu's way."""
    # Ubuntu is like Debian, and has other packages.
    return apt if "ubuntu" in names(machine) else _ostree(machine, of(machine, UTILITIES, apt))


def is_image(machine: Machine) -> bool:
    """Whether the system is an image, into which no package is installed."""
    return any(name in _IMAGES for name in names(machine))


def initramfs(machine: Machine) -> str:
    """What makes the images anew that kernels begin with."""
    if machine.exists("/run/ostree-booted"):
        return "rpm-ostree initramfs --enable"
    if "nixos" in names(machine):
        return "nixos-rebuild boot"
    if machine.has("sdbootutil"):  # openSUSE's, where systemd-boot starts the kernels
        return "sdbootutil add-all-kernels --no-reuse-initrd"
    if machine.has("limine-mkinitcpio"):
        return "limine-mkinitcpio"
    # EndeavourOS and Garuda are Arch without it.
    if "arch" in names(machine) and not machine.has("mkinitcpio") and machine.has("dracut"):
        own = machine.has("dracut-rebuild")
        return "dracut-rebuild" if own else "dracut --force --regenerate-all"
    return of(machine, _INITRAMFS, "update-initramfs -u")


def build(machine: Machine, usual: str) -> str:
    """How the driver's modules are built, or found, for the kernel that runs."""
    line = of(machine, BUILD, usual)
    return line.replace("mkinitcpio -P", initramfs(machine))


def _ostree(machine: Machine, line: str) -> str:
    """The same where the system is an image that packages are layered on."""
    if not machine.exists("/run/ostree-booted"):
        return line
    command = line.partition("   #")[0].replace("sudo dnf install", "rpm-ostree install")
    return f"{command} && systemctl reboot"


def of(machine: Machine, table: Mapping[str, str], usual: str) -> str:
    """What a table says for this distribution."""
    line = next((table[word] for word in names(machine) if word in table), usual)
    old = (*names(machine)[:1], version(machine)) in _BEFORE_DNF
    return line.replace("sudo dnf ", "sudo yum ") if old else line


def _release(machine: Machine) -> str:
    return machine.read("/etc/os-release") or ""
