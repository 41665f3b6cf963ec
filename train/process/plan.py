"""How an experiment's processes are planned here: refused or doubted before any of them starts."""

import sys
from collections.abc import Mapping

from host import limits, plan, stages
from host.errors import UsageError
from host.lanes import MEASURED, said, share, sharing
from host.nodes import Nodes
from host.plan import Plan
from train.config import Config


def of(
    config: Config,
    environ: Mapping[str, str],
    lanes: int | None,
    nodes: Nodes | None = None,
) -> Plan:
    """The plan that the variables in `environ` ask for.

    Args:
        lanes: what the processes have to share; None where any number of them will do.
        nodes: the machines that train together; None: this one alone.

    Raises:
        UsageError: the processes cannot share the lanes, or a variable has no sense.
        HostError: the machine has not what is asked for.
    """
    elastic = nodes is not None and nodes.least is not None
    if elastic and config.reproducibility == "deterministic":
        raise UsageError(
            "NODES=MIN:MAX goes on with another number of processes, which at deterministic gives"
            " other bits",
            "use --reproducibility lockstep, or NODES= a number",
        )
    level, asked = config.reproducibility, environ.get("SHARES", "")
    if asked and asked != MEASURED and elastic:
        raise UsageError(
            f"SHARES={asked} is for one number of processes, and NODES=MIN:MAX goes on with others",
            "leave SHARES out: then each gets as many lanes as the others, or one more; or use"
            f" SHARES={MEASURED}",
        )
    found = plan.for_machine(environ, lanes, level=level, portable=config.portable, nodes=nodes)
    fit = sharing(lanes, level) if lanes else [found.processes, limits.cpus()]
    staged = stages.asked(environ) if lanes is not None else None
    if staged is not None:
        stages.check(
            staged,
            found.processes,
            lanes=config.lanes,
            level=level,
            precision=found.precision,
            sharded=found.sharded,
            shares=asked,
            elastic=elastic,
            model=config.model,
        )
        fit = [*range(staged.count, found.processes + 1, staged.count)]
    elif lanes is not None and not elastic:  # each of them would say so, after seconds
        size = config.batch_size
        shares = share(
            lanes,
            found.processes,
            batch=size,
            level=level,
            asked=asked,
            sharded=found.sharded,
        )
        if asked == MEASURED and found.processes == 1:
            raise UsageError(
                f"SHARES={MEASURED} with 1 process, which runs all lanes",
                "use CPUS=2 or more, or GPUS=2 or more; or leave SHARES out",
            )
        if found.processes not in fit and asked in ("", MEASURED):
            fewer = max(n for n in fit if n < found.processes)
            _warn(f"{found.processes} processes run {said(shares)} lanes; {fewer} are as fast")
    cpus = limits.cpus()
    if found.device == "cpu" and found.local > cpus:
        enough = max((n for n in fit if n <= cpus), default=None)
        as_fast = f"; CPUS={enough} is as fast" if enough else ""
        _warn(f"{found.local} processes on {cpus} CPU{'s' * (cpus > 1)} take turns{as_fast}")
    return found


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
