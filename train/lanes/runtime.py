"""Where this run computes: the only `Accelerator(...)`, and everything that pins arithmetic.

The launcher decides (accelerate launch, torchrun, plain python); `launched` compares what came up
with what was asked for, because the launchers do not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import Tensor

from host import garbage, launcher, plan
from host.errors import HostError, LockstepError
from host.lanes import MEASURED, share
from host.stages import Stages
from train.config import Config
from train.lanes import launched
from train.lanes.links import Links, linked
from train.lanes.pulse import AGREEMENT, Pulse
from train.lanes.settings import pin, settings
from train.lanes.team import Team, teams
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
        shares: the lane numbers that each process works through at each step.
        balanced: whether the lanes are shared anew where another way is faster.
        control: a CPU process group for small decisions; None when alone.
        settings: those of torch that are pinned.
        sharded: whether weights are spread over the processes.
        unspread: whether they were to be, and there is one process.
        stages: into how many the model is to be cut, or where; None: each process has all of it.
        links: what the stages send to each other by.
        team: the processes that sum their gradients with this one.
        pulse: where it is in the training.
    """

    accelerator: Accelerator
    rank: int
    world: int
    portable: bool
    threads: int
    shares: list[range]
    control: dist.ProcessGroup | None
    settings: dict[str, Any]
    balanced: bool = False
    sharded: bool = False
    unspread: bool = False
    stages: Stages | None = None
    links: Links | None = None
    team: Team = field(kw_only=True)
    pulse: Pulse = field(default_factory=Pulse)

    @property
    def lanes(self) -> range:
        """The lane numbers that this process works through at each step."""
        return self.shares[self.rank]

    @property
    def copies(self) -> int:
        """How many copies of a model in stages are trained; 1 of any other."""
        return self.team.size if self.stages is not None else 1

    @property
    def copy(self) -> int:
        """Which of them this process works on."""
        return self.team.place if self.stages is not None else 0

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
    config: Config, *, training: bool = True, shards: bool = False, precision: str | None = None
) -> Iterator[Runtime]:
    """Bring this process up, and down again in order.

    Args:
        training: whether the processes must share the lanes; any number of them can evaluate.
        shards: whether weights may be spread over the processes, where the hardware says so.
        precision: no, fp16 or bf16, whatever the launcher says; None: as it says.

    Raises:
        HostError: the processes or devices asked for did not come up.
        UsageError: the number of processes does not fit the lanes.
    """
    sharded, staged = launched.spread(config, precision or launched.precision(), shards=shards)
    # Where nobody named the hardware, the experiment does.
    portable = config.portable
    use_cpu = (portable and not launched.by_launcher()) or launched.use_cpu()
    threads = pin(config)
    garbage.as_usual()  # all is imported
    # The watchdog says more than a library whose patience ends: it is to be the first. It does not
    # watch what comes before the first step, such as the hashing of all data.
    patience = timedelta(seconds=max(1800, config.watchdog + 600))
    patience = patience if config.watchdog else _FOREVER
    accelerator = _accelerator(config, patience, use_cpu=use_cpu, precision=precision)
    try:
        rank, world = accelerator.process_index, accelerator.num_processes
        launched.compare(world)
        if accelerator.device.type == "cuda":
            torch.cuda.init()  # its generators are there to be seeded before a model draws from one
        # Accelerate would go on in FP32 without a word.
        if use_cpu and accelerator.mixed_precision == "fp16":
            raise HostError("FP16 needs a GPU", "use BF16 or no mixed precision on the CPU")
        if portable and not use_cpu:
            raise plan.not_portable("the hardware config names GPUs")
        if portable and accelerator.mixed_precision != "no":
            raise plan.not_portable(f"{accelerator.mixed_precision.upper()} is asked for")
        size, level = config.batch_size, config.reproducibility
        sharded, unspread = sharded and world > 1, sharded and world == 1
        shares, asked = [range(0)] * world, os.environ.get("SHARES")
        # Small decisions must not wait for the GPU, as a group over NCCL would.
        control: Any = None
        if world > 1:
            control = dist.new_group(backend="gloo", timeout=patience)
            launched.agree(staged, sharded, control, world)
        team = teams(world, staged.count if staged is not None else 1, rank, patience)
        if staged is not None:  # the stages of a copy run the same lanes
            copies = share(config.lanes, team.size, batch=size, level=level)
            shares = [lanes for lanes in copies for _ in team.every]
        elif training:
            shares = share(config.lanes, world, batch=size, level=level, asked=asked)
        if sharded:  # neighbours are summed at once
            shares = [range(each, config.lanes, world) for each in range(world)]
        # Accelerate takes the thread count from its own guess when it starts gloo.
        torch.set_num_threads(threads)
        yield Runtime(
            accelerator,
            rank,
            world,
            portable,
            threads,
            shares,
            control,
            settings(),
            training and staged is None and world > 1 and asked == MEASURED,
            sharded,
            unspread,
            staged,
            linked(accelerator.device, patience, staged.count) if staged is not None else None,
            team=team,
        )
    finally:
        # Without this, leaving with a process group open now and then ends in SIGABRT.
        accelerator.end_training()


def _accelerator(
    config: Config, patience: timedelta, *, use_cpu: bool, precision: str | None
) -> Accelerator:
    """Accelerate's part, which brings up the processes' group: on GPUs over NCCL, or over gloo."""
    group = InitProcessGroupKwargs(timeout=patience)
    if launched.share_gpu() and (launcher.world() or 1) > 1 and not use_cpu:
        group.backend = "gloo"
        # Accelerate takes a process's number for its GPU's where it wraps a model for DDP.
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    handlers: list[Any] = [_buckets(config), group]
    try:
        return Accelerator(cpu=use_cpu, mixed_precision=precision, kwargs_handlers=handlers)
    except ValueError as error:
        raise HostError(str(error), "choose another precision, such as PRECISION=no") from error


def _buckets(config: Config) -> DistributedDataParallelKwargs:
    """How DDP groups gradients.

    It rebuilds its buckets after a process's first step, which changes the order of its sums: a
    resumed run would differ from one that was not interrupted. Looking for unused parameters is
    what keeps it from that.
    """
    exact = config.reproducibility == "deterministic"
    return DistributedDataParallelKwargs(find_unused_parameters=exact)
