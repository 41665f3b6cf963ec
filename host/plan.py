"""How many processes train, on what and at which precision: from make's variables, made once.

PRECISION and ACCELERATE are read here, GPUS and CPUS in `host.asked`, and nowhere else. The
hardware config that follows from them (a file of configs/accelerate) and what `accelerate launch`
is told beside it stand in the plan as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Mapping

from host import hardware, stages
from host.asked import Asked, ask, is_choice, too_few
from host.errors import HostError, UsageError
from host.lanes import sharing
from host.machine import Machine
from host.nodes import Nodes
from host.stages import Stages
from host.visible import seen

PRECISIONS = ("no", "fp16", "bf16")
MULTI_NODE = "multi_node"
"""The hardware config of several machines."""


@dataclass(frozen=True)
class Plan:
    """What is to be started on this machine.

    Attributes:
        processes: how many, on all machines together.
        device: cuda or cpu.
        precision: no, fp16 or bf16.
        config: the hardware config's file.
        words: what `accelerate launch` is told: the file, and what it does not say.
        single: whether that launcher would set two variables for one process, and nothing else.
        nodes: the machines that train together; None: this one alone.
        sharded: whether weights are spread over the processes.
    """

    processes: int
    device: str
    precision: str
    config: Path
    words: tuple[str, ...]
    single: bool
    nodes: Nodes | None = None
    sharded: bool = False

    @property
    def local(self) -> int:
        """Processes on this machine."""
        return self.processes // (self.nodes.count if self.nodes else 1)

    @property
    def variables(self) -> dict[str, str]:
        """What Accelerate's launcher tells each process of where to compute."""
        cpu = "true" if self.device == "cpu" else "false"
        return {"ACCELERATE_USE_CPU": cpu, "ACCELERATE_MIXED_PRECISION": self.precision}


def make(
    environ: Mapping[str, str],
    visible: int,
    lanes: int | None = None,
    *,
    level: str = "lockstep",
    portable: bool = False,
    nodes: Nodes | None = None,
) -> Plan:
    """The plan for the variables in `environ` on a machine where CUDA sees `visible` GPUs.

    Args:
        lanes: what the processes have to share; None where any number of them will do.
        level: of the experiment's `reproducibility`.
        portable: whether the experiment asks for `numerics: portable`, FP32 on the CPU.
        nodes: the machines that train together, each with as many processes; None: this one alone.

    Raises:
        UsageError: a variable has no sense, or contradicts another or the experiment.
        HostError: more GPUs are asked for than there are, or a precision the device lacks.
    """
    precision = environ.get("PRECISION", "")
    if precision not in ("", *PRECISIONS):
        raise UsageError(f"PRECISION={precision} is none of no, fp16, bf16", "choose one of them")
    asked = ask(environ, visible)
    name = environ.get("ACCELERATE", "")
    if nodes is not None:
        name, asked = _on_each(nodes, name, asked, visible)
        if not asked.words and nodes.processes:  # what the cluster gives; fewer may share the lanes
            visible = min(visible, nodes.processes)
    if portable and asked.device is None and not name:
        asked = Asked("cpu", None, "")
    plan = (
        _named(name, asked, precision, visible)
        if name
        else _chosen(
            asked, precision, visible, _fit(lanes, nodes, visible, level, stages.asked(environ))
        )
    )
    if plan.device == "cuda" and plan.processes > visible:
        words, cpus = asked.words or f"ACCELERATE={name}", plan.processes if plan.sharded else 1
        raise too_few(words, plan.processes, visible, cpus)
    if plan.device == "cpu" and plan.precision == "fp16":
        bf16 = "PRECISION=bf16" + " with --numerics native" * portable
        raise HostError("FP16 needs a GPU", f"use {bf16}, or PRECISION=no, on the CPU")
    if portable:
        _check_portable(plan, asked.words or f"ACCELERATE={name}")
    if nodes is not None:  # torchrun starts them, and says no more than these
        path = hardware.read(MULTI_NODE).path
        every = plan.processes * nodes.count
        plan = replace(plan, processes=every, config=path, words=(), single=False, nodes=nodes)
    return plan


def for_machine(
    environ: Mapping[str, str],
    lanes: int | None = None,
    *,
    level: str = "lockstep",
    portable: bool = False,
    nodes: Nodes | None = None,
) -> Plan:
    """As `make`, on this machine."""
    visible = len(seen(Machine(environ=environ)))
    return make(environ, visible, lanes, level=level, portable=portable, nodes=nodes)


