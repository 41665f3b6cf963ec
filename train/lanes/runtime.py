"""Where this run computes: the only `Accelerator(...)`, and everything that pins arithmetic.

The launcher decides (accelerate launch, torchrun, plain python); this file finds out what came
up and compares it with what was asked for, because the launchers do not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import Tensor

from host import launcher, plan
from host.errors import HostError, LockstepError
from host.lanes import share
from train.config import Config
from train.lanes.pulse import AGREEMENT, Pulse
from train.lanes.settings import pin, settings
from train.lanes.vote import Vote
from train.numerics.probes import fingerprint

T = TypeVar("T")
_FOREVER = timedelta(days=365)


@dataclass(frozen=True)
class Runtime:
    """This process among its peers.

    Attributes:
        rank, world: this process's number and how many there are.
        portable: whether other CPUs are to give the same bits.
        threads: OpenMP threads of this process, part of what decides the bits.
        lanes: the lane numbers this process works through at each step.
        control: a CPU process group for small decisions; None when alone.
        settings: those of torch that are pinned.
        pulse: where it is in the training.
    """

    accelerator: Accelerator
    rank: int
    world: int
    portable: bool
    threads: int
    lanes: range
    control: dist.ProcessGroup | None
    settings: dict[str, Any]
    pulse: Pulse = field(default_factory=Pulse)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the probes give on this process, by their names."""
        return fingerprint(self.device, self.accelerator.autocast, portable=self.portable)

    @cached_property
    def vote(self) -> Vote:
        """What is asked while processes compute."""
        return Vote(self.control, self.pulse)

    @property
    def device(self) -> torch.device:
        """Where this process's tensors live."""
        device: torch.device = self.accelerator.device
        return device

    def any(self, flag: bool) -> bool:
        """Whether `flag` holds on any process; each process gets the same answer."""
        vote = Vote(self.control, self.pulse)
        vote.ask(flag)
        return vote.answer()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do the block on every process; where it fails on one, all raise the first one's error."""
        error: LockstepError | None = None
        try:
            yield
        except LockstepError as raised:
            error = raised
        with self.pulse.together(AGREEMENT):
            if self.control is not None:
                errors: list[LockstepError | None] = [None] * self.world
                dist.all_gather_object(errors, error, group=self.control)
                error = next((e for e in errors if e is not None), None)
        if error is not None:
            error.one_rank = False  # now all know: the main process says it for all
            raise error

    def from_main(self, value: T) -> T:
        """The main process's `value`, on every process."""
        held = [value]
        with self.pulse.together(AGREEMENT):
            if self.control is not None:
                dist.broadcast_object_list(held, src=0, group=self.control)
        return held[0]

    def gathered(self, value: T) -> list[T]:
        """Each process's `value`, in their order, on every process."""
        found = [value]
        with self.pulse.together(AGREEMENT):
            if self.control is not None:
                found = [value] * self.world
                dist.all_gather_object(found, value, group=self.control)
        return found

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes.

        Exact where they are integers, or zeros in all but one process; otherwise the bits
        depend on the number of processes.
        """
        if self.world > 1:
            with self.pulse.together("the sums of an evaluation"):
                dist.all_reduce(values)
        return values


@contextmanager
def start(
    config: Config, *, training: bool = True, precision: str | None = None
) -> Iterator[Runtime]:
    """Bring this process up, and down again in order.

    Args:
        training: whether the processes must share the lanes; any number of them can evaluate.
        precision: no, fp16 or bf16, whatever the launcher says; None: as it says.

    Raises:
        HostError: the processes or devices asked for did not come up.
        UsageError: the number of processes does not fit the lanes.
    """
    _refuse_engines()
    _check_meeting()
    # Where nobody named the hardware, the experiment does.
    portable = config.portable
    use_cpu = (portable and not _launched()) or _use_cpu()
    threads = pin(config)
    try:
        # The watchdog says more than a library whose patience ends: it is to be the first. It does
        # not watch what comes before the first step, such as the hashing of all data.
        patience = timedelta(seconds=max(1800, config.watchdog + 600))
        patience = patience if config.watchdog else _FOREVER
        group = InitProcessGroupKwargs(timeout=patience)
        if _share_gpu() and not use_cpu:
            group.backend = "gloo"
        handlers: list[Any] = [_buckets(config), group]
        accelerator = Accelerator(cpu=use_cpu, mixed_precision=precision, kwargs_handlers=handlers)
    except ValueError as error:
        raise HostError(str(error), "choose another precision, such as PRECISION=no") from error
    try:
        rank, world = accelerator.process_index, accelerator.num_processes
        _compare(world)
        # Accelerate would go on in FP32 without a word.
        if use_cpu and accelerator.mixed_precision == "fp16":
            raise HostError("FP16 needs a GPU", "use BF16 or no mixed precision on the CPU")
        if portable and not use_cpu:
            raise plan.not_portable("the hardware config names GPUs")
        if portable and accelerator.mixed_precision != "no":
            raise plan.not_portable(f"{accelerator.mixed_precision.upper()} is asked for")
        size, lockstep = config.batch_size, config.lockstep
        lanes = range(0)
        if training:
            lanes = share(config.lanes, rank, world, batch=size, lockstep=lockstep)
        # Accelerate takes the thread count from its own guess when it starts gloo.
        torch.set_num_threads(threads)
        # Small decisions must not wait for the GPU, as a group over NCCL would.
        control: Any = None
        if world > 1:
            control = dist.new_group(backend="gloo", timeout=patience)
        yield Runtime(accelerator, rank, world, portable, threads, lanes, control, settings())
    finally:
        # Without this, leaving with a process group open now and then ends in SIGABRT.
        accelerator.end_training()


def _compare(came: int) -> None:
    """Refuse to be one of several trainers that each believe they are alone."""
    told = launcher.world()
    wanted = None if told is None else str(told)
    if wanted is None and _launched() and "MASTER_ADDR" in os.environ:
        # Accelerate's launcher for one process starts one, however many it was asked for, by flag
        # or by config; that it was asked for more shows only in its having named an address.
        with suppress(psutil.Error):
            if "MASTER_ADDR" not in psutil.Process(os.getppid()).environ():
                wanted = "several"
    if wanted is not None and wanted != str(came):
        raise HostError(
            f"{wanted} processes were asked for and {came} came up",
            "use configs/accelerate/multi_gpu.yaml or multi_cpu.yaml, or `make train CPUS=N`",
        )


def _refuse_engines() -> None:
    """What shards or splits the model adds up gradients in its own way, or not at all on a CPU."""
    for engine in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        if os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() in ("true", "1"):
            raise HostError(
                f"the hardware config asks for {engine}, which this trainer does not do",
                "use one of configs/accelerate",
            )


def _check_meeting() -> None:
    """Refuse to be one of several that were not told where to meet."""
    if (launcher.world() or 1) > 1:
        missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
        if missing:
            raise HostError(
                f"WORLD_SIZE={launcher.world()} without {' and '.join(missing)}",
                "start with make, accelerate launch or torchrun, which set them all; or unset it",
            )


def _launched() -> bool:
    """Whether Accelerate's launcher started this process; it always says which precision."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ


