"""The MNIST family's own files: train-images-idx3-ubyte, t10k-labels-idx1-ubyte, gzipped or not.

A header says type and lengths, big-endian; the values follow (http://yann.lecun.com/exdb/mnist/).
"""

import gzip
import math
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from host import regular
from host.errors import DataError
from host.text import some
from train.config import Data
from train.config.data import root_flag
from train.data.pictures import (
    Arrays,
    Found,
    Labelled,
    no_columns,
    two_splits,
)
from train.data.sources import labels
from train.data.sources.walk import entries

_UNSIGNED_BYTE = 8
_FIX = f"fetch the four files again, or name their folder with {root_flag()}"
# As they are called after unpacking: a dot or a hyphen before idx; EMNIST's begin with its sets'.
_NAME = re.compile(r"(?:(\w.*)-)?(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
_ONE = f"put the four files of one into a folder of its own, and name that with {root_flag()}"
_RATIO = 1040  # of packed bytes to their values, which gzip cannot exceed


def holds(root: Path) -> bool:
    """Whether a folder holds such files."""
    return any(_NAME.fullmatch(entry.name) for entry in entries(root))


def splits(config: Data) -> Found:
    """Training and validation split: the files called train, and those called t10k or test.

    Raises:
        DataError: files are missing, damaged, or do not belong together.
    """
    no_columns(config, "idx files")
    root = Path(config.root or "data")
    if not root.is_dir():
        raise DataError(f"there is no directory {root}", _FIX)
    found: dict[tuple[str, str], Path] = {}
    seen = [(entry, named) for entry in entries(root) if (named := _NAME.fullmatch(entry.name))]
    sets = {named[1] or "" for _, named in seen}
    if "" not in sets and len(sets) > 1:
        raise DataError(f"{root} has the files of several sets: {some(sorted(sets))}", _ONE)
    chosen = "" if "" in sets else max(sets, default="")
    for entry, named in seen:
        if (named[1] or "") == chosen:
            key = ("train" if named[2] == "train" else "test", named[3])
            if key in found:
                both = some([found[key].name, entry.name])
                raise DataError(f"{root} has the {key[0]} {key[1]} twice: {both}", "keep one")
            found[key] = Path(entry.path)
    for wanted in (("train", "images"), ("train", "labels")):
        if wanted not in found:
            raise DataError(f"{root} has no {'-'.join(wanted)}-idx*-ubyte file", _FIX)
    train = _split(found[("train", "images")], found[("train", "labels")])
    said = [labels.Said("training", train[1].tolist(), lambda n: f"training sample {n}")]
    arrays = [train[0]]
    if ("test", "images") in found:
        if ("test", "labels") not in found:
            raise DataError(f"{root} has test images, and no labels of them", _FIX)
        held = _split(found[("test", "images")], found[("test", "labels")])
        said.append(labels.Said("validation", held[1].tolist(), lambda n: f"test sample {n}"))
        arrays.append(held[0])
    classes, numbers = labels.number(said[0], said[1] if len(said) > 1 else None)
    made = [Labelled(Arrays(a), n) for a, n in zip(arrays, numbers, strict=True)]
    others = f"files of other sets are not read: {some(sorted(sets - {chosen}))}"
    doubts = [others] if len(sets) > 1 else []
    return Found(*two_splits(made, config), classes, both=len(made) > 1, doubts=doubts)


def _split(images: Path, labels_of: Path) -> tuple[Tensor, Tensor]:
    """uint8 [N, 1, H, W] and uint8 [N]."""
    pixels, values = read(images), read(labels_of)
    if pixels.ndim != 3 or values.ndim != 1:
        raise DataError(
            f"{images.name} has {pixels.ndim} dimensions and {labels_of.name} {values.ndim}, but"
            " images have 3 and labels 1",
            _FIX,
        )
    if len(pixels) != len(values):
        raise DataError(
            f"{images.name} holds {len(pixels):,} images, and {labels_of.name} {len(values):,}"
            " labels",
            _FIX,
        )
    if not pixels.numel():
        raise DataError(f"{images.name} is empty", _FIX)
    # EMNIST's are stored with rows and columns exchanged.
    upright = pixels.mT if images.name.lower().startswith("emnist") else pixels
    return upright[:, None].contiguous(), values


def read(path: Path) -> Tensor:
    """The values of a file, uint8 of the shape that it says.

    Raises:
        DataError: it is damaged, or of another type.
    """
    try:
        with regular.opened(path) as packed:
            size = os.fstat(packed.fileno()).st_size
            zipped = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            file = gzip.GzipFile(fileobj=packed) if zipped else packed
            head = file.read(4)
            zeros, kind, dimensions = struct.unpack(">HBB", head)
            if zeros or kind != _UNSIGNED_BYTE:
                raise DataError(
                    f"{path} is no idx file of bytes: it begins with {head.hex()}", _FIX
                )
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            count = math.prod(shape)
            # What a header says is not taken for memory before it may be true.
            data = file.read(count + 1) if count <= size * _RATIO else b""
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} cannot be read: {error}", _FIX) from error
    values = np.frombuffer(data, np.uint8)
    if len(values) != count:
        raise DataError(
            f"{path} says {' × '.join(map(str, shape))} values, and holds"
            f" {'more' if len(values) > count else 'fewer'}",
            _FIX,
        )
    return torch.from_numpy(values.reshape(shape).copy())
