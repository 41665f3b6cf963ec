"""Which run directory a training takes: chosen, locked, and checked to be the experiment's."""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from host.errors import DataError, UsageError
from train.config import Config
from train.config.data import root_flag
from train.experiment import differences, parse, settled, told, typed
from train.lanes.runtime import Runtime
from train.record import documents, files, lock, rundir, verification
from train.record.facts import Facts
from train.record.online import check_key

_FEW = 3  # knobs that are named one by one


@dataclass(frozen=True)
class Claim:
    """A run directory that is ours.

    Attributes:
        continued: whether it holds a run that is to go on.
        finished: whether that run has come to its end.
    """

    path: Path
    continued: bool
    finished: bool

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return rundir.checkpoints(self.path)


@contextmanager
def claimed(
    config: Config, run: Path | None, resume: str | bool | None, runtime: Runtime
) -> Iterator[Claim]:
    """The run directory, the main process being its only writer for as long as the block lasts.

    Args:
        run, resume: as `rundir.choose` takes them.

    Raises:
        UsageError: there is nothing to continue, or something else, or another writer.
        HostError: it cannot be written.
    """
    with ExitStack() as held:
        claim = None
        with runtime.together():
            if runtime.main:
                check_key(config)
                path = rundir.choose(config, run, resume)
                held.callback(rundir.forget_unused, path)
                claim = _taken(config, path, resume, held)
        claim = runtime.from_main(claim)
        assert claim is not None
        yield claim


def _taken(config: Config, path: Path, resume: str | bool | None, held: ExitStack) -> Claim:
    if not (resume and rundir.status(path) == "finished"):
        held.enter_context(lock.hold(path, lock.PATIENCE if resume else 0))
        files.try_out(path)
    continued = rundir.continued(path, resume)
    if continued:
        _check_experiment(config, path)
    # Asked again: it may have come to its end while we waited for the lock.
    return Claim(path, continued, continued and rundir.status(path) == "finished")


def _check_experiment(config: Config, path: Path) -> None:
    """Refuse to go on with a run under knobs that would have led elsewhere.

    Its config.yaml is no witness: it is what people edit.
    """
    manifest = documents.record(path) or {}
    if "config" in manifest:
        before = parse(manifest["config"], str(path / "run.json"))
        _check_knobs(config, before, path, f"{path} was started")


def _check_knobs(now: Config, before: Config, run: Path, what: str) -> None:
    other = differences(settled(before), now)
    if other:
        words = shlex.join(word for name, was, _ in other for word in (f"--{name}", typed(was)))
        if len(other) > _FEW:
            words = "RUN= and --resume alone, which take its own knobs"
        else:
            words += ", or with RUN= and --resume alone"
        weights = run / "checkpoints" / "latest" / "model.safetensors"
        averaged = verification.average_of(weights)
        own = f", from its weights if you like: --model.weights {weights}" * weights.exists()
        if averaged is not None:
            own = f", from its averaged weights if you like: --model.weights {averaged}"
        if list(weights.parent.glob("model.0of*.safetensors")):  # of sharded weights
            own = ", from its weights if you like, which make export writes into one file"
        raise UsageError(
            f"{what} with {told(other)}",
            f"go on with {words}, or start a new run{own}",
        )


def check_facts(run: Path, before: Facts, now: Facts) -> None:
    """See that a checkpoint of `run` is one that this training would go on from to its bits.

    Raises:
        DataError, UsageError: it is of other data, knobs, precision or processes.
    """
    origin = f"the last checkpoint of {run}"
    _check_knobs(parse(now.config, "now"), parse(before.config, origin), run, f"{origin} was made")
    if before.data_sha256 != now.data_sha256:
        how = before.other_classes(now.classes)
        raise DataError(
            f"the data is not what {run} was started on"
            + (f": it {how}" if how else ", though its classes are"),
            f"name it with {root_flag()}, restore it, or start another run",
        )
    if before.mixed_precision != now.mixed_precision:
        raise UsageError(
            f"{run} was started with mixed precision {before.mixed_precision}, and this is"
            f" {now.mixed_precision}",
            f"use PRECISION={before.mixed_precision}, or start another run",
        )
    level = now.config["reproducibility"]
    if level == "deterministic" and before.world_size != now.world_size:
        count = before.world_size
        raise UsageError(
            f"{run} was started on {count} process{'es' * (count > 1)}, and this is"
            f" {now.world_size}: at `deterministic` another number gives other bits",
            f"use {count}; a run at `lockstep` may go on with any number",
        )
    if level == "deterministic" and before.sharded != now.sharded:
        words = ("with", "without") if before.sharded else ("without", "with")
        raise UsageError(
            f"{run} was started {words[0]} ACCELERATE=fsdp, and this is {words[1]} it: at"
            " `deterministic` that gives other bits",
            f"go on {words[0]} it; a run at `lockstep` may go on either way",
        )
