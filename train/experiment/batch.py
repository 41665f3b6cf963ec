"""Another batch size than the experiment's, and the learning rate that rules of thumb give it."""

import math
from pathlib import Path
from typing import Any

from train.config import Config
from train.experiment.reading import read_yaml

# Of SGD: https://arxiv.org/abs/1706.02677. Of optimizers that divide by the gradient's size:
# https://arxiv.org/abs/2205.10287.
_LINEAR = ("sgd",)


def advice(file: Path | None, knobs: dict[str, Any], config: Config) -> str | None:
    """A line for who changes the batch size and leaves the learning rate; nothing is applied.

    Args:
        file: the experiment's own file.
        knobs: what was said beside it.
        config: what comes of both.
    """
    if file is None or "batch_size" not in knobs or "lr" in knobs.get("optim", {}):
        return None
    own = read_yaml(file).get("batch_size", Config.model_fields["batch_size"].default)
    if not isinstance(own, int) or own == config.batch_size:
        return None
    times = config.batch_size / own
    linear = config.optim.name in _LINEAR
    rate = config.optim.lr * (times if linear else math.sqrt(times))
    return (
        f"batch {config.batch_size:,} is {times:.3g} × {own:,} of {file}: by the"
        f" {'linear' if linear else 'square-root'} rule it goes with --optim.lr {rate:.3g};"
        f" it stays {config.optim.lr:g}"
    )
