"""A checkpoint in the formats that are asked for, each checked on pictures."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from host import dotted
from host.errors import DataError, LockstepError, UsageError, first_line
from train import trained
from train.config import Config
from train.data import load, loose
from train.experiment import moved, parse
from train.export import card, formats
from train.export.deployed import Deployed, preprocessing
from train.export.formats import Call
from train.record import checkpoint, documents
from train.record.facts import Facts

NAMES = {"safetensors": "model.safetensors", "onnx": "model.onnx", "pt2": "model.pt2"}
_MOST = 512  # pictures
_BATCH = 64
# Of the largest logit: what an order of additions may change, and a wrong weight does not.
_NEAR = 1e-3


@dataclass(frozen=True)
class Checked:
    """A file that gives what the checkpoint gives.

    Attributes:
        difference: the largest one of a logit.
        others: pictures that are of another class by it.
    """

    file: Path
    difference: float
    others: int
    pictures: int


@dataclass(frozen=True)
class Failed:
    """A format that this model does not go into."""

    name: str
    why: str
    error: Exception | None = None


def export(
    path: Path,
    folder: Path,
    wanted: Sequence[str],
    *,
    root: str | None,
    pictures: Sequence[str],
    licence: str,
) -> Iterator[Checked | Failed]:
    """Write a checkpoint in each of these formats, with config.json and README.md beside them.

    Args:
        path: of the checkpoint.
        wanted: keys of NAMES.
        root: where the run's data is now; None: where it was.
        pictures: files to check with; none: the run's validation images.

    Raises:
        CheckpointError: it is damaged.
        UsageError, DataError: there are no pictures to check with, or nothing to write to.
    """
    found = checkpoint.read(path)
    facts = found.facts
    config = moved(parse(facts.config, str(path)), root)
    dotted.check_there(config.own_code.values())
    images = _images(config, facts, pictures)
    model = trained.built(found, config, len(facts.classes), facts.shape)
    deployed = Deployed(model.to(memory_format=torch.contiguous_format), facts.mean, facts.std)
    deployed.eval()
    known = _logits(deployed, images)
    run = path.absolute().parent.parent
    said = card.about(
        run, config, found, preprocessing(config, facts), checkpoint.weights_sha256(model)
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}", "name another: --to") from error
    done: list[str] = []
    for name in wanted:
        file = folder / NAMES[name]
        # Aside first: what does not agree must not be taken for what does.
        aside = folder / f".new-{file.name}"
        try:
            if name == "safetensors":
                blank = trained.built(found, config, len(facts.classes), facts.shape)
                call: Call = formats.safetensors(aside, deployed, said, blank)
            else:
                call = getattr(formats, name)(aside, deployed, said, images[:2])
            checked = _compare(file, known, _logits(call, images))
            if checked.difference > _NEAR * max(1.0, float(known.abs().max())):
                yield Failed(
                    name, f"it gives other logits: they differ by {checked.difference:.2g}"
                )
                continue
            aside.replace(file)
        except (LockstepError, MemoryError):
            raise
        except Exception as error:  # whatever an exporter raises
            yield Failed(name, f"{type(error).__name__}: {first_line(error)}", error)
            continue
        finally:
            aside.unlink(missing_ok=True)
        done.append(file.name)
        yield checked
    if done:
        written = card.config_json(config, facts, preprocessing(config, facts))
        documents.write_json(folder / "config.json", written)
        text = card.card(run, said, [*done, "config.json"], licence, written["library"])
        documents.write(folder / "README.md", text)


def _images(config: Config, facts: Facts, files: Sequence[str]) -> Tensor:
    """uint8 [N, C, H, W] to check with."""
    if files:
        listed = loose.listed([(word, True) for word in files])
        every = slice(None)
        with closing(
            loose.batches(listed.names[:_MOST], config, facts.shape, every, pin=False)
        ) as batches:
            some = [batch.images for batch in batches]
        images = torch.cat(some) if some else torch.empty(0)
        if not len(images):
            raise DataError("none of the pictures can be used", "name others: --pictures")
        return images
    try:
        channels = {"channels": facts.shape[0]}
        data = load(config.data.model_copy(update=channels), config.augment, config.eval).validation
    except LockstepError as error:
        raise DataError(
            f"there are no pictures to check with: {error.problem}",
            "--data.root DIR, where the run's data is now, or --pictures FILE, any that you have",
        ) from error
    step = max(1, len(data) // _MOST)
    return data.images(torch.arange(0, len(data), step)[:_MOST])


def _logits(call: Call, images: Tensor) -> Tensor:
    """One picture alone, and the others in batches: a program must take any number."""
    with torch.no_grad():
        parts = [images[:1], *torch.split(images[1:], _BATCH)]
        return torch.cat([call(part.contiguous()) for part in parts if len(part)])


def _compare(file: Path, known: Tensor, found: Tensor) -> Checked:
    others = int((known.argmax(1) != found.argmax(1)).sum())
    return Checked(file, float((known - found).abs().max()), others, len(known))
