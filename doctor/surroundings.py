"""What the kernel's log says of a GPU's surroundings: processors, memory, sleep; and what a driver
says that may be nothing.
"""

from __future__ import annotations

import re

from doctor import faults, kind, servers, stores, tables
from doctor.finding import Finding, warn
from host import apps, limits, nvidia
from host.machine import Machine

_NO_SLEEP = re.compile(
    r"PreserveVideoMemoryAllocations module parameter is set\. System Power Management attempted"
    r" without"
)
_STUCK = re.compile(r"INFO: task (\S[^:]*(?::[^:]*)?):(\d+) blocked for more than (\d+) s")
_TRAINER = re.compile(apps.TRAINER)
_AGAIN = re.compile(r"nfs: server \S+ OK|Connection restored to")
_ENCRYPTED = re.compile(
    r"Memory Encryption Features active:.*\bSME\b|AMD Secure Memory Encryption \(SME\) active"
)
_CRASHED = re.compile(
    r"(?<![\w-])(python|cc1|cc1plus|rustc|gcc|ld|as|bash|git|tar|dpkg|apt|make)[\d.]*"
    r"\[\d+\]:? (?:segfault at|general protection|trap invalid opcode)"
)
_WITHIN = re.compile(r" in ([\w.+-]+)\[")
_STEADY = {
    "cc1",
    "cc1plus",
    "rustc",
    "gcc",
    "ld",
    "as",
    "bash",
    "git",
    "tar",
    "dpkg",
    "apt",
    "make",
}
_CRASHES = 4
_GOES = re.compile("PM: (?:suspend|hibernation: hibernation) entry")
_BACK = re.compile("PM: (?:suspend|hibernation: hibernation) exit")
_SLEEP, _OFTEN = "PM: suspend entry", 2
_DESKTOP = "org.gnome.settings-daemon.plugins.power"
# Sign; what is seen, with its groups; why; what helps.
_AROUND = (
    (
        # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1095
        re.compile(r"jump_label: Fatal kernel bug, unexpected op at \S+ \[(nvidia\w*)\]"),
        "the kernel stopped in {0} as the machine went to sleep (jump_label)",
        "the driver was built without a step that this kernel needs: programs hang from then on",
        (
            "reboot, and update the driver: Ubuntu 26.04 has it from 595.71.05-0ubuntu0.26.04.1 or"
            " 580.159.03-0ubuntu0.26.04.1 on; until then sudo systemctl mask sleep.target"
            " suspend.target"
        ),
    ),
    (
        re.compile(r"RC watchdog: GPU is probably locked"),
        "the driver's watchdog found a GPU locked",
        "programs on it hang, or the machine does",
        (
            "reboot; if it comes back, options nvidia NVreg_DynamicPowerManagement=0x00 in"
            " /etc/modprobe.d where that is 0x02, or another version of the driver"
        ),
    ),
    (
        re.compile(
            r"soft lockup - CPU#\d+ stuck for (\d+)s! \[((?:cuda|nvidia|nv[_-]|nvc_)[^:\]]*)"
        ),
        "a processor hung for {0} s in {1} (soft lockup)",
        "the kernel did not come back from the driver in time: programs hang, or the machine",
        "reboot; if it comes back, another version of the driver or the kernel",
    ),
    (
        re.compile(r"soft lockup - CPU#\d+ stuck for (\d+)s! \[((?:python|pt_)[^:\]]*)"),
        "a processor hung for {0} s in {1} (soft lockup)",
        "the kernel did not come back in time: a training hangs, or the machine",
        (
            "reboot; if it comes back, another version of the driver or the kernel; in a virtual"
            " machine ask who runs its host"
        ),
    ),
    (
        # The status' bit 61: not corrected.
        re.compile(
            r"mce: \[Hardware Error\]: (CPU \d+): Machine Check(?: Exception)?: \d+ Bank \d+:"
            r" [2367abef][0-9a-f]{15}"
        ),
        "{0} reports an error of the hardware (machine check)",
        "a processor, its memory or its bus fails: programs end, or compute wrongly",
        "sudo ras-mc-ctl --errors, or rasdaemon, says which part; then have the machine serviced",
    ),
    (
        # As the kernel's module for AMD's processors writes it in place of that.
        re.compile(r"\[Hardware Error\]: (CPU):(\d+) \(\S+\) MC\d+_STATUS\[[^]]*\|UE\|"),
        "{0} {1} reports an error of the hardware (machine check)",
        "a processor, its memory or its bus fails: programs end, or compute wrongly",
        "sudo ras-mc-ctl --errors, or rasdaemon, says which part; then have the machine serviced",
    ),
    (
        re.compile(r"\bnvidia \S+: swiotlb buffer is full"),
        "the driver found no room to copy through (swiotlb buffer is full)",
        "without an IOMMU some memory is reached through a buffer that is too small",
        "switch the IOMMU on in the BIOS; else boot with swiotlb=131072",
    ),
)


def found(machine: Machine, said: list[str]) -> Finding | None:
    """What failed around the GPUs, to be said where none of them has failed: a processor, a file
    server that does not answer, a disk.
    """
    if limits.in_container(machine.root):
        return None
    return (
        faults.matching(said, _AROUND)
        or tables.full(machine, said)
        or _unslept(machine, said)
        or _encrypted(machine, said)
        or stores.found(machine, said)
        or _stuck(machine, said)
        or _crashing(said)
        or _sleeps(machine, said)
    )


