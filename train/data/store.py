"""Images decoded once, in a file that later runs and all processes of a machine map into memory.

The pixels of a split, one image after another, and their SHA-256 at the end: a file that is not
whole, or is of other pictures, other settings or another decoder, is never used.
"""

import errno
import hashlib
import mmap
import os
import shutil
import stat
import sys
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from host import launcher, limits
from host.errors import DataError
from host.text import printable
from train.config import Data
from train.data import cache, decode, images, scaled
from train.data.images import Split
from train.data.pictures import Arrays
from train.data.progress import shown
from train.data.scaled import Scaled, sizes_of
from train.data.workers import load

_AT_ONCE = 64  # pictures
_BLOCK = 16 << 20  # bytes that a loader process hands over together
_SMALL = 16 << 20  # bytes that are decoded again sooner than they are written safely
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 does not name it
_KINDS = ("scan-", "statistics-", "pixels-")
_DIGEST = hashlib.sha256().digest_size
CODE = hashlib.sha256(
    b"".join(
        Path(each).read_bytes() for each in (decode.__file__, images.__file__, scaled.__file__)
    )
).hexdigest()


def keep(split: Split, config: Data, name: str) -> Split:
    """The split with its images decoded, where they take no more than `data.cache`.

    Args:
        name: of its pictures, other where their bytes are.
    """
    if (
        isinstance(split.pictures, Arrays)
        and split.scale in (None, split.shape[1])
        and (split.pictures.pixels.shape[1:] == split.shape)
    ):
        return replace(split, resident=split.pictures.pixels)
    if split.nbytes > config.cache * 2**30:
        return split
    if split.nbytes > _SMALL:
        about = f"{name} {split.shape} {split.scale} {split.reading}"
        flat = _mapped(_Images(split), split.nbytes, config, about)
        if flat is not None:
            return replace(split, resident=flat.view(len(split), *split.shape), mapped=True)
    return replace(split, resident=torch.cat([*images.decoded(split)]))


def prepare(split: Split, sizes: np.ndarray[Any, Any], config: Data, name: str) -> Split:
    """The split with its pictures decoded and scaled; as it is where there is no room for them.

    Args:
        sizes: heights and widths of the pictures, int64 [N, 2].
        name: of its pictures, other where their bytes are.
    """
    if split.prepare is None or isinstance(split.pictures, (Arrays, Scaled)):
        return split
    channels = split.shape[0]
    sizes = sizes_of(sizes, split.prepare)
    lengths = sizes.prod(axis=1) * channels
    about = f"{name} {channels} {split.prepare} {split.reading}"
    flat = _mapped(_Pictures(split), int(lengths.sum()), config, about)
    if flat is None:
        return split
    starts = lengths.cumsum() - lengths
    return replace(split, pictures=Scaled(split.pictures, flat, sizes, starts, channels))


def _mapped(made: "_Images | _Pictures", size: int, config: Data, about: str) -> Tensor | None:
    """The bytes of what is made, uint8 [size], in a file; None where none can be kept."""
    root = cache.folder(config)
    about = f"{CODE} {about} {version('pillow')} {version('simplejpeg')}"
    path = root / f"pixels-{hashlib.sha256(about.encode()).hexdigest()[:32]}"
    found = _whole(path, size)
    if found is None:
        with cache.held(root, path.name):
            found = _whole(path, size)
            if found is None:
                try:
                    _write(made, size, path)
                except OSError as error:
                    _warn(path, error.strerror or str(error))
                    return None
                found = _whole(path, size)
                if found is None:
                    _warn(path, "it cannot be mapped")
    return found


def _warn(path: Path, why: str) -> None:
    if launcher.rank() == 0:
        said = (
            f"warning: cannot keep {path} ({why}): pictures are decoded again and again;"
            " --data.cache_dir names another place"
        )
        print(printable(said), file=sys.stderr)


def _whole(path: Path, size: int) -> Tensor | None:
    """What a file holds, if it is as it was written."""
    try:
        if path.stat().st_size != size + _DIGEST:
            return None
        with path.open("rb") as file:
            # What is written to it by mistake stays in this process; nothing is set aside for that.
            whole = mmap.mmap(
                file.fileno(), size + _DIGEST, mmap.MAP_PRIVATE | _NO_RESERVE,
                mmap.PROT_READ | mmap.PROT_WRITE,
            )  # fmt: skip
    except (OSError, ValueError):
        return None
    pixels = np.frombuffer(whole, np.uint8, size)
    right = hashlib.sha256(pixels.data).digest() == whole[size:]
    return torch.from_numpy(pixels) if right else None


def _write(made: "_Images | _Pictures", size: int, path: Path) -> None:
    """Make all of it, with all CPUs, into a file that is whole or absent."""
    free = shutil.disk_usage(path.parent).free
    if free < 1.05 * size:
        wanted = f"{size / 2**30:.1f} GiB are needed, and {free / 2**30:.1f} are free"
        raise OSError(errno.ENOSPC, wanted)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    digest = hashlib.sha256()
    count = len(made.split)
    what = f"decoding pictures once, {size / 2**30:.2f} GiB in {path.parent}"
    each = made.each = max(1, min(_AT_ONCE, _BLOCK * count // max(1, size)))
    workers = limits.cpus() if limits.cpus() > 1 and count > each else 0
    blocks = load(made, range(0, count, each), workers, 2)
    try:
        with aside.open("wb") as file, closing(blocks):
            for block in shown(blocks, what, each, count):
                data = block.numpy().data
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


class _Images(Dataset[Tensor | DataError]):
    """The images of a split, some at a time, as bytes."""

    def __init__(self, split: Split) -> None:
        self.split, self.each = split, 1

    def __getitem__(self, start: int) -> Tensor | DataError:
        numbers = torch.arange(start, min(start + self.each, len(self.split)))
        try:
            return self.split.images(numbers).flatten()
        except DataError as error:
            return error  # a worker's exception would arrive as text, without its exit code


class _Pictures(Dataset[Tensor | DataError]):
    """The pictures of a split, some at a time, as bytes."""

    def __init__(self, split: Split) -> None:
        self.split, self.each = split, 1

    def __getitem__(self, start: int) -> Tensor | DataError:
        numbers = range(start, min(start + self.each, len(self.split)))
        try:
            flat = np.concatenate([self.split.pixels(number).ravel() for number in numbers])
        except DataError as error:
            return error
        return torch.from_numpy(flat)


def entries(root: Path) -> list[tuple[Path, int, float]]:
    """What the cache holds: each file, its bytes, and when it was written."""
    if not root.is_dir():
        return []
    found = []
    for path in sorted(root.iterdir()):
        with suppress(OSError):  # it is gone since, or nobody's business
            seen = path.lstat()
            if stat.S_ISREG(seen.st_mode) and path.name.lstrip(".").startswith(_KINDS):
                found.append((path, seen.st_size, seen.st_mtime))
    return found
