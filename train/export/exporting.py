"""A checkpoint in the formats that are asked for, each checked on pictures."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from host import dotted
from host.dotted import is_path
from host.errors import DataError, HostError, LockstepError, UsageError
from train import trained
from train.config import Config
from train.data import load, loose
from train.experiment import moved, parse
from train.export import card, failing, formats, place
from train.export.deployed import Deployed, preprocessing
from train.export.failing import Failed
from train.export.formats import Call
from train.export.place import NAMES
from train.record import checkpoint, documents, provenance
from train.record.facts import Facts

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
class Removed:
    """A file of an earlier export, of other weights or code than those that stand beside it now."""

    file: Path


def export(
    path: Path,
    folder: Path,
    wanted: Sequence[str],
    *,
    root: str | None,
    pictures: Sequence[str],
    licence: str,
) -> Iterator[Checked | Failed | Removed]:
    """Write a checkpoint in each of these formats, with config.json and README.md beside them.

    An earlier export's files of the same weights and code stay; others are removed.

    Args:
        path: of the checkpoint.
        wanted: keys of NAMES.
        root: where the run's data is now; None: where it was.
        pictures: files to check with; none: the run's validation images.

    Raises:
        CheckpointError: it is damaged.
        UsageError, DataError: there are no pictures to check with, or nothing to write to.
    """
    place.check(folder)
    found = checkpoint.read(path)
    facts = found.facts
    config = moved(parse(facts.config, str(path)), root)
    dotted.check_there(config.own_code.values())
    if root is not None and pictures:
        raise UsageError("--data.root does nothing beside --pictures", "take one of them away")
    run = path.absolute().parent.parent
    trained.check_code(run)
    images = _images(config, facts, pictures)
    model = trained.built(found, config, len(facts.classes), facts.shape)
    # Some models change their buffers in whatever they do: what is written is the checkpoint's.
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sha256 = checkpoint.weights_sha256(model)
    deployed = Deployed(model.to(memory_format=torch.contiguous_format), facts.mean, facts.std)
    deployed.eval()
    known = _logits(deployed, images)
    said = card.about(run, config, found, preprocessing(config, facts), sha256)
    written = _written(config, facts)
    done: list[str] = []
    with _aside(folder) as aside:
        for name in wanted:
            file = aside / NAMES[name]
            model.load_state_dict(state)
            try:
                if name == "safetensors":
                    blank = trained.built(found, config, len(facts.classes), facts.shape)
                    call: Call = formats.safetensors(file, deployed, said, blank)
                else:
                    # One alone would be taken for the only number that there can be.
                    two = images[:1].expand(2, -1, -1, -1).contiguous()
                    call = getattr(formats, name)(file, deployed, said, two)
                checked = _compare(folder / file.name, known, _logits(call, images))
            except (LockstepError, MemoryError):
                raise
            except OSError as error:
                why = error.strerror or error
                raise HostError(
                    f"cannot write {folder / file.name}: {why}",
                    "make room, or name another: --to",
                ) from error
            except Exception as error:  # whatever an exporter raises
                yield failing.of(name, error)
                continue
            # What is no number is not near either.
            if not checked.difference <= _NEAR * max(1.0, float(known.abs().max())):
                yield Failed(name, f"it gives other logits, by {checked.difference:.2g}")
                continue
            done.append(name)
            yield checked
        if done:
            old = _put(
                aside, folder, done, config=config, said=said, written=written, licence=licence
            )
            yield from map(Removed, old)


def _written(config: Config, facts: Facts) -> dict[str, Any]:
    """What config.json says; and of which code a model of the user's own is."""
    written = card.config_json(config, facts, preprocessing(config, facts))
    package = config.model.name.partition(":")[0].split(".")[0]
    files = {
        name: sha256
        for name, sha256 in provenance.own_code(config).items()
        if is_path(config.model.name) and name.split(".")[0] == package
    }
    if files:
        written[place.CODE] = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    return written


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder for what is not known to agree: it must not be taken for what does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".new-") as name:
            yield Path(name)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise UsageError(f"cannot make {folder}: {why}", "name another: --to") from error


def _put(
    aside: Path,
    folder: Path,
    done: Sequence[str],
    *,
    config: Config,
    said: Mapping[str, Any],
    written: dict[str, Any],
    licence: str,
) -> list[Path]:
    """Move what agrees to its place, with a card; returns what was removed for it."""
    kept = {NAMES[name] for name in done}
    same, others = place.others(folder, said["weights_sha256"], written, kept)
    removed = [] if same else others
    for old in removed:
        old.unlink()
    for old in place.weights(folder):  # in other parts, maybe
        if any(old.name.startswith(name) for name in kept):
            old.unlink()
    for path in sorted(aside.iterdir()):
        if any(path.name.startswith(name) for name in kept):
            path.replace(folder / path.name)
    fix = "make room, or name another: --to"
    names = [path.name for path in place.weights(folder)]
    text = card.card(config, said, [*names, place.CONFIG], licence, written["library"])
    documents.write(folder / place.CONFIG, documents.text(written) + "\n", fix)
    documents.write(folder / place.CARD, text, fix)
    return removed


def _images(config: Config, facts: Facts, files: Sequence[str]) -> Tensor:
    """uint8 [N, C, H, W] to check with."""
    if files:
        listed = loose.listed([(word, True) for word in files])
        whole = slice(None)
        with closing(
            loose.batches(listed.names[:_MOST], config, facts.shape, whole, pin=False)
        ) as batches:
            read = list(batches)
        images = torch.cat([batch.images for batch in read])
        if not len(images):
            why = next(iter(read[0].bad.values()))
            raise DataError(f"none of the pictures can be used: {why}", "name others: --pictures")
        return images
    try:
        channels = {"channels": facts.shape[0]}
        every = load(config.data.model_copy(update=channels), config.augment, config.eval)
    except LockstepError as error:
        raise DataError(
            f"there are no pictures to check with: {error.problem}",
            "--data.root DIR, where the run's data is now, or --pictures FILE, any that you have",
        ) from error
    if facts.data_sha256 not in (None, every.sha256):
        trained.warn(
            "the data is not what the weights were trained on: it is checked with pictures that may"
            " be other ones"
        )
    data = every.validation
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
