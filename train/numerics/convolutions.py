"""Which convolutions give the same bits on all CPUs under portable numerics.

oneDNN computes them, and says which of its implementations it takes. One of them, a matrix product
over unfolded images (`gemm`), cuts a sum over many input channels into parts that fit the L2 cache,
so CPUs with other caches round otherwise. The rest add up in one order at a given instruction set;
`benchmarks/portable.py models` searches for exceptions.
"""

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from host.errors import HostError, UsageError

SMALLEST = 128 * 1024 // 4
"""Floats in the smallest L2 cache that is reckoned with. A core of Intel's Skylake has 256 KiB, and
oneDNN halves them where there is no second thread (as on an i5-7600K, by libcpuid's record)."""
# Held to AVX, oneDNN has these; the backward pass of `jit_1x1` has another name than it is.
_WHOLE = re.compile(r"(conv:any\+)?(jit(_dw)?:(sse41|avx)|jit_1x1:(sse41|avx|avx2)|ref:any)")
_GEMM = re.compile(r"(conv:any\+)?(x64:)?gemm:(jit|any|ref)")
_SIZES = re.compile(r"(?:g(\d+))?mb\d+_ic(\d+)oc(\d+)_(.*)")
_SIDES = re.compile(r"([iok][dhw]|s[dhw])(\d+)")


@dataclass(frozen=True)
class Computed:
    """A convolution as oneDNN reports it.

    Attributes:
        implementation: its name, such as `jit:avx`.
        transposed, forward: which of the four it is; backward is that for the input.
        channels_last: how its input lies in memory.
        problem: its sizes, such as `mb4_ic3oc64_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1`.
    """

    implementation: str
    transposed: bool
    forward: bool
    channels_last: bool
    problem: str


@contextmanager
def seen() -> Iterator[list[Computed]]:
    """All convolutions that are computed in the block, filled in when it ends; without those for
    gradients of weights, whose sums no cache cuts.
    """
    found: list[Computed] = []
    with _output() as written, torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        # One that is known to be computed by oneDNN: is it reported?
        functional.conv2d(torch.zeros(16, 8, 5, 5), torch.zeros(8, 8, 3, 3))
        yield found
    lines = written.decode(errors="replace").splitlines(keepends=True)
    for line in lines:
        if "onednn_verbose" not in line and sys.stdout:
            sys.stdout.write(line)
    found += _read(lines)[1:]


@contextmanager
def _output() -> Iterator[bytearray]:
    """What is written to the process's standard output in the block, by C code as well; filled in
    when it ends.
    """
    written = bytearray()
    with tempfile.TemporaryFile() as file:
        try:
            _flush()
            kept = os.dup(1)
        except OSError as error:
            raise HostError(
                f"what oneDNN computes is read from standard output, which fails: {error}",
                "see that it is open",
            ) from error
        try:
            os.dup2(file.fileno(), 1)
            try:
                yield written
            finally:
                _flush()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        written += file.read()


def _flush() -> None:
    """Python's buffer, and C's."""
    if sys.stdout:
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _read(lines: Iterable[str]) -> list[Computed]:
    found = []
    for line in lines:
        words = line.split(",")
        if "exec" not in words:
            continue
        # …,exec,cpu,convolution,IMPLEMENTATION,KIND,TENSORS,…,PROBLEM,MILLISECONDS
        what, implementation, kind, tensors = words[words.index("exec") + 2 :][:4]
        if what in ("convolution", "deconvolution") and kind != "backward_weights":
            last = re.search(r"src:\w+:\w*:blocked:a[c-e]+b:", tensors) is not None
            forward, transposed = kind.startswith("forward"), what == "deconvolution"
            found.append(Computed(implementation, transposed, forward, last, words[-2]))
    if not found:
        raise HostError(
            "oneDNN does not report what it computes, which numerics: portable looks at",
            "unset ONEDNN_VERBOSE and its like, and install the lock's torch: make ready",
        )
    return found


def check(computed: Iterable[Computed]) -> None:
    """See that all of them are equal on all CPUs.

    Raises:
        UsageError: naming the first that is not, or was not compared.
    """
    for one in computed:
        if _WHOLE.fullmatch(one.implementation):
            continue
        sizes = _SIZES.match(one.problem)
        if sizes is None or not _GEMM.fullmatch(one.implementation):
            raise UsageError(
                f"oneDNN computes a convolution of the model by {one.implementation}, which has not"
                " been compared on other CPUs, and numerics: portable promises the same bits on"
                " all",
                "use --numerics native",
            )
        if _may_be_cut(one, sizes):
            groups, ic, oc, _ = sizes.groups()
            kernel = "×".join(n for k, n in _SIDES.findall(sizes[4]) if k in ("kd", "kh", "kw"))
            grouped = f" in {groups} groups" if groups else ""
            raise UsageError(
                f"the model's convolution of {ic} to {oc} channels{grouped}, {kernel}, is one that"
                " oneDNN cuts by the size of the CPU's cache, and numerics: portable is to be the"
                " same on all",
                "use fewer input channels, less padding, stride or dilation, or groups of 8, 16, …"
                " channels; or --numerics native",
            )


def _may_be_cut(one: Computed, sizes: re.Match[str]) -> bool:
    """Whether the sum over input channels may not fit the smallest cache in one piece.

    oneDNN's gemm_convolution_utils.cpp, calc_max_icb: a block of the output and of the weights, the
    unfolded rows and the image's own must fit L2. Taken for the largest blocks it may choose.
    """
    if one.forward == one.transposed:
        return False  # the other direction: its sum is over output channels and is not cut
    groups = int(sizes[1] or 1)
    ic, oc = int(sizes[2]) // groups, int(sizes[3]) // groups
    sides: dict[str, int] = {}
    for name, length in _SIDES.findall(sizes[4]):
        sides[name[0]] = sides.get(name[0], 1) * int(length)
    area = sides["o"]
    if one.transposed:
        ic, oc, area = oc, ic, sides["i"]
    if "kd" in sizes[4] or (sides["k"] == sides["s"] == 1 and sides["i"] == sides["o"]):
        return False  # in three dimensions, and where nothing is unfolded, nothing is cut
    if one.channels_last:
        return ic * oc > 1  # it cuts rows, and sums the last column of a block otherwise
    fits = (SMALLEST - oc * area) / ((sides["s"] + sides["k"]) * area + sides["k"] * oc)
    return ic > 1 and fits < ic
