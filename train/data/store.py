"""Images decoded once, in a file that later runs and all processes of a machine map into memory.

The pixels of a split, one image after another, and their SHA-256 at the end: a file that is not
whole, or is of other pictures, other settings or another decoder, is never used.
"""

import hashlib
import os
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from host import launcher, limits
from host.errors import DataError
from host.text import printable
from train.config import Data
from train.data import cache, decode, images
from train.data.images import Split
from train.data.pictures import Arrays
from train.data.progress import shown
from train.data.workers import load

_AT_ONCE = 64
_SMALL = 16 << 20  # bytes that are decoded again sooner than they are written safely
_DIGEST = hashlib.sha256().digest_size
_CODE = hashlib.sha256(
    b"".join(Path(each).read_bytes() for each in (decode.__file__, images.__file__))
).hexdigest()


def keep(split: Split, config: Data, name: str) -> Split:
    """The split with its images decoded, where they take no more than `data.cache`.

    Args:
        name: of its pictures, other where their bytes are.
    """
    if isinstance(split.pictures, Arrays) and split.pictures.pixels.shape[1:] == split.shape:
        return replace(split, resident=split.pictures.pixels)
    if split.nbytes > config.cache * 2**30:
        return split
    if split.nbytes > _SMALL:
        about = f"{_CODE} {name} {split.shape} {split.resize} {split.reading}"
        about += f" {version('pillow')} {version('simplejpeg')}"
        key = f"pixels-{hashlib.sha256(about.encode()).hexdigest()[:32]}"
        mapped = _mapped(split, cache.folder(config), key)
        if mapped is not None:
            return replace(split, resident=mapped, mapped=True)
    return replace(split, resident=torch.cat([*images.decoded(split)]))


def _mapped(split: Split, root: Path, key: str) -> Tensor | None:
    """uint8 [N, C, H, W] in a file; None where none can be kept."""
    path = root / key
    found = _whole(path, split)
    if found is None:
        with cache.held(root, key):
            found = _whole(path, split)
            if found is None:
                try:
                    _write(split, path)
                except OSError as error:
                    if launcher.rank() == 0:
                        said = (
                            f"warning: cannot write {path} ({error.strerror}): images are decoded"
                        )
                        print(printable(f"{said} by each process at each start"), file=sys.stderr)
                    return None
                found = _whole(path, split)
    return found


def _whole(path: Path, split: Split) -> Tensor | None:
    """What a file holds, if it is as it was written."""
    try:
        if path.stat().st_size != split.nbytes + _DIGEST:
            return None
        # Not shared: what is written to it by mistake stays in this process.
        data = torch.from_file(
            str(path), shared=False, size=split.nbytes + _DIGEST, dtype=torch.uint8
        )
    except (OSError, RuntimeError):
        return None
    pixels, digest = data[: split.nbytes], data[split.nbytes :]
    if hashlib.sha256(pixels.numpy().data).digest() != bytes(digest.tolist()):
        return None
    return pixels.view(len(split), *split.shape)


def _write(split: Split, path: Path) -> None:
    """Decode all images, with all CPUs, into a file that is whole or absent."""
    free = shutil.disk_usage(path.parent).free
    if free < split.nbytes * 1.05:
        raise OSError(28, f"{split.nbytes / 2**30:.1f} GiB, and {free / 2**30:.1f} are free")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    digest = hashlib.sha256()
    what = f"decoding images once, {split.nbytes / 2**30:.2f} GiB in {path.parent}"
    starts = range(0, len(split), _AT_ONCE)
    try:
        with aside.open("wb") as file, closing(load(_Blocks(split), starts, _workers(), 2)) as made:
            for block in shown(made, what, _AT_ONCE, len(split)):
                data = block.numpy().tobytes()
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _workers() -> int:
    return limits.cpus() if limits.cpus() > 1 else 0


class _Blocks(Dataset[Tensor | DataError]):
    """The images of a split, a few at a time."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __getitem__(self, start: int) -> Tensor | DataError:
        numbers = torch.arange(start, min(start + _AT_ONCE, len(self.split)))
        try:
            return self.split.images(numbers)
        except DataError as error:
            return error  # a worker's exception would arrive as text, without its exit code


def entries(root: Path) -> list[tuple[Path, int, float]]:
    """What the cache holds: each file, its bytes, and when it was written."""
    if not root.is_dir():
        return []
    seen = [(path, path.stat()) for path in root.iterdir() if _ours(path)]
    return sorted((path, stat.st_size, stat.st_mtime) for path, stat in seen)


def _ours(path: Path) -> bool:
    kinds = ("scan-", "statistics-", "pixels-")
    return path.is_file() and path.name.lstrip(".").startswith(kinds)
