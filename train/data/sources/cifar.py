"""CIFAR-10 and CIFAR-100 as torchvision unpacked them: cifar-10-batches-py, cifar-100-python.

The files are pickles, which can run anything. They are read by a reader that knows the few words
that such a file has, and refuses all others.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from host import regular
from host.errors import DataError, first_line
from train.config import Data
from train.config.data import root_flag
from train.data.pictures import Arrays, Found, Labelled
from train.data.sources import labels

_MOST = 1 << 30
_ROWS = 3 * 32 * 32
_LAYOUT = {
    "cifar10": (
        "cifar-10-batches-py",
        [f"data_batch_{n}" for n in range(1, 6)],
        "test_batch",
        ("batches.meta", "label_names"),
        "labels",
    ),
    "cifar100": (
        "cifar-100-python",
        ["train"],
        "test",
        ("meta", "fine_label_names"),
        "fine_labels",
    ),
}
_FIX = (
    f"name the folder that torchvision unpacked it in with {root_flag()}, or fetch it:"
    " --data.source uoft-cs/cifar10 or uoft-cs/cifar100"
)


def splits(config: Data) -> Found:
    """Training and test split.

    Raises:
        DataError: files are missing or damaged.
    """
    name, training, test, (meta, key), label_key = _LAYOUT[config.source]
    root = Path(config.root or "data")
    folder = root if (root / test).is_file() else root / name
    if not folder.is_dir():
        raise DataError(f"there is no {folder}", _FIX)
    classes = _read(folder / meta).get(key)
    if not isinstance(classes, list) or not all(isinstance(c, str) for c in classes):
        raise DataError(f"{folder / meta} names no classes", _FIX)
    parts = [_batch(folder / file, label_key) for file in training]
    pixels = torch.cat([p for p, _ in parts])
    said = [
        labels.Said(
            "training", [n for _, ns in parts for n in ns], lambda n: f"training sample {n}"
        ),
        labels.Said(
            "validation",
            (held := _batch(folder / test, label_key))[1],
            lambda n: f"test sample {n}",
        ),
    ]
    classes, numbers = labels.number(said[0], said[1], classes)
    return Found(
        Labelled(Arrays(pixels), numbers[0]),
        Labelled(Arrays(held[0]), numbers[1]),
        classes,
        both=True,
    )


def _batch(path: Path, key: str) -> tuple[torch.Tensor, list[Any]]:
    """uint8 [N, 3, 32, 32], and N labels."""
    said = _read(path)
    data, found = getattr(said.get("data"), "values", None), said.get(key)
    if not isinstance(data, np.ndarray) or data.shape[1:] != (_ROWS,):
        raise DataError(f"{path} holds no pictures of 3 × 32 × 32 bytes", _FIX)
    if not isinstance(found, list) or len(found) != len(data):
        raise DataError(f"{path} has not as many labels as pictures", _FIX)
    return torch.from_numpy(data.reshape(-1, 3, 32, 32).copy()), found


class _Reader(pickle.Unpickler):
    """Of arrays of bytes, and nothing else: the names that a file may look up are stood in for.

    NumPy's own would be called with whatever the file says, and make arrays of any memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _Bytes,
            ("numpy._core.multiarray", "_reconstruct"): _Bytes,
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): _Type,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file does")
        return known[module, name]


class _Type:
    """Stands in for a type of NumPy's: that of bytes."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name != "u1":
            raise pickle.UnpicklingError(f"it holds values of the type {name}")

    def __setstate__(self, _state: Any) -> None:
        """What a file says of it is known."""


class _Bytes:
    """Stands in for an array of NumPy's: `values`, once the file has said them."""

    def __init__(self, *_: Any) -> None:
        self.values: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_column, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(kind, _Type) or by_column or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array of another kind")
        self.values = np.frombuffer(data, np.uint8).reshape(shape)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


def _read(path: Path) -> dict[str, Any]:
    try:
        said = _Reader(io.BytesIO(regular.read(path, _MOST)), encoding="latin1").load()
    except Exception as error:  # whatever comes of bytes that mean nothing
        raise DataError(f"{path} cannot be read: {first_line(error)}", _FIX) from error
    if not isinstance(said, dict):
        raise DataError(f"{path} is no file of CIFAR's", _FIX)
    return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in said.items()}
