"""The verb `evaluate`: figures of weights that were saved."""

import json
import os
import sys
from pathlib import Path

import torch

from train import checkpoint, models, rundir, runtime
from train.data import Augmenter, load
from train.errors import DataError
from train.evaluate import evaluate
from train.experiment import parse
from train.interrupt import StopFlag


def score(run: Path | None, single: Path | None, root: str | None) -> None:
    """Measure a run's newest weights, or one checkpoint, and print the figures as JSON.

    Args:
        run, single: a run directory or a checkpoint directory; one of them, or the newest run.
        root: where the data is now, if elsewhere than when it was trained on.

    Raises:
        TrainError: what went wrong, for the user to mend.
    """
    path = single if single is not None else rundir.final_checkpoint(run or rundir.newest())
    found = checkpoint.read(path)
    recorded = found.state
    config = parse(recorded["config"], str(path))
    # In the precision of the training, or its figures would not come out again.
    precision = recorded["mixed_precision"]
    if precision == "fp16" and not torch.cuda.is_available():
        _warn("trained in FP16, which needs a GPU: measured in FP32, figures may differ slightly")
        precision = "no"
    with runtime.start(config, training=False, precision=precision) as here:
        source = config.data if root is None else config.data.model_copy(update={"root": root})
        data = here.together(lambda: load(source, fingerprint=here.main))
        channels, height, width = recorded["shape"]
        if data.classes != recorded["classes"] or data.train.shape != (channels, height, width):
            raise DataError(
                "the data has other classes or another size than the weights were trained on",
                "name the right data with --data.root",
            )
        # A large data set that was trained on at `fast` was not hashed.
        if here.main and recorded["data_sha256"] not in (None, data.sha256):
            _warn("the data is not what the weights were trained on")
        # The weights come from the checkpoint, whatever the training started from.
        blank = config.model.model_copy(update={"weights": None})
        model = models.build(blank, len(data.classes), data.train.shape)
        found.restore(model)
        model = here.accelerator.prepare_model(model.to(here.device), evaluation_mode=True)
        augmenter = Augmenter(config.augment, recorded["mean"], recorded["std"], here.device)
        metrics = evaluate(model, data, augmenter, here, config, stop=StopFlag())
        if here.main and metrics:
            print(
                f"top-1 {100 * metrics.top1:.2f} %, loss {metrics.loss:.4f} on {metrics.samples}"
                f" images, after step {recorded['step']}",
                file=sys.stderr,
            )
            about = {"checkpoint": str(path), "step": recorded["step"]}
            print(json.dumps({**about, **metrics.full()}))


def _warn(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"warning: {text}", file=sys.stderr)
