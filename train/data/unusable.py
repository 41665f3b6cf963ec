"""Pictures that cannot be used: named with their reasons, and taken out."""

import re
from collections.abc import Iterator

import numpy as np
import torch

from host.errors import DataError
from host.text import some
from train.data.pictures import Found, Labelled, choose
from train.data.scan import Scan

SPLITS = ("training", "validation")
_REASONS = 3
_NUMBER = re.compile("[0-9]+")


def by_reason(bad: dict[str, str]) -> str:
    """The most frequent reasons, each with some of its pictures.

    Reasons that differ in their numbers alone, as in a size, are one.
    """
    groups: dict[str, list[str]] = {}
    for name, why in bad.items():
        groups.setdefault(_NUMBER.sub("#", why), []).append(name)
    common = sorted(groups.values(), key=lambda names: -len(names))
    shown = len(common) if len(common) <= _REASONS + 1 else _REASONS  # not "1 other"
    more = f"; and {len(common) - shown} other reasons" if len(common) > shown else ""
    return "; ".join(f"{some(names)} ({_why(names, bad)})" for names in common[:shown]) + more


def _why(names: list[str], bad: dict[str, str]) -> str:
    more = any(bad[name] != bad[names[0]] for name in names)
    return bad[names[0]] + ", and so on" * more


def bad(found: Found, scans: list[Scan | None]) -> Iterator[tuple[str, str]]:
    """Names of those that were seen to be, each with the reason."""
    for split, seen in zip((found.train, found.validation), scans, strict=True):
        if seen is not None:
            yield from ((split.pictures.name(number), why) for number, why in seen.bad.items())


def without(
    found: Found, scans: list[Scan | None], skipped: dict[str, str]
) -> tuple[list[Labelled], list[Scan | None]]:
    """The splits without what cannot be read."""
    splits, whole = [], []
    for split, seen in zip((found.train, found.validation), scans, strict=True):
        if seen is None or not seen.bad:
            splits.append(split)
            whole.append(seen)
            continue
        good = np.setdiff1d(np.arange(len(split.labels)), [*seen.bad])
        splits.append(choose(split, torch.from_numpy(good)))
        whole.append(seen.only(good))
    for name, before, after in zip(SPLITS, (found.train, found.validation), splits, strict=True):
        if not len(after.labels):
            raise DataError(
                f"no picture of the {name} split can be used: {by_reason(skipped)}", "mend them"
            )
        gone = set(before.labels.unique().tolist()) - set(after.labels.unique().tolist())
        if gone and name == "training":
            lost = some(found.classes[place] for place in gone)
            raise DataError(
                f"no training picture can be used of {lost}: {by_reason(skipped)}",
                "mend some of them",
            )
    return splits, whole
