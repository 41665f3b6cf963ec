"""What a trained model says of pictures that are of no data set."""

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from train.data import Augmenter, loose, mosaic
from train.learn.inference import Inference
from train.measure import predicted_class, probabilities
from train.predictions.table import rounded
from train.trained import Trained

Row = dict[str, Any]


@torch.no_grad()
def predicted(it: Trained, names: list[str], top: int) -> Iterator[list[Row]]:
    """What it says of each file, in their order, as an evaluation's batches would have them.

    All processes must ask together; each gets all of it. A row has `file`, and `class`,
    `probability` and the first ones of all as `top`; or `error`, where there is nothing to say.
    """
    config, facts, runtime = it.config, it.facts, it.runtime
    model = it.model(len(facts.classes), facts.shape)
    augmenter = Augmenter(config.augment, facts.mean, facts.std, runtime.device)
    mine = slice(runtime.rank, None, runtime.world)
    pin = runtime.device.type == "cuda"
    with (
        Inference(model, config.seed) as inference,
        closing(loose.batches(names, config, facts.shape, mine, pin=pin)) as batches,
    ):
        # Some processes have a batch less; all must be there for what the others say.
        for _ in range(math.ceil(len(names) / config.eval_batch / runtime.world)):
            batch, said = next(batches, None), {}
            if batch is not None:
                said = {number: {"error": why} for number, why in batch.bad.items()}
                if batch.numbers:
                    images = augmenter.normalize(batch.images.to(runtime.device))
                    logits = inference.logits(images, batch.start)
                    said |= dict(zip(batch.numbers, _said(logits, facts.classes, top), strict=True))
                for number in batch.dark:
                    said[number]["doubt"] = "it has more than 8 bits and is nearly black"
            rows = [{"file": names[number], **said[number]} for number in sorted(said)]
            yield [row for each in runtime.gathered(rows) for row in each]


def draw(it: Trained, rows: list[Row]) -> Image.Image:
    """Pictures that something was said of, as the model got them, over their classes."""
    names, every = [row["file"] for row in rows], slice(None)
    with closing(loose.batches(names, it.config, it.facts.shape, every, pin=False)) as batches:
        images = torch.cat([batch.images for batch in batches])
    words = [f"{row['class']} {100 * row['probability']:.0f} %" for row in rows]
    return mosaic.sheet(images, words)


def _said(logits: Tensor, classes: list[str], top: int) -> Iterator[Row]:
    shares = probabilities(logits)
    # The class is what an evaluation takes where several are as probable; the others follow.
    chosen = shares.scatter(1, predicted_class(logits)[:, None], 2.0)
    order = chosen.sort(dim=1, descending=True, stable=True).indices[:, :top]
    best = shares.gather(1, order)
    for values, places in zip(best.tolist(), order.tolist(), strict=True):
        if not all(map(math.isfinite, values)):
            yield {"error": "the model gives no numbers for it"}
            continue
        first = [
            {"class": classes[place], "probability": rounded(value)}
            for value, place in zip(values, places, strict=True)
        ]
        yield {**first[0], "top": first}
