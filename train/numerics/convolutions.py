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

from host.errors import UsageError

SMALLEST = 256 * 1024 // 4
"""Floats in the smallest L2 cache of a core that is reckoned with: that of Intel's Haswell."""
_WHOLE = re.compile(r"(conv:any\+)?(jit(_1x1|_dw)?:(sse41|avx|avx2)|ref:any)")
_GEMM = re.compile(r"(conv:any\+)?(x64:)?gemm:(jit|any|ref)")
_SIZES = re.compile(r"(?:g(\d+))?mb\d+_ic(\d+)oc(\d+)_(.*)")
_SIDES = re.compile(r"([iok][dhw]|s[dhw])(\d+)")


@dataclass(frozen=True)
class Computed:
    """A convolution as oneDNN reports it.

    Attributes:
        implementation: its name, such as `jit:avx`.
        transposed, forward: which of the four it is; backward is that for the input.
        problem: its sizes, such as `mb4_ic3oc64_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1`.
    """

    implementation: str
    transposed: bool
    forward: bool
    problem: str


@contextmanager
def seen() -> Iterator[list[Computed]]:
    """All convolutions that are computed in the block, filled in when it ends; without those for
    gradients of weights, whose sums no cache cuts.
    """
    found: list[Computed] = []
    library = ctypes.CDLL(None)
    # oneDNN writes what it does to the process's standard output.
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        library.fflush(None)
        kept = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                yield found
        finally:
            sys.stdout.flush()
            library.fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        found += _read(file.read().decode(errors="replace").splitlines())


def _read(lines: Iterable[str]) -> Iterator[Computed]:
    for line in lines:
        words = line.split(",")
        if "exec" not in words or len(words) < 9:
            continue
        # …,exec,cpu,convolution,IMPLEMENTATION,KIND,…,PROBLEM,MILLISECONDS
        what, implementation, kind = words[words.index("exec") + 2 :][:3]
        if what in ("convolution", "deconvolution") and kind != "backward_weights":
            forward = kind.startswith("forward")
            yield Computed(implementation, what == "deconvolution", forward, words[-2])


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
                "use channels in multiples of 8, or less padding, stride or dilation; or --numerics"
                " native",
            )


def _may_be_cut(one: Computed, sizes: re.Match[str]) -> bool:
    """Whether the sum over input channels may not fit the smallest cache in one piece.

    oneDNN's gemm_convolution_utils.cpp, calc_max_icb: a block of the output and of the weights, the
    unfolded rows and the image's own must fit L2. Taken for the largest blocks it may choose.
    """
    inner = one.forward != one.transposed
    if not inner:  # the other direction: its sum is over output channels and is not cut
        return False
    groups = int(sizes[1] or 1)
    ic, oc = int(sizes[2]) // groups, int(sizes[3]) // groups
    sides: dict[str, int] = {}
    for name, length in _SIDES.findall(sizes[4]):
        sides[name[0]] = sides.get(name[0], 1) * int(length)
    area = sides["o"]
    if one.transposed:
        ic, oc, area = oc, ic, sides["i"]
    fits = (SMALLEST - oc * area) / ((sides["s"] + sides["k"]) * area + sides["k"] * oc)
    return ic > 1 and fits < ic