def _use_cpu() -> bool:
    """Whether to compute on the CPU; a hardware config that wants GPUs must not end up there."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1"):
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1,-1":  # how multi_cpu.yaml hides all GPUs
        return True
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = 1 if _share_gpu() else launcher.local_world()
    if (_launched() or gpus) and gpus < local:
        raise HostError(
            f"{local} GPU process{'es' * (local > 1)} asked for on this machine, where torch sees"
            f" {gpus} GPU{'s' * (gpus != 1)}",
            "use configs/accelerate/cpu.yaml or multi_cpu.yaml, or hide the GPUs from torchrun"
            " with CUDA_VISIBLE_DEVICES=-1"
            if gpus == 0 or not _launched()
            else f"use --num_processes {gpus}",
        )
    return gpus == 0


def _share_gpu() -> bool:
    """Whether processes may share a GPU. NCCL refuses that, so they talk over gloo: slow, and for
    those who want to see on one GPU that several processes end in the same bits.
    """
    return os.environ.get("LOCKSTEP_SHARE_GPU") == "1"


def _buckets(config: Config) -> DistributedDataParallelKwargs:
    """How DDP groups gradients.

    It rebuilds its buckets after a process's first step, which changes the order of its sums: a
    resumed run would differ from one that was not interrupted. Looking for unused parameters is
    what keeps it from that.
    """
    exact = config.reproducibility == "deterministic"
    return DistributedDataParallelKwargs(find_unused_parameters=exact)
