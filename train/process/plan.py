"""How an experiment's processes are planned here: refused or doubted before any of them starts."""

import sys
from collections.abc import Mapping

from host import limits, plan
from host.errors import UsageError
from host.lanes import share, sharing
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
    found = plan.for_machine(environ, lanes, portable=config.portable, nodes=nodes)
    if lanes is not None and not elastic:  # each of them would say so, after seconds
        share(lanes, 0, found.processes, batch=config.batch_size, lockstep=config.lockstep)
    cpus = limits.cpus()
    if found.device == "cpu" and found.local > cpus:
        enough = max(n for n in (sharing(lanes) if lanes else [cpus]) if n <= cpus)
        print(
            f"warning: {found.local} processes on {cpus} CPU{'s' * (cpus > 1)} take turns;"
            f" CPUS={enough} is as fast",
            file=sys.stderr,
        )
    return found
