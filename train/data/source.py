"""The training and the validation split of a source: shape, statistics, fingerprint.

Raises DataError throughout, with what is wrong and how to mend it.
"""

import hashlib
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from host import dotted
from host.errors import DataError, OutOfMemory, UsageError
from host.text import printable
from train.config import Augment, Data
from train.data import twins, unusable
from train.data.images import Split
from train.data.pictures import Arrays, Found, Labelled
from train.data.scaled import sizes_of
from train.data.scan import COLOUR, Scan, reading, scan
from train.data.sources import cifar, digits, folder, idx, own, synthetic
from train.data.statistics import statistics
from train.data.store import keep, prepare

_DARK = 0.25  # share of white below which 16-bit pictures hold fewer bits than they could
_LISTED = 1000  # names in a record


@dataclass(frozen=True)
class ImageData:
    """A training and a validation split with the same classes.

    Attributes:
        classes: their names, in label order.
        mean, std: of each channel, pixels from 0 to 1.
        sha256: over the bytes of all pictures, their labels and the classes.
        left_out: files that are no data, and why, by name.
        skipped: pictures that cannot be read, and why, by name.
        doubts: what else a person should know of it.
        held_out: whether the validation split is a share of the source's only one.
    """

    train: Split
    validation: Split
    classes: list[str]
    mean: list[float]
    std: list[float]
    sha256: str
    left_out: dict[str, str]
    skipped: dict[str, str]
    doubts: list[str]
    held_out: bool = False

    def mark(self) -> str:
        """SHA-256 over all that enters the model before it is varied."""
        about = f"{self.sha256} {self.train.shape} {self.mean} {self.std}"
        return hashlib.sha256(about.encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """What there is, and what was left out and why, for a run's record."""
        return {
            "sha256": self.sha256,
            "training": len(self.train),
            "validation": len(self.validation),
            "shape": list(self.train.shape),
            "left_out": _listed(self.left_out),
            "skipped": _listed(self.skipped),
            "doubts": self.doubts,
        }

    def resident(self, device: torch.device) -> int:
        """Bytes of images that each process keeps in the memory of such a device for itself."""
        splits = (self.train, self.validation)
        kept = [s.resident for s in splits if s.resident is not None and not s.mapped]
        return sum(each.nbytes for each in kept if each.device.type == device.type)

    def placed(self, config: Data, device: torch.device) -> "ImageData":
        """The same, its images where `data.cache_on` wants them for a training on `device`.

        Raises:
            UsageError: they take more than `data.cache`.
            OutOfMemory: they take more than the GPU has left.
        """
        if config.cache_on == "host":
            return self
        size = self.wanted(config)
        try:
            train, validation = (split.on(device) for split in (self.train, self.validation))
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"data.cache_on: gpu, and the GPU has not the {size / 2**30:.2f} GiB left that the"
                " images take",
                "--data.cache_on host gives the same bits",
                one_rank=True,
            ) from error
        return replace(self, train=train, validation=validation)

    def wanted(self, config: Data) -> int:
        """Bytes that all images take in a GPU's memory.

        Raises:
            UsageError: a split takes more than `data.cache`.
        """
        splits = (self.train, self.validation)
        most = max([s.nbytes for s in splits if s.resident is None], default=0) / 2**30
        if most:
            raise UsageError(
                f"data.cache_on: gpu, and a split's images take {most:.2f} GiB, more than"
                f" data.cache ({config.cache:g})",
                f"set --data.cache {math.ceil(10 * most) / 10:g} if the GPU has room for that",
            )
        return sum(split.nbytes for split in splits)


def check_place(config: Data, device: torch.device) -> None:
    """See, before anything is read, that there is a GPU where images are to be kept on one.

    Raises:
        UsageError: there is none.
    """
    if config.cache_on == "gpu" and device.type != "cuda":
        raise UsageError(
            f"data.cache_on: gpu, and this training is on the {device.type.upper()}",
            "--data.cache_on host gives the same pixels",
        )


def _listed(names: dict[str, str]) -> dict[str, Any]:
    """How many, and why, of the first ones by name."""
    first = sorted(names.items())[:_LISTED]
    return {"count": len(names), "why": {printable(name): why for name, why in first}}


def load(config: Data, augment: Augment | None = None, *, listing: bool = False) -> ImageData:
    """Both splits of the source that the experiment names.

    Args:
        augment: how training images are varied, where they are.
        listing: whether what cannot be used is to be listed, whatever the experiment does about it.
    """
    found = _find(config)
    scans = [_scan(split, config) for split in (found.train, found.validation)]
    skipped = found.bad | dict(unusable.bad(found, scans))
    if skipped and config.on_bad == "error" and not listing:
        total = len(found.train.labels) + len(found.validation.labels) + len(found.bad)
        raise DataError(
            f"{len(skipped):,} of {total:,} pictures cannot be used: {unusable.by_reason(skipped)}",
            "mend or remove them, or train without them: --data.on_bad skip",
        )
    splits, scans = unusable.without(found, scans, skipped)
    _check_wide(splits, scans, config)
    shape = _shape(splits, scans, config)
    made = [
        Split(
            each.pictures,
            each.labels,
            shape,
            resize=config.size is not None,
            reading=reading(config),
            digests=None if seen is None else seen.digests,
            prepare=config.prepare,
        )
        for each, seen in zip(splits, scans, strict=True)
    ]
    sha256 = _fingerprint(splits, scans, found.classes)
    names = [f"{sha256} {name}" for name in unusable.SPLITS]
    crop = augment.crop if augment is not None else None
    if config.prepare is not None:
        if any(seen is None for seen in scans):
            raise UsageError(
                "data.prepare is set, and the pictures are pixels already", "take it away"
            )
        train, validation = (
            prepare(split, seen.sizes, config, name)
            for split, seen, name in zip(made, scans, names, strict=True)
            if seen is not None
        )
        train = replace(train, crop=crop)
    else:
        train, validation = made
        train = replace(train, crop=crop) if crop else keep(train, config, names[0])
        validation = keep(validation, config, names[1])
    mean, std = statistics(train, config, sha256)
    doubts = [*twins.doubts(splits, scans)]
    own = dotted.is_path(config.source)  # which may have looked at it
    if found.both and config.holdout != Data().holdout and not own:
        doubts.append("data.holdout does nothing: the source has a validation split of its own")
    return ImageData(
        train,
        validation,
        found.classes,
        mean,
        std,
        sha256,
        found.left_out,
        skipped,
        doubts,
        held_out=not found.both,
    )


