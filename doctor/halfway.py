"""A driver whose installation has stopped on the way."""

from __future__ import annotations

import re

from host.machine import Machine


def half_installed(machine: Machine) -> tuple[str, str, str] | None:
    """Apt has stopped on the way, and left the driver's packages as they were: seen, why, fix."""
    said = machine.run("dpkg", "--audit").out
    # Of what it lists under other headings, files of dpkg's own are missing.
    parts = re.findall(r"(?ms)^The following packages (.*?)(?=^The following|\Z)", said)
    broken = [part for part in parts if re.search(r"unpacked|half|mess", part.split("\n")[0])]
    kinds = "lib|xserver-xorg-video-|linux-(?:modules|objects|signatures)-"
    driver = rf"(?m)^\s+(?:{kinds})?nvidia-(?!container|ctk|cudnn|cuda-|settings)"
    if not any(re.search(driver, part) for part in broken):
        return None
    return (
        "its packages are only half installed (dpkg --audit)",
        "apt was interrupted, had no room (df -h / /boot), or met a file of another package",
        (
            "sudo dpkg --configure -a; sudo apt-get --fix-broken install   # a file of an older"
            " branch: remove that one's packages first"
        ),
    )


def unlisted(machine: Machine) -> tuple[str, str, str] | None:
    """Its module is there for this kernel, and no list names it: seen, why, fix."""
    running = (machine.read("/proc/sys/kernel/osrelease") or "-").strip()
    folder = f"/lib/modules/{running}"
    listed = machine.read(f"{folder}/modules.dep")
    names = machine.names(f"{folder}/updates/dkms")
    built = any(re.match(r"nvidia(?:-current)?\.ko", name) for name in names)
    if not built or listed is None or re.search(r"/nvidia(?:-current)?\.ko", listed):
        return None
    return (
        "its module is there for this kernel, and modules.dep does not name it",
        "depmod did not run after it was built: modprobe does not find it",
        "sudo depmod -a && sudo modprobe nvidia",
    )
