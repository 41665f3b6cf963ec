"""Why a GPU on the bus is not held by NVIDIA's module, or does not start under it."""

from __future__ import annotations

import re
from typing import Callable

from doctor import (
    akmods,
    away,
    building,
    distribution,
    headers,
    held,
    log,
    reasons,
    refused,
    unbuilt,
    unsigned,
)
from doctor.finding import Finding, fail, skip, warn
from host import nvidia, pci
from host.machine import Machine

OPEN = ("nouveau", "NovaCore", "nova_core", "nova", "nvidiafb", "rivafb")
_NOUVEAU = distribution.KEPT_AWAY + "; {install} && sudo reboot{note}"
_OLD = "   # a card before Turing: its closed modules of branch 580 at the most, no open ones"
_DENIED = r"avc:\s+denied\s+\{ module_load \}.*nvidia"


def examine(machine: Machine, cards: list[pci.Card]) -> Finding:
    """The one reason why nvidia-smi lists no GPU, though there is one on the bus."""
    there = on_bus(cards)
    # Whoever did not ask for GPUs trains on the CPU then, as on any machine without.
    unwell = fail if machine.environ.get("GPUS") else warn
    by = {card.driver for card in cards}
    open_one = next((name for name in OPEN if name in by), None)
    files = headers.then(machine, "sudo akmods --force && sudo reboot")
    unbuilt_yet = None if "nvidia" in by else akmods.unbuilt(machine, open_one is not None, files)
    if unbuilt_yet is not None:
        seen, why, fix = unbuilt_yet
        return fail("driver", f"{there}; {seen}", why, f"{fix}; {unsigned.CPU}")
    if open_one is not None:
        return _opened(machine, open_one, there, unwell)
    aside = next((name for name in away.ASIDE if name in by), None)
    if aside is not None:
        return unwell(
            "driver",
            f"{there}, held by {aside}",
            "set aside for a virtual machine",
            away.given_back(machine, cards[0].address),
        )
    if "nvidia" in by:
        return held.examine(machine, cards, there, unwell)
    return _not_held(machine, cards, there, unwell)


def _opened(
    machine: Machine, open_one: str, on_bus: str, unwell: Callable[..., Finding]
) -> Finding:
    """An open driver has the card, which cannot compute."""
    older = all(c.device and not c.is_maxwell for c in pci.cards(machine))
    if older and not machine.environ.get("GPUS"):
        return skip("driver", f"{on_bus}, held by {open_one}: no PyTorch of today computes on it")
    # A fallback loads it where the kernel has refused NVIDIA's.
    if (
        unsigned.secure_boot(machine)
        and _installed(machine)
        and log.last(machine, unsigned.REFUSED)
    ):
        return unsigned.found(machine, f"{on_bus}, held by {open_one}")
    # It was kept away already: NVIDIA's own came to nothing first.
    fell_back = open_one == "nouveau" and log.last(machine, "[Ff]allback to nouveau")
    lacking = unbuilt.missing(machine) if fell_back else None
    if lacking is not None:
        seen, why, fix = lacking
        seen = f"{on_bus}, held by {open_one}; {seen}"
        return unwell("driver", seen, why, fix.replace("sudo modprobe nvidia", "sudo reboot"))
    return unwell(
        "driver",
        f"{on_bus}, held by {open_one}",
        f"{open_one} cannot compute: it trains on the CPU",
        _freed(machine, open_one),
    )


def _freed(machine: Machine, holder: str) -> str:
    """How another driver is kept away, and NVIDIA's installed."""
    install = distribution.install(machine)
    if distribution.is_image(machine):
        return install
    install, _, told = install.partition("   #")
    if "nixos" in distribution.names(machine):
        return f"{install}   # in configuration.nix; sudo nixos-rebuild boot && sudo reboot"
    if machine.exists("/run/ostree-booted"):
        return (
            f"{distribution.layered(machine)}; rpm-ostree kargs"
            " --append=rd.driver.blacklist=nouveau,nova_core"
            " --append=modprobe.blacklist=nouveau,nova_core && systemctl reboot"
        )
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    inside = machine.read(f"/lib/modules/{running}/modules.builtin") or ""
    if f"/{holder}.ko" in inside:
        return (
            f"it is built into this kernel: boot with {holder}.modeset=0 on the kernel's command"
            f" line, or another kernel; {install}"
        )
    initramfs = distribution.initramfs(machine)
    note = "" if all(card.has_gsp for card in pci.cards(machine)) else _OLD
    note = f"   #{told}" if told and not note else note
    more = f" {holder}" if holder.endswith("fb") else ""
    return _NOUVEAU.format(more=more, initramfs=initramfs, install=install, note=note)


