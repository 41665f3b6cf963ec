"""Variables that may change how libraries compute, as a record may hold them: never a secret."""

import hashlib
import os
import re
from collections.abc import Mapping

# Beginnings of the names of variables that libraries read when they choose how to compute.
_NUMERIC = (
    "ACCELERATE_",
    "ATEN_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "FSDP_",
    "GLIBC_TUNABLES",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NPY_",
    "NVIDIA_TF32",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "TIMM_",
    "TORCHINDUCTOR_",
    "TORCH_",
)
# Those whose values are settings that libraries document, and no place for anything else. What
# another one holds nobody knows: an address with a password, for one.
_SETTINGS = frozenset(
    """
    ACCELERATE_CPU_AFFINITY ACCELERATE_DEBUG_MODE ACCELERATE_DYNAMO_BACKEND
    ACCELERATE_DYNAMO_MODE ACCELERATE_MIXED_PRECISION ACCELERATE_USE_CPU ACCELERATE_USE_FSDP
    ATEN_CPU_CAPABILITY CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER
    CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES DNNL_DEFAULT_FPMATH_MODE
    DNNL_MAX_CPU_ISA GLIBC_TUNABLES GLOO_SOCKET_IFNAME GOMP_CPU_AFFINITY GOMP_SPINCOUNT
    KMP_AFFINITY KMP_BLOCKTIME MKL_CBWR MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS MKL_NUM_THREADS
    MKL_THREADING_LAYER NCCL_ALGO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_IB_DISABLE
    NCCL_IB_HCA NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_NET_GDR_LEVEL NCCL_NTHREADS
    NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE
    NCCL_SOCKET_IFNAME NPY_DISABLE_CPU_FEATURES NVIDIA_TF32_OVERRIDE OMP_DYNAMIC OMP_NUM_THREADS
    OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY ONEDNN_DEFAULT_FPMATH_MODE
    ONEDNN_MAX_CPU_ISA OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS PYTHONHASHSEED PYTORCH_ALLOC_CONF
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_NVML_BASED_CUDA_CHECK TIMM_FUSED_ATTN TIMM_REENTRANT_CKPT
    TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_FREEZING TORCHINDUCTOR_MAX_AUTOTUNE
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_COMPILE_DISABLE TORCH_CPP_LOG_LEVEL
    TORCH_NCCL_ASYNC_ERROR_HANDLING
    """.split()  # noqa: SIM905
)
_PLAIN = re.compile(r"(?!.*://)[\^\w.,:;=+/* \[\]{}()-]*", re.ASCII)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that may change how libraries compute.

    What is no known setting, or is a strange value for one, stands as the beginning of its
    SHA-256: enough to compare.
    """
    return {
        name: value if name in _SETTINGS and _PLAIN.fullmatch(value) else _digest(value)
        for name, value in sorted(variables.items())
        if name.startswith(_NUMERIC) and not _SECRET.search(name)
    }


def _digest(value: str) -> str:
    return f"sha256:{hashlib.sha256(os.fsencode(value)).hexdigest()[:16]}"