def _encrypted(machine: Machine, said: list[str]) -> Finding | None:
    """AMD's processors encrypt the memory, and a consumer's card cannot do with that.

    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/340
    """
    active = any(_ENCRYPTED.search(row) for row in said)
    cards = [gpu for gpu in nvidia.ask(machine)[1] if nvidia.CONSUMER.search(gpu.name)]
    if not active or not cards or kind.is_guest(machine):
        return None
    return warn(
        "kernel log",
        "the memory is encrypted by the processor (SME, mem_encrypt=on)",
        "the driver's DMA does not work with that: Failed to initialize DMA, CUDA does not start",
        "mem_encrypt=off on the kernel's command line in its place, and reboot",
    )


def _crashing(said: list[str]) -> Finding | None:
    """Programs that have nothing to do with each other crash: memory or processor err."""
    crashed = [told.group(1) for told in map(_CRASHED.search, said) if told]
    # One that is sound may crash once for a reason of its own.
    steady = [name for name in crashed if name in _STEADY]
    places = {place for row in said if _CRASHED.search(row) for place in _WITHIN.findall(row)}
    enough = len(steady) > 1 or (steady and len(places) >= _CRASHES)
    if len(crashed) < _CRASHES or len({*crashed}) < 2 or not enough:
        return None
    return warn(
        "kernel log",
        f"{len(crashed)} crashes, of {', '.join(sorted({*crashed}))}",
        "programs that are sound crash at places of no sense where memory or processor err",
        "memory at its rated speed (XMP, EXPO off in the BIOS), memtest86+ for a night, the newest"
        " BIOS; an overclocked processor as well",
    )


def _stuck(machine: Machine, said: list[str]) -> Finding | None:
    """A trainer that waits within the kernel, and for what, by the calls below its line."""
    places = [
        (n, told, re.findall(r"\+0x\w+/0x\w+ \[(\w+)\]", "\n".join(said[n + 1 : n + 30])))
        for n, told in enumerate(map(_STUCK.search, said))
        if told
    ]
    ours = [
        each
        for each in places
        if _TRAINER.match(each[1].group(1)) or any(m.startswith("nvidia") for m in each[2][:8])
    ]
    if not ours:
        return None
    place, told, modules = ours[-1]
    if not servers.is_late(machine, said[place], said) and not machine.exists(
        f"/proc/{told.group(2)}"
    ):
        return None  # it went on, or was ended
    state = re.search(r"(?m)^State:\s*(\w)", machine.read(f"/proc/{told.group(2)}/status") or "")
    if state is not None and state.group(1) != "D":
        return None
    if any(map(_AGAIN.search, said[place:])):
        return None  # it waited, and went on
    within = f", in {modules[0]}" if modules else ""
    return warn(
        "kernel log",
        f"{told.group(1)} waited in the kernel for {told.group(3)} s{within}",
        "a disk, a file server or a driver did not answer: it hangs, and cannot be ended",
        "the lines below it in sudo dmesg say for what: nfs, lustre, fuse and ext4 wait for where"
        " data or runs/ are; nvidia for the GPU: reboot",
    )


def _sleeps(machine: Machine, said: list[str]) -> Finding | None:
    """The desktop puts the machine to sleep when nobody sits at it, and has done so."""
    slept = sum(_SLEEP in row for row in said)
    if slept < _OFTEN or kind.is_laptop(machine):
        return None
    told = machine.run("gsettings", "get", _DESKTOP, "sleep-inactive-ac-type").out.strip()
    after = machine.run("gsettings", "get", _DESKTOP, "sleep-inactive-ac-timeout").out.strip()
    sleep = machine.run("systemctl", "is-enabled", "sleep.target").out.strip()
    ours = told in ("'suspend'", "'hibernate'") and after != "0"
    file = f"{machine.environ.get('HOME', '')}/.config/powerdevilrc"
    kde = re.search(
        r"(?ms)^\[AC\]\[SuspendAndShutdown\][^\[]*^AutoSuspendAction=[12]\b",
        machine.read(file) or "",
    )
    if not (ours or kde) or sleep == "masked":
        return None
    return warn(
        "kernel log",
        f"the machine went to sleep {slept} times, and does so when nobody sits at it",
        "a training stops there, also one that was started over ssh",
        "sudo systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target; or "
        + ("KDE's Power Management" if kde else f"gsettings set {_DESKTOP} sleep-inactive-ac-type")
        + " nothing" * (not kde),
    )


def _unslept(machine: Machine, said: list[str]) -> Finding | None:
    """The driver did not let the machine sleep."""
    refused = [n for n, row in enumerate(said) if _NO_SLEEP.search(row)]
    # The kernel says that it is back from an attempt that failed as well.
    after = said[refused[-1] + 1 :] if refused else []
    again = next((n for n, row in enumerate(after) if _GOES.search(row)), len(after))
    if not refused or any(map(_BACK.search, after[again:])):
        return None
    enabled = machine.run("systemctl", "is-enabled", "nvidia-suspend").out.strip() == "enabled"
    return warn(
        "kernel log",
        "the machine was to sleep, and the driver refused (PreserveVideoMemoryAllocations)",
        "what saves the GPUs' memory did not run: sleep fails, or freezes the machine",
        "put it to sleep by systemctl suspend, which runs nvidia-suspend before"
        if enabled
        else "sudo systemctl enable nvidia-suspend nvidia-resume nvidia-hibernate; sudo reboot",
    )
