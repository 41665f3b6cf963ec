"""nvidia-smi runs, and finds no device."""

from __future__ import annotations

from doctor import away, kind, reasons, slices, ungiven, unloaded, unsigned
from doctor.finding import Finding, fail, skip, warn
from host import limits, nvidia, pci
from host.machine import Machine

_CHARGER = (
    "where it went as the charger was pulled: options nvidia NVreg_DynamicPowerManagement=0x00 in"
    " /etc/modprobe.d (TLP: RUNTIME_PM_ON_BAT=on), and power it off and on; "
)
_BIND = "/sys/bus/pci/drivers/nvidia/bind"


def none_found(machine: Machine, cards: list[pci.Card]) -> Finding:
    """nvidia-smi finds no device: this job was given none, or the card did not start."""
    given = limits.in_container(machine.root) and not nvidia.devices(machine)
    job = limits.in_job(machine.environ, machine.root)
    scheduled = {"SLURM_JOB_ID", *ungiven.ASKS} & {*machine.environ}
    if cards and scheduled and not machine.environ.get("CPUS"):
        job = limits.job_gpus(machine.environ) is None
        if job and not given:
            unwell = fail if machine.environ.get("GPUS") else warn
            return ungiven.job(machine, unloaded.on_bus(cards), unwell)
    if given or job:
        return skip("driver", "this job or container was given no GPU")
    by = {card.driver for card in cards}
    outside = not limits.in_container(machine.root)
    if "nvidia" not in by and by.intersection(unloaded.OPEN) and outside:
        return unloaded.examine(machine, cards)
    known = reasons.logged(machine, cards)
    if known is not None:
        seen, why, fix = known
        return fail("driver", f"No devices were found; {seen}", why, f"{fix}; {unsigned.CPU}")
    return _unbound(machine, cards) or _silent(machine)


def _unbound(machine: Machine, cards: list[pci.Card]) -> Finding | None:
    """The driver is loaded, and has lost its cards, which are on the bus."""
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    if not cards or any(card.driver for card in cards) or inside or nvidia.devices(machine):
        return None
    off = away.switched_off(machine)
    again = f"for each: echo {cards[0].address} | sudo tee {_BIND}; else sudo reboot"
    if off is not None:
        again = f"{off[1]}; where supergfxctl hangs: mode Hybrid in /etc/supergfxd.conf, and reboot"
    unwell = fail if machine.environ.get("GPUS") else warn
    return unwell(
        "driver",
        f"{unloaded.on_bus(cards)}; the driver is loaded, and no card is bound to it"
        + (f": {off[0]}" if off else ""),
        "a tool that switches laptops' GPUs off, or somebody, took the card from its driver",
        f"{again}; {_CHARGER * kind.is_laptop(machine)}{unsigned.CPU}",
    )


def _silent(machine: Machine) -> Finding:
    """The driver finds no device, and says not why."""
    if not nvidia.devices(machine):
        return skip("driver", "this job or container was given no GPU")
    closed = slices.closed(machine)
    if closed is not None:
        return slices.shut(machine, "No devices were found", closed)
    step = "SLURM_JOB_ID" in machine.environ and "SLURM_STEP_GPUS" not in machine.environ
    if step and limits.job_gpus(machine.environ):
        return fail(
            "driver",
            "No devices were found; this step was given none of its job's GPUs",
            "another step has them, or it asked for none (--gres=none)",
            "srun --jobid=$SLURM_JOB_ID --overlap --gres=gpu:1 --pty bash",
        )
    if limits.in_container(machine.root):
        return fail(
            "driver",
            "No devices were found",
            "a card of the host's did not start, or is not this container's",
            "on the host: sudo dmesg | grep -iE 'nvrm|xid'; where you rent it, tell its owner, and"
            " take another machine",
        )
    return fail(
        "driver",
        "No devices were found",
        "a card did not start: power plug, address space (BIOS: Above 4G decoding), or too old",
        "sudo dmesg | grep -iE 'nvrm|xid'; after an upgrade the driver before, or the newest"
        " firmware of card and board (VBIOS): ask their maker",
    )
