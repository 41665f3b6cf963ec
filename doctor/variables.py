"""Variables of the shell that change what CUDA, torch and NCCL do, left there from another time."""

from __future__ import annotations

import re
import shlex

from doctor import collectives, kind, numbered, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host import fleet, nvidia, visible
from host.followed import FOLLOWED
from host.machine import Machine
from host.text import whole

_NAME = "variables"
# Name, value, what it does.
_LEFT = (
    ("CUDA_LAUNCH_BLOCKING", "1", "each kernel is waited for: training takes much longer"),
    (
        "CUDA_FORCE_PTX_JIT",
        "1",
        "the kernels that torch brings are passed over: it does not start, or compiles for minutes",
    ),
    (
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "1",
        "kernels wait in one queue: FSDP does not talk while it computes (Megatron wants it so)",
    ),
    ("NVIDIA_TF32_OVERRIDE", "0", "TF32 is off, whatever precision is asked for"),
    ("TORCH_COMPILE_DISABLE", "1", "torch.compile does nothing, whatever is asked for"),
    ("TORCHDYNAMO_DISABLE", "1", "torch.compile does nothing, whatever is asked for"),
    (
        "TORCH_DISTRIBUTED_DEBUG",
        "DETAIL",
        "each collective is checked on all processes first: training takes longer",
    ),
)
_OF_SEVERAL = ("TORCH_DISTRIBUTED_DEBUG", "CUDA_DEVICE_MAX_CONNECTIONS")
_TENSOR = (7, 0)  # the first with units for FP16
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_REFUSED = re.compile(
    r"expandable_segments:(?!True\b|False\b)\w*|max_split_size_mb:(?:1?\d|20)\b"
    r"|garbage_collection_threshold:(?:[1-9]\d*(?:\.\d+)?|0(?:\.0+)?)(?![\d.])"
)
_KNOWN = (
    *("backend", "expandable_segments", "garbage_collection_threshold", "max_split_size_mb"),
    *("max_non_split_rounding_mb", "roundup_power2_divisions", "roundup_bypass_threshold_mb"),
    *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "per_process_memory_fraction"),
    *("pinned_use_cuda_host_register", "pinned_num_register_threads"),
    *("pinned_use_background_threads", "pinned_reserve_segment_size_mb"),
    *("pinned_use_hip_host_register", "pinned_max_round_threshold_mb"),
    *("graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom", "use_cuda_host_register"),
)


def examine(machine: Machine) -> Finding:
    """None of them slows training down, or hides a GPU."""
    if not nvidia.ask(machine)[1]:
        return skip(_NAME, "no GPU")
    strange = _quoted(machine) or _unknown(machine) or _remapped(machine)
    if strange is not None:
        return strange
    several = len(visible.seen(machine)) > 1 or fleet.several(machine.environ)
    for name, value, why in _LEFT:
        alone = name in _OF_SEVERAL and not several
        if machine.environ.get(name) == value and not alone:
            return warn(_NAME, f"{name}={value}", why, f"unset {name}, unless it is meant so")
    if machine.environ.get(_UNCACHED) is not None:
        return warn(
            _NAME,
            f"{_UNCACHED}={machine.environ[_UNCACHED]}",
            "torch looks only whether it is there, and asks the driver for each tensor's memory:"
            " slow, and out of memory early",
            f"unset {_UNCACHED}",
        )
    share = whole(machine.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
    if share is not None and share < 100:
        return warn(
            _NAME,
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share}",
            "with MPS this user's programs get that share of a GPU, and no more",
            "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, unless it is meant so",
        )
    return (
        numbered.cut_short(machine)
        or numbered.other_order(machine)
        or collectives.told(machine)
        or _mkl(machine)
        or _precision(machine)
        or ok(_NAME, "none that slows it down or hides a GPU")
    )


def _precision(machine: Machine) -> Finding | None:
    """A precision that a GPU does not have, or gets wrong.

    https://github.com/pytorch/pytorch/issues/77955
    """
    told = machine.environ.get("PRECISION", "")
    named = machine.environ.get("GPUS", "")
    chosen = re.findall(r"\d+", named) if "," in named else []
    gpus = [gpu for gpu in visible.seen(machine) if not chosen or gpu.index in chosen]
    gpus = gpus[: whole(named)] if named.isdecimal() else gpus
    for gpu in [] if machine.environ.get("CPUS") else gpus:
        wrong = re.search(r"GTX 16[56]0", gpu.name) is not None
        slow = wrong or (gpu.capability or _TENSOR) < _TENSOR
        if told == "fp16" and wrong:
            why = f"convolutions in FP16 give NaN on the {gpu.name}"
            return warn(_NAME, f"PRECISION={told}", why, "PRECISION=no")
        if told == "bf16" and gpu.capability and gpu.capability < (8, 0):
            why = f"the {gpu.name} has no BF16: it is computed by way of FP32, which is slower"
            return warn(_NAME, f"PRECISION={told}", why, f"PRECISION={'no' if slow else 'fp16'}")
    return None