def _fit(
    lanes: int | None, nodes: Nodes | None, visible: int, level: str, staged: Stages | None
) -> int:
    """How many of the visible GPUs of a machine can share its lanes, each or so many at once."""
    if lanes is None or not visible:
        return visible
    if nodes is not None:
        lanes = max(1, lanes // nodes.count)
    each = staged.count if staged is not None else 1
    if each > visible:  # of a model in stages: refused where that is known
        return visible
    return each * max(n for n in sharing(lanes, level) if n <= visible // each)


def _on_each(nodes: Nodes, name: str, asked: Asked, visible: int) -> tuple[str, Asked]:
    """What each of several machines is asked for."""
    if name not in ("", MULTI_NODE):
        raise UsageError(
            f"ACCELERATE={name} is about one machine, and {nodes.told_by} says {nodes.count}",
            "leave it out: GPUS= or CPUS=, and PRECISION=, say what each machine starts",
        )
    if asked.device is None and nodes.processes and not visible:
        asked = Asked("cpu", nodes.processes, f"{nodes.told_by}: {nodes.processes} a node")
    return "", asked


def on_cpu(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for the CPU, whatever GPUs there are.

    Raises:
        UsageError: a variable has no sense.
    """
    device = "cuda" if is_choice(environ.get("GPUS", "")) else ask(environ, 0).device
    name = environ.get("ACCELERATE", "")
    return device == "cpu" or (
        device is None and bool(name) and hardware.read(name).device == "cpu"
    )


def _check_portable(plan: Plan, words: str) -> None:
    if plan.device != "cpu":
        raise not_portable(f"{words} computes on GPUs")
    if plan.precision != "no":
        raise not_portable(f"{plan.precision.upper()} is asked for")


def not_portable(what: str) -> UsageError:
    """The hardware that was asked for cannot give the bits that all machines share."""
    return UsageError(
        f"the experiment says numerics: portable, which is FP32 on the CPU, and {what}",
        'leave that out, or train with --numerics native (make: ARGS="--numerics native")',
    )


def _chosen(asked: Asked, precision: str, visible: int, fit: int) -> Plan:
    """The hardware config that fits what is asked for; `fit` GPUs where no number is."""
    device = asked.device or ("cuda" if visible else "cpu")
    if asked.count is not None:
        count = asked.count
    elif device == "cuda":  # as many as can share the lanes
        if not visible:
            raise too_few(asked.words, 1, 0)
        count = fit
    else:
        count = 1
    kind = precision or "no"
    extra: list[str] = []
    if device == "cpu":
        name = "cpu" if count == 1 else "multi_cpu"
        extra = [] if kind == "no" else ["--mixed_precision", kind]
    else:
        name = kind if kind != "no" else "gpu" if count == 1 else "multi_gpu"
    told = [] if name in ("cpu", "gpu") else ["--num_processes", str(count)]
    found = hardware.read(name)
    words = ("--config_file", str(found.path), *told, *extra)
    return Plan(count, device, kind, found.path, words, found.plain)


def _named(name: str, asked: Asked, precision: str, visible: int) -> Plan:
    """The hardware config that ACCELERATE names, and what is asked for beside it."""
    found = hardware.read(name)
    device = asked.device or found.device
    if device != found.device and not found.sharded:
        where = {"cuda": "GPUs", "cpu": "the CPU"}[found.device]
        raise UsageError(
            f"{asked.words}, and ACCELERATE={name} computes on {where}", "set one of them"
        )
    if asked.count not in (None, 1) and not found.several:
        several = f"multi_{'cpu' if found.device == 'cpu' else 'gpu'}"
        raise UsageError(
            f"{asked.words}, and ACCELERATE={name} starts one process",
            f"leave ACCELERATE out, or name one that starts several, such as {several}",
        )
    kind = precision or found.precision
    if kind not in PRECISIONS:
        raise UsageError(
            f"ACCELERATE={name} asks for {kind}, which this trainer does not do",
            f"set PRECISION to one of {', '.join(PRECISIONS)}",
        )
    # Where the file does not say how many, Accelerate takes all that it sees.
    count = asked.count or found.processes or max(1, visible)
    extra = ["--num_processes", str(count)] if asked.count and found.several else []
    if device != found.device:
        extra += ["--gpu_ids=-1,-1"]  # as multi_cpu.yaml hides all GPUs
    extra += ["--mixed_precision", precision] if precision else []
    words = ("--config_file", str(found.path), *extra)
    sharded = found.sharded and count > 1
    return Plan(count, device, kind, found.path, words, found.plain, sharded=sharded)
