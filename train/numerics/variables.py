"""What holds torch's libraries to the instructions that all x86-64 CPUs with AVX2 have.

Left alone, torch, oneDNN and MKL each look at the CPU and choose: other vectors, other blocks, on
AVX-512 and AVX2, on Intel's and on AMD's. They read these variables when they look first, so the
variables must be there before torch is loaded.
"""

import os
import platform
import shlex
import sys
from pathlib import Path

from host.errors import HostError, UsageError

HELD = {
    "ATEN_CPU_CAPABILITY": "avx2",
    # Its AVX2 has convolutions whose blocks follow the CPU's caches; below, one kind has.
    "ONEDNN_MAX_CPU_ISA": "AVX",
    "MKL_CBWR": "COMPATIBLE",
    # NumPy and its BLAS: a model may compute weights or masks with them.
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Sources: torch's DispatchStub.cpp; oneDNN's developer guide, CPU dispatcher control; MKL's,
obtaining numerically reproducible results; NumPy's CPU build options; OpenBLAS's README."""

_OTHERWISE = (
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_ENABLE_CPU_FEATURES",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)
"""What would have a library choose otherwise all the same; glibc's tunables of the CPU as well."""

STARTED = {
    # Idle threads of a busy machine must sleep, not spin; OpenMP reads this when torch is loaded.
    "OMP_WAIT_POLICY": "PASSIVE",
    # The order of a set of words follows a number that Python draws at each start, unless told.
    "PYTHONHASHSEED": "0",
}
"""What every trainer starts with, unless the environment says otherwise."""

_NATIVE = "or train with --numerics native, whose bits are those of one kind of CPU"


def hold() -> None:
    """Set the variables, for this process and those that it starts; before torch is loaded.

    Raises:
        UsageError: the environment sets one of them to something else.
        HostError: torch is there already, or this CPU cannot do it.
    """
    for name, value in HELD.items():
        given = os.environ.get(name, value)
        if given != value:
            raise UsageError(
                f"{name}={given} in the environment, and numerics: portable needs {value}",
                f"unset {name}, {_NATIVE}",
                one_rank=True,
            )
    tuned = "glibc.cpu." in os.environ.get("GLIBC_TUNABLES", "")
    for name in (*_OTHERWISE, *(["GLIBC_TUNABLES"] if tuned else [])):
        if os.environ.get(name):
            raise UsageError(
                f"{name} is set in the environment: it has a library take other instructions, and"
                " with numerics: portable all machines take the same",
                f"unset {name}, {_NATIVE}",
                one_rank=True,
            )
    if {"torch", "numpy"} & sys.modules.keys() and not HELD.items() <= os.environ.items():
        raise too_late()
    if not possible():
        raise without_avx2()
    os.environ.update(HELD)


def too_late() -> HostError:
    """Torch has looked at the CPU already."""
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in HELD.items())
    return HostError(
        "numerics: portable, and torch or NumPy was loaded without the variables that it needs",
        f"set them before Python starts: export {words}",
        one_rank=True,
    )


def without_avx2() -> HostError:
    """This CPU lacks the instructions."""
    return HostError(
        "numerics: portable needs an x86-64 CPU with AVX2 and FMA, and this one"
        f" ({platform.machine()}) has not",
        f"train on another machine, {_NATIVE}",
        one_rank=True,
    )


def possible(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has the instructions."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        rows = cpuinfo.read_text().splitlines()
    except OSError:  # not Linux: torch says it later
        return True
    flags = next((row for row in rows if row.startswith("flags")), "avx2 fma")
    return {"avx2", "fma"} <= set(flags.split())
