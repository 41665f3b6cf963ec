"""The host's half: all that can be seen before anything is installed."""

from __future__ import annotations

from doctor import driver, engine, gpus, link, network, system
from doctor.finding import Finding
from host import plan
from host.machine import Machine

# What takes milliseconds, and stands in the way of this training: `make train` runs these first.
_QUICK = (
    driver.driver,
    driver.line,
    gpus.memory_errors,
    gpus.neighbours,
    driver.wsl,
    system.disk,
    system.clock,
    system.owner,
)
_ALL = (
    driver.driver,
    driver.line,
    gpus.models,
    gpus.equal,
    gpus.memory_errors,
    gpus.mig,
    gpus.slowed,
    gpus.neighbours,
    gpus.persistence,
    link.slots,
    link.external,
    network.interfaces,
    network.fabric,
    engine.engine,
    engine.toolkit,
    engine.in_container,
    engine.room,
    engine.environment,
    driver.wsl,
    system.processors,
    system.memory,
    system.shared_memory,
    system.user_limits,
    system.disk,
    system.clock,
    system.synchronised,
    system.owner,
)
# These see to GPUs; who trains on the CPU need not hear of them.
_GPU = (
    driver.driver,
    driver.line,
    gpus.memory_errors,
    gpus.neighbours,
)


def examine(machine: Machine) -> list[Finding]:
    """Every check."""
    return [check(machine) for check in _ALL]


def quick(machine: Machine) -> list[Finding]:
    """The checks that take under a second together."""
    on_cpu = plan.on_cpu(machine.environ)
    return [check(machine) for check in _QUICK if not (on_cpu and check in _GPU)]
