"""The training and the validation split of a source: shape, statistics, fingerprint.

Raises DataError throughout, with what is wrong and how to mend it.
"""

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
from torch import Tensor

from host import dotted
from host.errors import DataError, UsageError
from host.text import some
from train.config import Augment, Data, Eval
from train.data import twins, unusable
from train.data.decode import DARK
from train.data.image_data import ImageData
from train.data.images import Split, measured_as
from train.data.pictures import Arrays, Found, Labelled
from train.data.scaled import sizes_of
from train.data.scan import COLOUR, Scan, reading, scan
from train.data.sources import cifar, digits, folder, idx, layout, own, synthetic
from train.data.statistics import statistics
from train.data.store import keep, prepare


def load(
    config: Data,
    augment: Augment | None = None,
    measured: Eval | None = None,
    *,
    listing: bool = False,
) -> ImageData:
    """Both splits of the source that the experiment names.

    Args:
        augment: how training images are varied, where they are.
        measured: how validation images are scaled, where that is otherwise.
        listing: whether what cannot be used is to be listed, whatever the experiment does about it.
    """
    found = _find(config)
    first = _scan(found.train, config)
    same = found.validation is found.train  # as of a holdout of ALL
    scans = [first, first if same else _scan(found.validation, config)]
    skipped = found.bad | dict(unusable.bad(found, scans))
    if skipped and config.on_bad == "error" and not listing:
        total = len(found.train.labels) + len(found.bad)
        total += 0 if same else len(found.validation.labels)
        raise DataError(
            f"{len(skipped):,} of {total:,} pictures cannot be used: {unusable.by_reason(skipped)}",
            "mend or remove them, or leave them out: --data.on_bad skip",
        )
    splits, scans = unusable.without(found, scans, skipped)
    _check_wide(splits, scans, config)
    shape = _shape(splits, scans, config)
    sizes = [(config.size, shape), measured_as(config, measured, shape)]
    made = [
        Split(
            each.pictures,
            each.labels,
            formed,
            scale=shorter,
            reading=reading(config),
            digests=None if seen is None else seen.digests,
            prepare=config.prepare,
        )
        for each, seen, (shorter, formed) in zip(splits, scans, sizes, strict=True)
    ]
    if augment is not None:
        _check_colours(augment, shape)
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
    doubts = [*found.doubts, *twins.doubts(splits, scans)]
    doubts += layout.few(found.classes, _counts(splits[0].labels, found.classes))
    held = _counts(splits[1].labels, found.classes)
    unseen = [name for name, count in zip(found.classes, held, strict=True) if not count]
    if unseen:
        more = "" if found.both else ", or raise data.holdout"
        doubts.append(
            f"classes without a validation picture: {some(unseen)}; no figure says how well they"
            f" are learned: lay out a split that has each{more}"
        )
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


def _counts(labels: Tensor, classes: list[str]) -> list[int]:
    """Pictures of each class."""
    return [int(count) for count in labels.bincount(minlength=len(classes))]


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


def _check_colours(augment: Augment, shape: tuple[int, int, int]) -> None:
    """See that there are colours where colours are to be varied."""
    for name in ("saturation", "hue", "grey"):
        if getattr(augment, name) and shape[0] == 1:
            raise UsageError(
                f"augment.{name} does nothing with grey pictures", f"take augment.{name} away"
            )


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
    if highest < DARK and config.white is None:
        split, seen = next(
            (s, n) for s, n in zip(splits, scans, strict=True) if n and not np.isnan(n.peaks).all()
        )
        first = split.pictures.name(int(np.flatnonzero(~np.isnan(seen.peaks))[0]))
        raise DataError(
            f"{len(wide):,} pictures have more than 8 bits, and none is brighter than"
            f" {100 * highest:.1f} % of white: they would be nearly black; the first is {first}",
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
