"""STAGES: into how many stages a model is cut, each on a process of its own, or where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from host.errors import UsageError


@dataclass(frozen=True)
class Stages:
    """What STAGES says.

    Attributes:
        count: how many.
        names: the modules that stages begin with, from the second on; empty: where it is best.
        words: as it was said.
    """

    count: int
    names: tuple[str, ...]
    words: str


def asked(environ: Mapping[str, str]) -> Stages | None:
    """What `environ` asks for; None: each process has the whole model.

    Raises:
        UsageError: the variable has no sense.
    """
    said = environ.get("STAGES", "").strip()
    if not said:
        return None
    words = f"STAGES={said}"
    if said.isdecimal() and int(said) > 1:
        return Stages(int(said), (), words)
    # A comma behind one that is a number says that it is a name, as the layers of Sequential have.
    names = tuple(name.strip() for name in (said[:-1] if said.endswith(",") else said).split(","))
    if not all(names) or said.lstrip("-").isdecimal() or len(set(names)) < len(names):
        raise UsageError(
            f"{words} is neither a number of 2 or more nor names of modules",
            "use a number of stages (STAGES=2), or the modules that stages begin with, from the"
            " second on (STAGES=layer2,layer3; of one with a number for a name: STAGES=3,); or"
            " leave it out",
        )
    return Stages(len(names) + 1, names, words)


def check(
    staged: Stages,
    world: int,
    *,
    lanes: int,
    level: str,
    precision: str,
    sharded: bool,
    shares: str | None,
    elastic: bool,
    model: Any,
) -> None:
    """Refuse what stages would do otherwise, or not at all.

    Args:
        world: how many processes there are.
        lanes: what the copies of the model have to share.
        level: of `reproducibility`.
        sharded: whether ACCELERATE names FSDP.
        shares: what SHARES says.
        elastic: whether machines may go and come.
        model: the experiment's `model`.

    Raises:
        UsageError: naming the knob, or the variable.
    """
    without = "or leave STAGES out"
    copies, left = divmod(world, staged.count)
    most = max(1, min(copies, lanes)) * staged.count
    fix = f"use {most} in all (CPUS={most} or GPUS={most} on one machine), {without}"
    if left or not copies:
        raise UsageError(
            f"{staged.words} with {world} process{'es' * (world > 1)}: {staged.count} stages are"
            f" {staged.count} processes, or twice as many with two copies of the model, and so on",
            fix,
        )
    if copies > lanes:
        raise UsageError(
            f"{staged.words} with {world} processes are {copies} copies of the model, which cannot"
            f" share {lanes} lane{'s' * (lanes > 1)}",
            fix,
        )
    if sharded:
        raise UsageError(
            f"{staged.words} with ACCELERATE=fsdp: a weight is in one stage, or in parts on all",
            "leave one of them out",
        )
    if shares:
        raise UsageError(
            f"SHARES={shares} with {staged.words}: copies of the model have as many lanes, or one"
            " more",
            "leave SHARES out",
        )
    if elastic:
        raise UsageError(
            f"{staged.words} is for one number of processes, and NODES=MIN:MAX goes on with others",
            "leave STAGES out, or say NODES= a number",
        )
    if level != "lockstep":
        raise UsageError(
            f"reproducibility: {level} is about DDP's sums, and stages have those of lockstep",
            f"use --reproducibility lockstep, {without}",
        )
    if precision == "fp16":
        raise UsageError("FP16's loss scaler is not for stages", f"use bf16, {without}")
    for knob in ("compile", "channels_last"):
        if getattr(model, knob):
            raise UsageError(f"model.{knob} is not for stages", f"drop it, {without}")
