"""Which CUDA line fits driver and GPUs."""

from __future__ import annotations

from doctor.finding import Finding, fail, ok, skip
from host import cuda
from host import lines as table
from host.errors import LockstepError
from host.machine import Machine


def line(machine: Machine) -> Finding:
    """A CUDA line fits driver and GPUs: the table of the Dockerfile."""
    host = cuda.look(machine)
    if host is None:
        return skip("CUDA line", "no GPU")
    wanted = machine.environ.get("CUDA") or "auto"
    try:
        chosen = cuda.choose(table.lines(), host, wanted)
    except LockstepError as error:
        return fail("CUDA line", error.problem, "its kernels would not start there", error.fix)
    newest = table.lines()[0]
    unknown = sorted({gpu.name for gpu in host.gpus if gpu.capability is None})
    if unknown or host.major is None:
        what = f"compute capability of {', '.join(unknown)}" if unknown else "version of the driver"
        return ok("CUDA line", f"{chosen.name}; the {what} is not known")
    if chosen == newest or wanted != "auto":
        return ok("CUDA line", chosen.name)
    older = (
        host.major is not None
        and host.major < newest.driver
        and all(g.capability is None or newest.runs_on(g.capability) for g in host.gpus)
    )
    reason = f"driver {host.version} is older than {newest.driver}" if older else "for these GPUs"
    return ok("CUDA line", f"{chosen.name}: {reason}")
