"""How a card gets the addresses that it needs, on boards and in guests that have too few."""

from __future__ import annotations

import re

from doctor import log
from host import pci
from host.machine import Machine

_HOST = (
    "on the machine that runs this one: VMware wants EFI firmware, pciPassthru.use64bitMMIO=TRUE"
    " and pciPassthru.64bitMMIOSizeGB, a power of two above the memory of all its GPUs; QEMU wants"
    " OVMF, q35 and -fw_cfg opt/ovmf/X-PciMmio64Mb (LXD, Incus: raw.qemu); or ask who runs it"
)
# https://github.com/cloud-hypervisor/cloud-hypervisor/issues/4451
_CLOUD_HYPERVISOR = (
    "on the machine that runs this one, a newer Cloud Hypervisor: old ones show the card's memory"
    " as not prefetchable, where the driver does not look; or QEMU"
)
# https://github.com/harvester/harvester/issues/8972
_KUBEVIRT = (
    "on the cluster that runs this one: cpu model host-passthrough with a firmware that places"
    " large windows (Harvester 1.5.2, 1.6.0 or newer); else a sidecar that gives QEMU -fw_cfg"
    " name=opt/ovmf/X-PciMmio64Mb,string=65536"
)
_APPLE = (
    "Apple's firmware gives an external card no large window: have its BAR1 made smaller before the"
    " driver is loaded, and the bridge above it removed and found again (see t2linux); with"
    " closed modules and options nvidia NVreg_EnableGpuFirmware=0"
)


def of_guest(machine: Machine) -> str:
    """In a virtual machine: how its host hands out more."""
    made = machine.read("/sys/class/dmi/id/product_name") or ""
    vendor = machine.read("/sys/class/dmi/id/sys_vendor") or ""
    if "KubeVirt" in f"{made} {vendor}":
        return _KUBEVIRT
    return _CLOUD_HYPERVISOR if "cloud-hypervisor" in made.lower() else _HOST


def of_board(machine: Machine) -> str | None:
    """How a card gets addresses, where it is not by the BIOS's usual settings."""
    ends = _last_address(machine)
    if ends is not None:
        return (
            f"this board's addresses end at {ends} GiB, and its memory has most of them: take"
            " memory out, or put the card into a board with Above 4G Decoding"
        )
    boxed = bool(pci.gpu_boxes(machine))
    if "pci=realloc" in (machine.read("/proc/cmdline") or ""):
        if "Apple" in (machine.read("/sys/class/dmi/id/sys_vendor") or ""):
            return _APPLE
        more = (
            "; boot with pci=assign-busses,hpbussize=8,hpmemsize=1G as well, which keeps room for"
            " what is plugged in"
        )
        return "update the BIOS; Above 4G Decoding and Resizable BAR there" + more * boxed
    if boxed:
        return (
            "BIOS: Above 4G Decoding and Resizable BAR; else boot with pci=realloc, or with"
            " pci=assign-busses,hpbussize=8,hpmemsize=1G, which keep room for what is plugged in"
        )
    return None


def _last_address(machine: Machine) -> int | None:
    """Where the addresses of an old board end, in GiB; None where they reach far enough."""
    text = "\n".join(log.lines(machine) or [])
    found = re.findall(r"root bus resource \[mem 0x\w+-0x(\w+) window\]", text)
    last = max((int(end, 16) for end in found), default=0) + 1
    return last >> 30 if 1 << 32 < last <= 1 << 36 else None
