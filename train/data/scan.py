"""Every picture is looked at once, before training: which are damaged, how large, in what colours.

What was found is kept until the files change, or what reads them does.
"""

import errno
import hashlib
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from host import limits
from host.errors import DataError
from train.config import Data
from train.data import cache, png
from train.data import decode as decoding
from train.data.decode import BadPicture, Reading, decode
from train.data.pictures import Encoded
from train.data.progress import shown
from train.data.workers import load

_AT_ONCE = 64
_FEW = 512  # pictures that are looked at sooner than processes are started
# What was seen by other code was not seen by this.
_CODE = hashlib.sha256(
    b"".join(Path(each).read_bytes() for each in (decoding.__file__, png.__file__, __file__))
).hexdigest()
GREY, COLOUR, BAD = 0, 1, 2
# What keeps this file from being read, today and tomorrow.
_OF_THE_FILE = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.ENODATA, errno.EFBIG, errno.ENXIO),
)


@dataclass(frozen=True)
class Scan:
    """What was seen of N pictures.

    Attributes:
        digests: SHA-256 of each one's bytes, uint8 [N, 32].
        sizes: heights and widths, int64 [N, 2]; 0 where it cannot be read.
        kinds: GREY, COLOUR or BAD, uint8 [N].
        peaks: the highest value of those with more than eight bits, as a share of white, else NaN.
        bad: why those that cannot be read cannot, by number.
    """

    digests: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    kinds: np.ndarray[Any, Any]
    peaks: np.ndarray[Any, Any]
    bad: dict[int, str]

    def only(self, numbers: np.ndarray[Any, Any]) -> "Scan":
        """What was seen of those with these numbers, all of which can be read."""
        arrays = (self.digests, self.sizes, self.kinds, self.peaks)
        digests, sizes, kinds, peaks = (each[numbers] for each in arrays)
        return Scan(digests, sizes, kinds, peaks, {})


def reading(config: Data) -> Reading:
    """How an experiment reads its pictures."""
    return Reading(config.max_pixels, config.background, config.white)


def scan(pictures: Encoded, config: Data) -> Scan:
    """Look at all of them, or remember what was seen.

    One process of a machine looks, with all CPUs; the others wait for what it found.
    """
    state, root = pictures.state(), cache.folder(config)
    if state is None:
        return _look(pictures, reading(config))
    about = f"{_CODE} {state} {reading(config)} {version('pillow')} {version('simplejpeg')}"
    key = f"scan-{hashlib.sha256(about.encode()).hexdigest()[:32]}"
    known = cache.read(root, key)
    if known is None:
        with cache.held(root, key):
            known = cache.read(root, key)
            if known is None:
                found = _look(pictures, reading(config))
                cache.write(root, key, _packed(found))
                return found
    return _unpacked(known)


def _packed(scan: Scan) -> cache.Arrays:
    places = np.array([*scan.bad], np.int64)
    # As bytes with their lengths: NumPy would pad each to the longest.
    words = [why.encode(errors="replace") for why in scan.bad.values()]
    text = np.frombuffer(b"".join(words), np.uint8)
    lengths = np.array([len(word) for word in words], np.int64)
    return {
        "digests": scan.digests,
        "sizes": scan.sizes,
        "kinds": scan.kinds,
        "peaks": scan.peaks,
        "bad": places,
        "lengths": lengths,
        "text": text,
    }


def _unpacked(known: cache.Arrays) -> Scan:
    ends = known["lengths"].cumsum()
    text = known["text"].tobytes()
    starts = ends - known["lengths"]
    why = [text[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    bad = dict(zip(known["bad"].tolist(), why, strict=True))
    return Scan(known["digests"], known["sizes"], known["kinds"], known["peaks"], bad)


class _Looks(Dataset[Scan | DataError]):
    """What is seen of each few of the pictures."""

    def __init__(self, pictures: Encoded, how: Reading) -> None:
        self.pictures, self.how = pictures, how

    def __getitem__(self, start: int) -> Scan | DataError:
        numbers = range(start, min(start + _AT_ONCE, len(self.pictures)))
        digests = np.zeros((len(numbers), 32), np.uint8)
        sizes = np.zeros((len(numbers), 2), np.int64)
        kinds = np.full(len(numbers), BAD, np.uint8)
        peaks = np.full(len(numbers), np.nan)
        bad = {}
        for place, number in enumerate(numbers):
            try:
                encoded = self.pictures.read(number)
                digests[place] = np.frombuffer(hashlib.sha256(encoded).digest(), np.uint8)
                picture = decode(encoded, self.how)
                png.check(encoded)
            except BadPicture as error:
                bad[number] = str(error)
            except OSError as error:
                if error.errno not in _OF_THE_FILE:  # it may be read another time: not remembered
                    return DataError(
                        f"cannot read {self.pictures.name(number)}: {error.strerror or error}",
                        "look after the disk or the network, or remove the file",
                        one_rank=True,
                    )
                bad[number] = error.strerror or str(error)
            else:
                sizes[place] = picture.pixels.shape[:2]
                kinds[place] = COLOUR if picture.pixels.ndim == 3 else GREY
                peaks[place] = picture.peak
        return Scan(digests, sizes, kinds, peaks, bad)


def _look(pictures: Encoded, how: Reading) -> Scan:
    count = len(pictures)
    workers = 0 if count <= _FEW else limits.cpus()
    starts = range(0, count, _AT_ONCE)
    with closing(load(_Looks(pictures, how), starts, workers, 2)) as looked:
        parts = list(shown(looked, "looking at all pictures once", _AT_ONCE, count))
    names = ("digests", "sizes", "kinds", "peaks")
    digests, sizes, kinds, peaks = (
        np.concatenate([getattr(part, name) for part in parts]) for name in names
    )
    bad = {number: why for part in parts for number, why in part.bad.items()}
    return Scan(digests, sizes, kinds, peaks, bad)
