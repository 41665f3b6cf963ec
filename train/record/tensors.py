"""The tensors of a checkpoint, each read when it is asked for."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from train.learn.weights import Versions, versions_in


class Tensors(Mapping[str, Tensor]):
    """The tensors of some files, by name. What each of several has a part of is put together, along
    its first dimension.

    Nothing is kept: to ask again is to read again.

    Args:
        files: in the order of the parts.

    Raises:
        SafetensorError, OSError: one of them cannot be read, or is no such file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: list[Any] = [safe_open(path, "pt") for path in files]
        self._places: dict[str, list[int]] = {}
        for number, file in enumerate(self._files):
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                self._places.setdefault(name, []).append(number)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor, in memory of its own."""
        parts = [self._files[number].get_tensor(name) for number in self._places[name]]
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts)

    def __contains__(self, name: object) -> bool:
        """Whether there is one of that name, without reading it."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)

    @property
    def versions(self) -> Versions | None:
        """What the files say of their layout, by module.

        Raises:
            ValueError: it is none.
        """
        return versions_in(self._files[0].metadata() or {})
