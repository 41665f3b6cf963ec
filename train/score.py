"""The verb `evaluate`: figures of weights that were saved."""

import json
import sys
from pathlib import Path

from train import checkpoint, models, rundir, runtime
from train.data import Augmenter, load
from train.evaluate import evaluate
from train.experiment import parse


def score(run: Path | None, single: Path | None, root: str | None) -> None:
    """Measure a run's newest weights, or one checkpoint, and print the figures as JSON.

    Args:
        run, single: a run directory or a checkpoint directory; one of them.
        root: where the data is now, if elsewhere than when it was trained on.

    Raises:
        TrainError: what went wrong, for the user to mend.
    """
    path = single if single is not None else rundir.final_checkpoint(run or Path())
    found = checkpoint.read(path)
    recorded = found.state
    config = parse(recorded["config"], str(path))
    with runtime.start(config, training=False) as here:
        source = config.data if root is None else config.data.model_copy(update={"root": root})
        data = here.together(lambda: load(source))
        if here.main and data.sha256 != recorded["data_sha256"]:
            print("warning: the data is not what the weights were trained on", file=sys.stderr)
        # The weights come from the checkpoint, whatever the training started from.
        blank = config.model.model_copy(update={"weights": None})
        classes = len(recorded["classes"])
        channels, height, width = recorded["shape"]
        model = models.build(blank, classes, (channels, height, width))
        found.restore(model)
        model = here.accelerator.prepare_model(model.to(here.device), evaluation_mode=True)
        augmenter = Augmenter(config.augment, recorded["mean"], recorded["std"], here.device)
        block = config.eval.batch_size or config.micro_batch
        figures = evaluate(model, data.held_out, augmenter, here, classes=classes, block=block)
        if here.main:
            about = {"checkpoint": str(path), "step": recorded["step"]}
            print(json.dumps({**about, **figures.full()}))
