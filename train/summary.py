"""The few lines that a run opens and closes with."""

import math
from pathlib import Path
from typing import Any

from train.lanes import order
from train.measure import Metrics
from train.parts import Parts, State
from train.record import checkpoint
from train.record.provenance import hardware


def opening(parts: Parts, path: Path, step: int) -> str:
    """What is trained, where, and how the batch is shared."""
    config, runtime, data = parts.config, parts.runtime, parts.data
    millions = sum(p.numel() for p in parts.unwrapped.parameters()) / 1e6
    where = hardware(runtime)
    precision = "" if where["mixed_precision"] == "no" else f", {where['mixed_precision']}"
    world, each = runtime.world, len(runtime.lanes)
    images = f"{len(data.train):,} training and {len(data.validation):,} validation images"
    kind = f"{config.reproducibility}, seed {config.seed}"
    count = f"{world} process{'es' * (world > 1)}"
    share = f"{world} × {each} × {config.micro_batch} (processes × accumulation × micro-batch)"
    lines = [
        f"{config.data.source}: {images}, {len(data.classes)} classes",
        f"{config.model.name}: {millions:.2f} M parameters, {kind}",
        f"{count} on {where['device']}{precision}: batch {config.batch_size} = {share}",
        f"going on after step {step} in {path}" if step else f"writing to {path}",
    ]
    return "\n".join(lines)


def result(parts: Parts, state: State, metrics: Metrics) -> dict[str, Any]:
    """What came out of a run, for its result.json."""
    samples = order.consumed(state.step, parts.config.batch_size, parts.samples)
    return {
        "steps": state.step,
        "samples": samples,
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(samples / max(state.seconds, 1e-9), 1),
        "weights_sha256": checkpoint.weights_sha256(parts.unwrapped),
        "metrics": metrics.full(),
        "best": {"step": state.best_step, "top1": state.best_top1},
    }


def closing(path: Path, result: dict[str, Any]) -> str:
    """What came out, from the run's result.json."""
    figures = result["metrics"]
    loss = math.nan if figures["loss"] is None else figures["loss"]
    return (
        f"validation top-1 {100 * figures['top1']:.2f} %, loss {loss:.4f}, after"
        f" {result['steps']} steps in {result['seconds']:.1f} s"
        f" ({result['samples_per_second']:,.0f} samples/s)\n"
        f"weights {result['weights_sha256']}\n"
        f"result in {path / 'result.json'}"
    )
