"""The verb `fit`: assemble the parts, train, and leave a record."""

from contextlib import ExitStack
from pathlib import Path

from train import (
    assemble,
    checkpoint,
    lock,
    loop,
    order,
    outcome,
    provenance,
    record,
    rundir,
    runtime,
    summary,
)
from train.config import Config
from train.data import Augmenter, ImageData
from train.errors import DataError, Stopped, TrainError, UsageError, translated
from train.experiment import differences, load
from train.health import Health, exhausted
from train.interrupt import StopFlag
from train.metrics import Recorder, check_key
from train.parts import Parts
from train.progress import Display
from train.runtime import Runtime
from train.saver import Saver
from train.stopwatch import Stopwatch
from train.tripwire import Tripwire


def fit(config: Config, run: Path | None, resume: str | bool | None, stop: StopFlag) -> None:
    """Train an experiment, or go on with it, in a run directory.

    Args:
        run, resume: as `rundir.choose` takes them.
        stop: set when a signal asks this process to stop.

    Raises:
        TrainError: what went wrong, for the user to mend; the run's files say so too.
    """
    with runtime.start(config) as here, ExitStack() as held:
        check_key(config)
        path = here.on_main(lambda: rundir.choose(config, run, resume))
        if here.main:
            held.callback(rundir.forget_unused, path)
        if not (resume and here.on_main(lambda: rundir.status(path)) == "finished"):
            patience = lock.PATIENCE if resume else 0
            here.on_main(lambda: held.enter_context(lock.hold(path, patience)))
        continued = here.on_main(lambda: rundir.continued(path, resume))
        if continued:
            here.on_main(lambda: _same_experiment(config, path))
        # Asked again: it may have come to its end while we waited for the lock.
        if continued and here.on_main(lambda: rundir.status(path)) == "finished":
            if here.main:
                print(f"{path} is finished: there is nothing left to do")
            return
        try:
            _train(config, path, continued, here, stop)
        except BaseException as error:
            if isinstance(error, (RuntimeError, MemoryError)):
                found = checkpoint.steps(rundir.checkpoints(path))
                last = str(found[0]) if found else None
                error = (
                    exhausted(error, here.rank, config, last)
                    or translated(error, here.rank)
                    or error
                )
            code = error.code if isinstance(error, TrainError) else 1
            code = 130 if isinstance(error, KeyboardInterrupt) else code
            if here.main:
                record.close(path, code, str(error) or type(error).__name__)
            raise error


def _train(config: Config, path: Path, continued: bool, here: Runtime, stop: StopFlag) -> None:
    if here.main and "/" in config.data.source:
        print(f"looking for {config.data.source}, in the cache and on the hub", flush=True)
    data = here.together(lambda: assemble.data(config, here, stop))
    samples = assemble.samples(config, data)
    display = Display(config.epochs, order.steps(samples, config.batch_size), shown=here.main)
    last = (
        here.on_main(lambda: _last_checkpoint(config, path, data, display, here))
        if continued
        else None
    )
    found = here.together(lambda: checkpoint.read(last)) if last else None
    unwrapped, optimizer, state = here.together(lambda: assemble.learner(config, data, found, here))
    started = here.on_main(
        lambda: record.start(provenance.describe(config, here, data.sha256), path, state.step)
    )
    facts = {
        "config": config.model_dump(mode="json"), "classes": data.classes,
        "shape": data.train.shape, "mean": data.mean, "std": data.std, "data_sha256": data.sha256,
        "mixed_precision": here.accelerator.mixed_precision, "world_size": here.world,
    }  # fmt: skip
    saver = Saver(
        rundir.checkpoints(path), config.checkpoint.keep, unwrapped, optimizer,
        here.accelerator.scaler, facts,
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(display)
        recorder = health = None
        if here.main:
            health = stack.enter_context(Health(here.device))
            run_id, changed = started
            for factor in changed:
                display.say(f"warning: not as when this run was last started: {factor}")
            recorder = Recorder(
                path, run_id, config, display, step=state.step, seconds=state.seconds,
                measured=state.measured, per_epoch=len(data.train), samples=samples,
            )  # fmt: skip
            stack.enter_context(recorder)
        model, reducer = assemble.wrap(unwrapped, config, here)
        augmenter = Augmenter(config.augment, data.mean, data.std, here.device)
        # The optimizer's state is where it belongs; Accelerate would move AdamW's step counts to
        # the GPU, where each is waited for.
        wrapped = here.accelerator.prepare_optimizer(optimizer, device_placement=False)
        whole = config.reproducibility == "lockstep"
        tripwire = None
        if here.world > 1:
            watch = config.tripwire > 0
            tripwire = Tripwire(unwrapped, optimizer, here, buffers=whole, watch=watch)
        parts = Parts(
            config, here, data, augmenter, model, unwrapped, wrapped, reducer, saver, tripwire,
            recorder, stop, samples, Stopwatch(here.device, running=here.main), health,
        )  # fmt: skip
        if here.main:
            tight = assemble.tight(config, data, here)
            if tight:
                display.say(f"warning: {tight}")
        outcome.begun()
        display.say(summary.opening(parts, path, state.step))
        metrics = loop.fit(parts, state) or parts.measure()
        if metrics is None:  # the run was complete but for its result
            raise Stopped("a signal came; all steps are saved", "add --resume to go on")
    if here.main:
        display.say(summary.closing(path, record.finish(path, parts, state, metrics)))


def _same_experiment(config: Config, path: Path) -> None:
    """Refuse to go on with a run under knobs that would have led elsewhere."""
    if not (path / "config.yaml").exists():
        return
    other = differences(config, load(path / "config.yaml"))
    if other:
        raise UsageError(
            f"{path} was started with another {', '.join(name for name, *_ in other)}",
            "continue with the run's own config.yaml, or start another run",
        )


def _last_checkpoint(
    config: Config, path: Path, data: ImageData, display: Display, here: Runtime
) -> Path | None:
    found, damage = checkpoint.newest(rundir.checkpoints(path))
    for error in damage:
        display.say(f"warning: {error.problem}; going on from an older checkpoint")
    if found is None:
        return None
    if found.state["data_sha256"] != data.sha256:
        raise DataError(
            f"the data is not what {path} was started on", "restore it, or start another run"
        )
    before, now = found.state["mixed_precision"], here.accelerator.mixed_precision
    if before != now:
        raise UsageError(
            f"{path} was started with mixed precision {before}, and this is {now}",
            f"use PRECISION={before}, or start another run",
        )
    if config.reproducibility == "deterministic" and found.state["world_size"] != here.world:
        count = found.state["world_size"]
        raise UsageError(
            f"{path} was started on {count} process{'es' * (count > 1)}, and this is {here.world}:"
            " at `deterministic` another number gives other bits",
            f"use {count}; a run at `lockstep` may go on with any number",
        )
    return found.path
