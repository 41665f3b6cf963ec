"""Torch's settings that decide the bits: pinned once, and looked at again."""

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

import torch

from host import limits
from host.errors import HostError
from train.config import Config
from train.numerics import variables


def pin(config: Config) -> int:
    """Fix whatever may change the arithmetic; returns the number of threads.

    Raises:
        LockstepError: the experiment asks for portable numerics, which cannot be had here.
    """
    portable = config.portable
    if portable:
        _check_portable()
        # Without oneDNN torch would turn to it, and it cuts by the CPU's caches.
        torch.backends.nnpack.set_flags(_enabled=False)
    exact = config.reproducibility != "fast"
    # cuBLAS reads this when its first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # Two threads sum in another order than one, so the number must not follow the machine where
    # the bits must not. Elsewhere the processes share the CPUs there are.
    alone = portable or config.lockstep
    threads = 1 if alone else limits.cpus_each()
    torch.set_num_threads(threads)
    return threads


def _check_portable() -> None:
    variables.hold()
    if not torch.backends.mkl.is_available():
        raise HostError(
            "numerics: portable needs a torch with MKL, and this one has none",
            "install the lock's: make ready",
        )
    if not torch.cpu._is_avx2_supported():
        raise variables.without_avx2()
    # Set when torch or MKL had looked already, as in a notebook, they would change nothing.
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2" or not _compatible() or _wide_numpy():
        raise variables.too_late()


def _compatible() -> bool:
    """Whether MKL took MKL_CBWR=COMPATIBLE, where torch's library can be asked."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    # Intel's mkl_cbwr.h: option 1 asks for the branch, and 3 is MKL_CBWR_COMPATIBLE.
    asked = getattr(library, "mkl_serv_cbwr_get", None)
    return asked is None or asked(1) == 3


def _wide_numpy() -> bool:
    """Whether NumPy took AVX-512."""
    module = importlib.import_module("numpy._core._multiarray_umath")
    return bool(getattr(module, "__cpu_features__", {}).get("X86_V4"))


def settings() -> dict[str, Any]:
    """Torch's settings that decide the bits, as they are now."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "num_threads": torch.get_num_threads(),
        "default_dtype": torch.get_default_dtype(),
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.allow_tf32": cudnn.allow_tf32,
        "matmul.allow_tf32": matmul.allow_tf32,
        "matmul.allow_fp16_reduced_precision_reduction": (
            matmul.allow_fp16_reduced_precision_reduction
        ),
        "matmul.allow_bf16_reduced_precision_reduction": (
            matmul.allow_bf16_reduced_precision_reduction
        ),
    }
