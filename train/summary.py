"""The few lines that a run opens and closes with."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from host import lanes
from host.text import some
from train.config import Config
from train.lanes import order
from train.lanes.staging import Staging
from train.learn import models, pretrained
from train.learn.layers import depths
from train.measure import Metrics
from train.parts import Parts
from train.record import checkpoint
from train.record.provenance import hardware
from train.record.resume import State

# Parameters below which they are counted singly.
_SMALL = 10_000


def opening(parts: Parts, path: Path, step: int) -> str:
    """What is trained, where, and how the batch is shared."""
    config, runtime, data = parts.config, parts.runtime, parts.data
    count = sum(p.numel() for p in parts.unwrapped.parameters())
    size = _many(count)
    trained = sum(p.numel() for p in parts.unwrapped.parameters() if p.requires_grad)
    exact = _many(trained) if _many(trained) != size else f"{trained:,}"
    frozen = f", {exact} of them trained" if trained < count else ""
    where = hardware(runtime)
    precision = "" if where["mixed_precision"] == "no" else f", {where['mixed_precision']}"
    world, shares = runtime.world, runtime.shares
    even = len({len(share) for share in shares}) == 1
    each = f"{world} × {len(shares[0])}" if even else f"({lanes.said(shares)})"
    which = "processes × accumulation" if even else "lanes of each process"
    if runtime.stages is not None:
        shares = shares[:: world // runtime.copies]
        each, which = f"({lanes.said(shares)})", "lanes of each copy"
        if even:
            each, which = f"{runtime.copies} × {len(shares[0])}", "copies × lanes"
        if runtime.copies == 1:
            each, which = str(config.lanes), "lanes"
    images = f"{len(data.train):,} training and {len(data.validation):,} validation images"
    portable = ", portable" * (config.portable)
    kind = f"{config.reproducibility}{portable}, seed {config.seed}"
    processes = f"{world} process{'es' * (world > 1)}"
    share = f"{each} × {config.micro_batch} ({which} × micro-batch)"
    _, height, width = data.train.shape
    colour = "grey" if data.train.shape[0] == 1 else "colour"
    left = f"; left out: {_counted(data.left_out)}" if data.left_out else ""
    lines = [
        f"{config.data.source}: {images}, {width}×{height} {colour}{left}",
        f"{len(data.classes)} classes: {some(data.classes)}",
        f"{config.model.name}: {size} parameters{frozen}, {kind}",
        *_shards(parts),
        *pretrained.taken(config.model, parts.unwrapped),
        *models.published(config.model, parts.unwrapped),
        *_losses(config),
        *_rates(config, parts),
        *_length(config, parts),
        f"{processes} on {where['device']}{precision}: batch {config.batch_size} = {share}",
        f"going on after step {step} in {path}" if step else f"writing to {path}{_aside(path)}",
    ]
    return "\n".join(lines)


def _aside(path: Path) -> str:
    """What to know of a run whose folder was named without the one that all are in."""
    return "" if path.parent != Path() else ", which is not in runs/: `make runs` does not list it"


def _many(count: int) -> str:
    """Of parameters."""
    return f"{count / 1e6:.2f} M" if count >= _SMALL else f"{count:,}"


def _shards(parts: Parts) -> Iterator[str]:
    """How much of the weights this process holds."""
    if parts.sharding is None:
        return
    mine = _many(sum(shard.numel() for shard in parts.sharding.shards.values()))
    if isinstance(parts.sharding, Staging):
        stages = parts.sharding.stages
        begin, lanes = " and ".join(stages.cuts), len(parts.runtime.lanes)
        copies = parts.runtime.copies
        many = f"{copies} copies of the model in " if copies > 1 else ""
        costs = ", ".join(f"{100 * cost:.0f} %" for cost in stages.costs)
        waits = 100 * (stages.count - 1) / (lanes + stages.count - 1)
        yield (
            f"{many}{stages.count} stages: the later ones begin with {begin}; of a forward pass"
            f" they take {costs}; {mine} of these parameters on the first process"
        )
        yield (
            f"with {lanes} lanes a stage waits for others {waits:.0f} % of the time, if all take"
            " as long"
        )
    else:
        yield f"sharded (FSDP2): {mine} of these parameters on the first process"


def _losses(config: Config) -> Iterator[str]:
    """Why the loss of a training step and that of a validation are not alike."""
    smoothing = config.optim.label_smoothing
    said = [config.optim.loss] if config.optim.loss else []
    said += [f"with label smoothing {smoothing:g}"] if smoothing else []
    said += ["weighted by class"] if config.optim.class_weights else []
    said += ["of mixed pictures"] if config.augment.mixup or config.augment.cutmix else []
    if said:
        yield f"training loss: {', '.join(said)}; validation loss: plain cross-entropy"


def _rates(config: Config, parts: Parts) -> Iterator[str]:
    """How slowly the layers far from the output learn."""
    decay = config.optim.layer_decay
    if decay < 1:
        most = max(depths(parts.unwrapped).values())
        yield (
            f"{most + 1} layers, each at {decay:g} of the next one's learning rate: the first at"
            f" {decay**most:.2g} of the last one's"
        )


def _length(config: Config, parts: Parts) -> Iterator[str]:
    """That `max_steps` only ends a run, and makes none longer."""
    if config.max_steps is not None and config.max_steps > parts.steps:
        size = len(parts.data.train)
        epochs = math.ceil(config.max_steps * config.batch_size / size)
        yield (
            f"{config.epochs:g} epochs are {parts.steps:,} steps, fewer than max_steps"
            f" {config.max_steps:,}: for all of those --epochs {epochs}"
        )


def _counted(left_out: dict[str, str]) -> str:
    """How many files, and why."""
    reasons = Counter(left_out.values())
    return ", ".join(f"{count:,} ({why})" for why, count in reasons.most_common(3))


def result(parts: Parts, state: State, metrics: Metrics) -> dict[str, Any]:
    """What came out of a run, for its result.json."""
    samples = order.consumed(state.step, parts.config.batch_size, parts.samples)
    averaged = parts.average.state_dict() if parts.average else None
    return {
        "steps": state.step,
        "samples": samples,
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(samples / max(state.seconds, 1e-9), 1),
        "weights_sha256": checkpoint.weights_sha256(parts.unwrapped),
        **({"ema_sha256": checkpoint.tensors_sha256(averaged)} if averaged else {}),
        "classes": parts.data.classes,
        "metrics": metrics.full(),
        "best": {"step": state.best_step, "top1": state.best_top1},
    }


def closing(path: Path, result: dict[str, Any]) -> str:
    """What came out, from the run's result.json."""
    figures = result["metrics"]
    loss = math.nan if figures["loss"] is None else figures["loss"]
    average = ""
    if "ema_sha256" in result:
        average = f"their average, which was measured, {result['ema_sha256']}\n"
    return (
        f"validation top-1 {100 * figures['top1']:.2f} %, loss {loss:.4f}, after"
        f" {result['steps']} steps in {result['seconds']:.1f} s"
        f" ({result['samples_per_second']:,.0f} samples/s)\n"
        f"weights {result['weights_sha256']}\n"
        f"{average}"
        f"result in {path / 'result.json'}"
    )
