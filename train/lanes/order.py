"""Which sample stands where, and each sample's random numbers: arithmetic, nothing stored.

A run reads one endless stream of positions 0, 1, 2, …: position p is sample
`permutation(seed, p // size)[p % size]` of epoch `p // size`. Batches are cut from the stream,
so they may straddle two epochs, and each epoch holds each sample exactly once for any size.
Step, lane, process and resume point are therefore only ways to name a range of positions.

The generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014), used as a hash of a counter:
integer arithmetic alone, hence the same on every processor.
"""

from functools import lru_cache

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_TIMES = 1 << 20  # draws that a sample has at most


def _signed(value: int) -> int:
    """The 64-bit pattern of `value` as the int64 that torch stores."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def key(*parts: int) -> int:
    """One well-spread 64-bit key (signed, as torch stores it) from several integers."""
    state = 0
    for part in parts:
        state = _mix((state + _GOLDEN + part) & _MASK)
    return _signed(state)


def _shift(values: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own carries the sign bit."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def mix(values: Tensor) -> Tensor:
    """splitmix64's finaliser of each int64 in `values`, any shape."""
    values = (values ^ _shift(values, 30)) * _signed(_FIRST)
    values = (values ^ _shift(values, 27)) * _signed(_SECOND)
    return values ^ _shift(values, 31)


def keys(base: int, counters: Tensor) -> Tensor:
    """A key for each counter under one base key; int64, shaped as `counters`."""
    return mix(counters * _signed(_GOLDEN) + base)


def randint(sample_keys: Tensor, draw: int, high: int | Tensor) -> Tensor:
    """Uniform integers in [0, high), high < 2^31 for all or each: draw `draw` of each key."""
    bits = _shift(mix(sample_keys + _signed(_GOLDEN * (draw + 1))), 32)
    return (bits * high) >> 32


@lru_cache(maxsize=2)  # a batch reaches into two epochs at most
def permutation(seed: int, epoch: int, size: int) -> Tensor:
    """A shuffle of 0 … size-1, int64 [size]."""
    return torch.argsort(keys(key(seed, epoch), torch.arange(size)), stable=True)


@lru_cache(maxsize=2)
def sample_keys(seed: int, epoch: int, size: int) -> Tensor:
    """The key of each sample of an epoch, in the order of its permutation; int64 [size]."""
    # The permutation takes key(seed, epoch): the extra part sets these apart.
    return keys(key(seed, epoch, 1), permutation(seed, epoch, size))


def again(sample_keys: Tensor, times: Tensor) -> Tensor:
    """Keys for the same samples another time, int64 as `sample_keys`; the first time, the same."""
    # Like draws of numbers that nothing else draws.
    others = mix(sample_keys + (times + _TIMES) * _signed(_GOLDEN))
    return torch.where(times == 0, sample_keys, others)


def pieces(size: int, start: int, stop: int) -> list[tuple[int, slice]]:
    """Stream positions start … stop-1 by epoch: the epoch, and the places in its permutation."""
    return [
        (epoch, slice(max(start - epoch * size, 0), min(stop - epoch * size, size)))
        for epoch in range(start // size, -(-stop // size))
    ]


def samples(seed: int, size: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Numbers and keys of the samples at positions start … stop-1; two int64 [stop - start]."""
    cut = pieces(size, start, stop) if stop > start else []
    numbers = [permutation(seed, epoch, size)[part] for epoch, part in cut]
    own = [sample_keys(seed, epoch, size)[part] for epoch, part in cut]
    # Copies: what is handed to another process takes all of its storage along.
    nothing = torch.empty(0, dtype=torch.int64)
    return torch.cat([nothing, *numbers]), torch.cat([nothing, *own])


def steps(total: int, batch_size: int) -> int:
    """Updates that consume `total` samples; the last one may be short."""
    return -(-total // batch_size)


def consumed(step: int, batch_size: int, total: int) -> int:
    """Samples that `step` updates have consumed, of `total`."""
    return min(step * batch_size, total)


def lane_range(step: int, lane: int, *, lanes: int, batch_size: int, total: int) -> tuple[int, int]:
    """Stream positions [start, stop) that `lane` consumes at `step`.

    A full batch is cut evenly. The short batch that may end a run is cut evenly over as many
    lanes as get two samples or more, since batch norm cannot do with one; the others are empty.
    """
    first = step * batch_size
    size = consumed(step + 1, batch_size, total) - first
    used = lanes if size == batch_size else max(1, min(lanes, size // 2))
    if lane >= used:
        return first + size, first + size
    return first + size * lane // used, first + size * (lane + 1) // used