def _unknown(machine: Machine) -> Finding | None:
    """An option of the allocator's that torch does not have, or a value that it does not take."""
    for name in _ALLOCATOR:
        value = machine.environ.get(name, "").replace(" ", "")  # torch passes over them
        refused = _REFUSED.search(value)
        if refused is not None:
            return warn(
                _NAME,
                f"{name} has {refused.group()}, which torch does not take",
                "it ends as CUDA starts: it wants True or False, more than 20 MB, a share below 1",
                f"unset {name}, or mend it: max_split_size_mb:128, expandable_segments:True",
            )
        words = re.sub(r"\[[^]]*\]", "", value)
        keys = [word.partition(":")[0].strip() for word in words.split(",") if word.strip()]
        strange = next((key for key in keys if key not in _KNOWN), None)
        if strange is not None:
            return warn(
                _NAME,
                f"{name} has a word that is none of torch's options: {strange[:40]}",
                "torch ends as it starts CUDA (Unrecognized key), unless a newer one knows it",
                f"unset {name}, or mend it: max_split_size_mb:128, expandable_segments:True",
            )
    return None


def _remapped(machine: Machine) -> Finding | None:
    """The allocator is to map memory anew, where the driver does not do that.

    https://github.com/unslothai/unsloth/issues/1446, https://github.com/pytorch/pytorch/issues/192330
    """
    told = {name: machine.environ.get(name, "").replace(" ", "") for name in _ALLOCATOR}
    name = next((name for name in told if "expandable_segments:True" in told[name]), None)
    where = {
        "under WSL": wsl.is_windows(machine) and _before_616(machine),
        "on a Jetson": kind.is_jetson(machine),
        "on a virtual GPU": any(gpu.is_virtual for gpu in visible.seen(machine)),
    }
    here = next((words for words, holds in where.items() if holds), None)
    if name is None or here is None:
        return None
    return warn(
        _NAME,
        f"{name} has expandable_segments:True, {here}",
        "the driver there often refuses to map memory so: CUDA driver error (operation not"
        " supported, device not ready, unknown error, out of memory)",
        f"unset {name}; or expandable_segments:False in it; under WSL also Windows' newest driver",
    )


def _before_616(machine: Machine) -> bool:
    """Whether Windows' driver is older than the one that mends it."""
    versions = [gpu.text("driver_version") or "" for gpu in nvidia.ask(machine)[1]]
    majors = [whole(version.partition(".")[0]) for version in versions]
    return any(major is not None and major < 616 for major in majors)


def _mkl(machine: Machine) -> Finding | None:
    """Conda's MKL is told to use Intel's OpenMP, and PyTorch brings GNU's.

    https://github.com/pytorch/pytorch/issues/37377
    """
    told = machine.environ.get("MKL_THREADING_LAYER", "").upper() == "INTEL"
    if not told or "CONDA_PREFIX" not in machine.environ:
        return None
    if "MKL_SERVICE_FORCE_INTEL" in machine.environ:
        return None
    return warn(
        _NAME,
        "MKL_THREADING_LAYER=INTEL",
        "programs may end as they start: it is incompatible with libgomp, which PyTorch brings",
        "export MKL_THREADING_LAYER=GNU",
    )


def _quoted(machine: Machine) -> Finding | None:
    """A value whose quotation marks no shell has taken away: a file of variables keeps them."""
    marks = re.compile(r"""(["']).+\1""")
    name = next((each for each in FOLLOWED if marks.fullmatch(machine.environ.get(each, ""))), None)
    if name is None:
        return None
    value = machine.environ[name]
    return fail(
        _NAME,
        f"{name} holds quotation marks: {value}",
        "they belong to the value: nothing has that name (docker --env-file and scripts keep them)",
        f"export {name}={shlex.quote(value[1:-1])}; write it without them where it is set",
    )