def _find(config: Data) -> Found:
    known = {
        "digits": digits,
        "synthetic": synthetic,
        "idx": idx,
        "cifar10": cifar,
        "cifar100": cifar,
        "folder": folder,
    }
    if config.source in known:
        return known[config.source].splits(config)  # type: ignore[no-any-return]
    if dotted.is_path(config.source):
        return own.splits(config)
    from train.data.sources import tables  # `datasets` takes longer to load than digits to train

    return tables.splits(config)


def _scan(labelled: Labelled, config: Data) -> Scan | None:
    pictures = labelled.pictures
    return None if isinstance(pictures, Arrays) else scan(pictures, config)


def _check_wide(splits: list[Labelled], scans: list[Scan | None], config: Data) -> None:
    """See that pictures of more than eight bits use them."""
    peaks = [seen.peaks for seen in scans if seen is not None]
    wide = np.concatenate([each[~np.isnan(each)] for each in peaks]) if peaks else np.zeros(0)
    if not len(wide):
        if config.white is not None:
            raise UsageError(
                "data.white is set, and no picture has more than 8 bits", "take it away"
            )
        return
    highest = float(wide.max())
    if highest > 1:
        split, seen = next(
            (s, n)
            for s, n in zip(splits, scans, strict=True)
            if n and np.nanmax(n.peaks) == highest
        )
        value = round(highest * (config.white or 1))
        raise DataError(
            f"{split.pictures.name(int(np.nanargmax(seen.peaks)))} has the value {value}, above"
            f" data.white ({config.white})",
            f"set --data.white {value} or more",
        )
    if highest < _DARK and config.white is None:
        raise DataError(
            f"{len(wide):,} pictures have more than 8 bits, and none is brighter than"
            f" {100 * highest:.1f} % of white: they would be nearly black",
            "say which value is white: --data.white 4095 where 12 bits are used, 16383 where it is"
            " 14, 65535 if they are meant so; those in colour have to be made brighter",
        )


def _shape(splits: list[Labelled], scans: list[Scan | None], config: Data) -> tuple[int, int, int]:
    sizes: Counter[tuple[int, int]] = Counter()
    examples: dict[tuple[int, int], str] = {}
    channels = config.channels or 1
    for split, seen in zip(splits, scans, strict=True):
        if isinstance(split.pictures, Arrays):
            _, own_channels, *size = split.pictures.pixels.shape
            found = np.array([size])
            counts, firsts = np.array([len(split.labels)]), np.array([0])
            coloured = own_channels == 3
        else:
            assert seen is not None
            whole = seen.sizes if config.prepare is None else sizes_of(seen.sizes, config.prepare)
            found, firsts, counts = np.unique(whole, axis=0, return_index=True, return_counts=True)
            coloured = bool((seen.kinds == COLOUR).any())
        channels = config.channels or max(channels, 3 if coloured else 1)
        for pair, first, count in zip(found.tolist(), firsts, counts, strict=True):
            sizes[tuple(pair)] += int(count)
            examples.setdefault(tuple(pair), split.pictures.name(int(first)))
    if config.size is not None:
        return channels, config.size, config.size
    if len(sizes) > 1:
        listed = ", ".join(
            f"{w}×{h} ({count:,}, such as {examples[h, w]})"
            for (h, w), count in sizes.most_common(3)
        )
        smallest = min(min(size) for size in sizes)
        raise DataError(
            f"pictures have {len(sizes):,} sizes: {listed}",
            f"set --data.size, for instance {smallest}",
        )
    (height, width) = next(iter(sizes))
    return channels, height, width


def _fingerprint(splits: list[Labelled], scans: list[Scan | None], classes: list[str]) -> str:
    digest = hashlib.sha256(f"{classes}\n".encode())
    for split, seen in zip(splits, scans, strict=True):
        digest.update(f"{len(split.labels)}\n".encode())
        digest.update(split.labels.numpy().tobytes())
        if isinstance(split.pictures, Arrays):
            pixels = split.pictures.pixels
            digest.update(f"{tuple(pixels.shape)}\n".encode())
            digest.update(pixels.contiguous().numpy().data)
        else:
            assert seen is not None
            digest.update(np.ascontiguousarray(seen.digests).data)
    return digest.hexdigest()
