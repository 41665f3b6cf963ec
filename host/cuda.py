"""The host's driver and GPUs, and the newest CUDA line that fits them.

    CUDA=auto python3 -m host.cuda [any]

prints the line, or one line of why none fits. Without a driver that is the newest: it will run on
the CPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Mapping

from host import lines as table
from host import nvidia, plan, settings, visible
from host.errors import HostError, LockstepError, UsageError
from host.machine import Machine
from host.nvidia import Gpu
from host.text import whole


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver of this host, and the GPUs that CUDA sees."""

    version: str
    gpus: list[Gpu]

    @property
    def major(self) -> int | None:
        """580 of 580.65.06; None where the driver does not say."""
        return whole(self.version.split(".")[0])


def look(machine: Machine | None = None) -> Driver | None:
    """The driver and the GPUs that CUDA_VISIBLE_DEVICES leaves; None where no driver answers."""
    machine = machine or Machine()
    _, listed = nvidia.ask(machine)
    return Driver(listed[0].row["driver_version"], visible.seen(machine)) if listed else None


def fitting_line(
    environ: Mapping[str, str], driver: Driver | None, any_host: bool = False
) -> table.Line:
    """The CUDA line for the variables on this host.

    Args:
        any_host: what is to run needs no GPU, or runs elsewhere: nothing is refused but the name.

    Raises:
        HostError: there is no such line, or none that fits the GPUs it shall run on.
    """
    wanted = environ.get("CUDA") or "auto"
    try:
        return choose(table.lines(), driver, wanted)
    except HostError:
        if not (any_host or plan.on_cpu(environ)):
            raise
    return choose(table.lines(), None, wanted)  # the GPUs are of no concern


def fits(line: table.Line, driver: Driver | None) -> bool:
    """Whether a line runs on this host's GPUs, or has none to run on."""
    return driver is None or _why_not(line, driver) is None


def choose(lines: list[table.Line], driver: Driver | None, wanted: str) -> table.Line:
    """The CUDA line to use: the newest that fits, or the one that is wanted.

    Raises:
        HostError: there is no such line, or none that fits.
    """
    named = [line for line in lines if wanted in ("auto", line.name)]
    if not named:
        known = ", ".join(line.name for line in lines)
        raise UsageError(f"CUDA={wanted} is no CUDA line", f"use CUDA=auto or one of {known}")
    fitting = [line for line in lines if fits(line, driver)]
    if driver is None or any(line in fitting for line in named):
        return next(line for line in named if line in fitting)
    # Told of the line that came closest: the one asked for, or the oldest.
    closest = named[0] if wanted != "auto" else lines[-1]
    problem = _why_not(closest, driver) or ""
    raise HostError(problem, _way_out(lines, driver, fitting, closest))


def _why_not(line: table.Line, driver: Driver) -> str | None:
    # The GPU first: what it lacks no newer driver brings.
    for gpu in driver.gpus:
        if gpu.capability is not None and not line.runs_on(gpu.capability):
            return (
                f"{line.name} has no kernels for the {gpu.name}"
                f" (compute capability {_dotted(gpu.capability)})"
            )
    if driver.major is not None and driver.major < line.driver:
        return f"driver {driver.version} is older than {line.driver}, which {line.name} needs"
    return None


def _way_out(
    lines: list[table.Line], driver: Driver, fitting: list[table.Line], closest: table.Line
) -> str:
    known = [gpu.capability for gpu in driver.gpus if gpu.capability is not None]
    strangers = [c for c in known if not any(line.runs_on(c) for line in lines)]
    if strangers:
        hide = "hide it with CUDA_VISIBLE_DEVICES, or train on the CPU with CPUS=1"
        if strangers[0] > min(lines[0].capabilities):
            jetson = any(gpu.is_integrated for gpu in driver.gpus)
            newer = (
                "NVIDIA has wheels of torch for Jetson" if jetson else "a newer torch may know it"
            )
            return f"{hide}; {newer}, and requirements/ is where it stands"
        if strangers[0] < (5, 0):
            return f"{hide}; no torch of today knows cards before Maxwell, and no newer driver does"
        return f"{hide}; torch 2.14 for CUDA 12.6 was the last for Maxwell and Pascal"
    ways = [f"use CUDA={fitting[0].name}"] if fitting else []
    # The driver that would make the line asked for, or else the newest, run on these GPUs.
    able = [line for line in [closest, *lines] if all(line.runs_on(c) for c in known)]
    if able and driver.major is not None and driver.major < able[0].driver:
        ways.append(f"upgrade the driver to {able[0].driver} or newer")
    return ", or ".join(ways) or "hide one of the GPUs with CUDA_VISIBLE_DEVICES"


def _dotted(capability: nvidia.Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def main() -> int:
    """Print the line."""
    try:
        print(fitting_line(settings.read(), look(), any_host="any" in sys.argv[1:]).name)
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
