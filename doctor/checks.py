"""The host's half: all that can be seen before anything is installed."""

from __future__ import annotations

from typing import Callable

from doctor import (
    acs,
    boots,
    busy,
    clock,
    cuda_errors,
    cuda_line,
    disks,
    driver,
    engine,
    environment,
    gpus,
    handed,
    health,
    imagestore,
    infiniband,
    link,
    log,
    mig,
    network,
    nvlink,
    power,
    pytorch,
    shm,
    system,
    toolkit,
    ulimits,
    variables,
    vgpu,
    wsl,
)
from doctor.finding import Finding, warn
from host import plan
from host.errors import first_line
from host.machine import Machine

BROKEN = "not looked at"
"""How a finding begins whose check failed by an error of its own."""

# What takes milliseconds, and stands in the way of this training: `make train` runs these first.
_QUICK = (
    driver.driver,
    cuda_line.line,
    gpus.counted,
    health.state,
    health.memory_errors,
    busy.neighbours,
    link.freezes,
    wsl.wsl,
    disks.disk,
    clock.clock,
    disks.owner,
)
_ALL = (
    driver.driver,
    cuda_line.line,
    gpus.models,
    gpus.counted,
    health.state,
    gpus.equal,
    health.memory_errors,
    health.health,
    log.errors,
    mig.examine,
    vgpu.licence,
    power.slowed,
    busy.neighbours,
    cuda_errors.starts,
    pytorch.other,
    power.persistence,
    link.slots,
    nvlink.nvlink,
    acs.redirected,
    link.external,
    link.freezes,
    network.interfaces,
    infiniband.fabric,
    engine.engine,
    toolkit.toolkit,
    handed.examine,
    imagestore.room,
    environment.examine,
    wsl.wsl,
    system.processors,
    system.memory,
    shm.shared_memory,
    ulimits.examine,
    variables.examine,
    disks.disk,
    clock.clock,
    clock.synchronised,
    disks.owner,
    boots.last,
)
# These see to GPUs; who trains on the CPU need not hear of them.
_GPU = (
    driver.driver,
    cuda_line.line,
    gpus.counted,
    health.state,
    health.memory_errors,
    busy.neighbours,
    link.freezes,
)


def examine(machine: Machine) -> list[Finding]:
    """Every check."""
    return [_guarded(check, machine) for check in _ALL]


def quick(machine: Machine) -> list[Finding]:
    """The checks that take under a second together."""
    on_cpu = plan.on_cpu(machine.environ)
    return [_guarded(check, machine) for check in _QUICK if not (on_cpu and check in _GPU)]


def _guarded(check: Callable[[Machine], Finding], machine: Machine) -> Finding:
    """What a check found; an error of its own stops neither the others nor a training."""
    try:
        return check(machine)
    except Exception as error:  # a machine that nobody has seen before
        name = check.__name__.replace("_", " ")
        seen = f"{BROKEN}: {type(error).__name__}: {first_line(error)}"
        return warn(
            name,
            seen,
            "the doctor cannot read what this machine says; that is its own fault",
            "make doctor ARGS='--record here.json', and open an issue with that file",
        )
