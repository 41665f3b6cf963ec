"""Pictures that are there more than once, byte for byte: in both splits, or in two classes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from host.text import some
from train.data.pictures import Labelled
from train.data.scan import Scan


def doubts(splits: list[Labelled], scans: list[Scan | None]) -> Iterator[str]:
    """What a person should know of them; of pictures that are files."""
    (train, held), (seen, seen_held) = splits, scans
    if seen is None or seen_held is None:
        return
    keys, held_keys = _keys(seen), _keys(seen_held)
    both = np.flatnonzero(np.isin(held_keys, keys))
    if len(both):
        yield (
            f"{len(both):,} of {len(held_keys):,} validation pictures"
            f" {'are training pictures' if len(both) > 1 else 'is a training picture'} as"
            f" well: {some(held.pictures.name(int(n)) for n in both)}"
        )
    order = np.argsort(keys, kind="stable")
    labels = train.labels.numpy()
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    torn = again[labels[order][again] != labels[order][again + 1]]
    if len(torn):
        names = (train.pictures.name(int(order[n + 1])) for n in torn)
        said = "pictures are" if len(torn) > 1 else "picture is"
        yield f"{len(torn):,} training {said} in another class as well: {some(names)}"


def _keys(scan: Scan) -> np.ndarray[Any, Any]:
    """Each digest as one value, to be compared."""
    return np.ascontiguousarray(scan.digests).view("S32").ravel()