def on_bus(cards: list[pci.Card]) -> str:
    """How many there are, in words."""
    return f"{len(cards)} GPU{'s' * (len(cards) != 1)} on the bus"


def _not_held(
    machine: Machine, cards: list[pci.Card], on_bus: str, unwell: Callable[..., Finding]
) -> Finding:
    """No module holds it: there is none, or the kernel did not take it."""
    audit = machine.run("ausearch", "-m", "avc", "-c", "modprobe").out
    denied = log.last(machine, _DENIED) or re.search(_DENIED, audit)
    if denied:
        return fail(
            "driver",
            f"{on_bus}; SELinux does not let its module be loaded (module_load)",
            "whoever loads it, or its file, has a label for which no rule allows that",
            "sudo ausearch -m avc -c modprobe | audit2allow -M nvidia-load && sudo semodule -i"
            f" nvidia-load.pp, then load it again (on RKE2: a newer rke2-selinux); {unsigned.CPU}",
        )
    if not machine.has("nvidia-smi") and not _installed(machine):
        return unwell("driver", *_without_driver(machine, on_bus))
    known = reasons.logged(machine, cards) or refused.reason(machine)
    if known is not None:
        seen, why, fix = known
        return fail("driver", f"{on_bus}; {seen}", why, f"{fix}; {unsigned.CPU}")
    # It does not say whose module it refuses.
    ours = nvidia.on_disk(machine) or unbuilt.missing(machine) is None
    if ours and log.last(machine, unsigned.REFUSED):
        return unsigned.found(machine, on_bus)
    off = away.switched_off(machine)
    if off is not None:
        seen, fix = off
        why = "a tool that switches laptops' GPUs has switched it off: it trains on the CPU"
        return unwell("driver", f"{on_bus}; {seen}", why, fix)
    return unbuilt.examine(machine, on_bus)


def _without_driver(machine: Machine, on_bus: str) -> tuple[str, str, str]:
    if log.last(machine, unsigned.REFUSED) and unsigned.secure_boot(machine):
        return (
            f"{on_bus}, no driver here, and Secure Boot refuses modules that are not signed",
            "a driver that a container builds (the GPU operator's) is not signed",
            (
                "take your distribution's or your cloud's own driver, which is; or switch Secure"
                " Boot off (GKE: a node pool made with --no-shielded-secure-boot)"
            ),
        )
    if any("nvidia-driver" in name for name in machine.names("/var/log/pods")):
        return (
            f"{on_bus}, and the pod that is to install its driver has not done so",
            "until then no pod gets a GPU",
            (
                "read that pod's log (kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset):"
                " mostly its driver is too old for this kernel (a newer driver.version), or the"
                " kernel's headers are not to be had (another node image, a newer operator, or"
                " precompiled drivers); then delete the pod. Google's and Amazon's images of"
                " nodes bring the driver: driver.enabled=false"
            ),
        )
    note = "" if "ubuntu" in distribution.names(machine) else "   # or your distribution's package"
    install = distribution.install(machine, distribution.UBUNTU + note)
    if not all(card.has_gsp for card in pci.cards(machine)):
        install += _OLD
    if machine.exists("/run/ostree-booted"):
        install = f"{distribution.layered(machine)} && systemctl reboot"
    return f"{on_bus}, and no driver installed", "without it, it trains on the CPU", install


def _installed(machine: Machine) -> bool:
    """Whether a module of NVIDIA's was built, or to be, for this kernel or for another one."""
    folders = machine.names("/usr/src") + machine.names("/var/lib/dkms")
    built = any(re.match(r"nvidia([-_]|$)", name) for name in folders)
    return built or nvidia.on_disk(machine) != "" or building.broken(machine) is not None
