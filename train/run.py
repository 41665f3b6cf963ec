"""A training from its experiment to its record: claim a run, build the parts, train, write."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from host.errors import LockstepError
from host.text import printable
from train import assemble, doubts, loop, summary
from train.config import Config
from train.data import ImageData, mosaic
from train.lanes import order
from train.lanes import runtime as runtimes
from train.lanes.runtime import Runtime
from train.parts import Parts
from train.predictions import table
from train.process import elastic, outcome
from train.process.failures import explained
from train.process.health import Health
from train.process.interrupt import StopFlag
from train.process.severing import severed_when_told
from train.record import comparison, manifest, provenance
from train.record.claim import Claim, claimed
from train.record.display import Display
from train.record.online import Online, started
from train.record.recorder import Recorder
from train.record.resume import State
from train.record.watchdog import watching
from train.report import matrix


def fit(
    config: Config,
    run: Path | None,
    resume: str | bool | None,
    stop: StopFlag,
    advice: str | None = None,
) -> None:
    """Train an experiment, or go on with it, in a run directory.

    Args:
        run, resume: as `rundir.choose` takes them.
        stop: set when a signal asks this process to stop.
        advice: a line to say when a run begins.

    Raises:
        LockstepError: what went wrong, for the user to mend; the run's files say so too.
    """
    with explained(config):
        if elastic.spare(config.lanes, stop, config.reproducibility):
            return
    # Started again by torchrun, with other machines: the run is the one that was begun.
    run, resume = (elastic.known() or run), (resume or elastic.known() is not None)
    with explained(config), runtimes.start(config, shards=True) as runtime:
        comparison.agree(config, runtime)
        with claimed(config, run, resume, runtime) as claim:
            if runtime.main:
                elastic.chosen(claim.path)
            if resume and not claim.continued and runtime.main:
                none = f"{claim.path} holds no run to go on with"
                print(printable(f"{none}: starting one of {config.name}"))
            if not claim.finished:
                with (
                    manifest.ending(claim.path, main=runtime.main),
                    explained(config, claim.checkpoints, runtime.pulse),
                ):
                    _train(config, claim, runtime, stop, advice)
            elif runtime.main:
                print(printable(f"{claim.path} is finished: there is nothing left to do"))
    elastic.done()
    outcome.finished()


def _train(
    config: Config, claim: Claim, runtime: Runtime, stop: StopFlag, advice: str | None
) -> None:
    data = assemble.data(config, runtime, stop)
    parts, state = assemble.resumed(config, runtime, data, claim=claim, stop=stop)
    if advice and runtime.main and not claim.continued:
        print(printable(advice))
    with ExitStack() as kept:
        with _recorded(parts, state, claim.path, kept) as parts:
            outcome.begun()
            with watching(runtime, claim.path, config.watchdog), severed_when_told():
                metrics = loop.train(parts, state) or parts.measure()
            if parts.recorder and config.log.report:
                with _picturing(parts.recorder, state.step):
                    drawn = matrix.drawn(metrics.confusion)
                    parts.recorder.picture("confusion", drawn, state.step)
        # Of sharded weights each process has a part.
        result = summary.result(parts, state, metrics) if parts.recorder or parts.sharding else {}
        if parts.recorder:
            table.write(claim.path / table.FILE, data.validation, data.classes, metrics.outcomes)
            manifest.finish(claim.path, result)
            outcome.finished()  # who cannot wait for the report has the result
            print(printable(summary.closing(claim.path, result)), flush=True)
            if config.log.report:
                _report(claim.path, config, data, parts.recorder.online)


@contextmanager
def _picturing(recorder: Recorder, step: int) -> Iterator[None]:
    """Within it a picture is drawn and shown: a run does not fail for one, but for a full disk."""
    try:
        yield
    except LockstepError:
        raise
    except Exception as error:  # whatever Pillow, TensorBoard and W&B raise
        recorder.warn(step, f"a picture is missing: {error!r}")


def _report(path: Path, config: Config, data: ImageData, online: Online | None) -> None:
    """Write it. A run that is finished does not fail for it, whatever may be wrong with it."""
    try:
        from train.report import writing  # a second of imports

        report = writing.finished(path, config, data)
        if online is not None:
            online.report(report)
    except Exception as error:
        said = str(error) if isinstance(error, LockstepError) else repr(error)
        print(printable(f"warning: there is no report: {said}"), file=sys.stderr)
    else:
        print(printable(f"report in {report}"), flush=True)


@contextmanager
def _recorded(parts: Parts, state: State, path: Path, kept: ExitStack) -> Iterator[Parts]:
    """The parts with what writes and shows, on the main process; the others have none of it.

    Args:
        kept: holds what stays open for the report.
    """
    config, runtime, run = parts.config, parts.runtime, None
    with runtime.together():
        if runtime.main:
            described = provenance.describe(
                config,
                runtime,
                parts.data.described(),
                parts.first_pass,
                parts.reducer.exchanged,
            )
            run = manifest.start(config, described, path, state.step)
    epoch = len(parts.data.train)
    with ExitStack() as stack:
        parts = replace(parts, health=stack.enter_context(Health(runtime.device)))
        if run is None:
            yield parts
            return
        online = kept.enter_context(started(path, run.id, config))
        display = stack.enter_context(
            Display(
                parts.samples / epoch,
                order.steps(parts.samples, config.batch_size),
                state.best_top1,
            )
        )
        recorder = stack.enter_context(
            Recorder(
                path,
                config,
                display,
                online=online,
                step=state.step,
                seconds=state.seconds,
                measured=state.measured,
                per_epoch=epoch,
                samples=parts.samples,
            )
        )
        for factor in comparison.few(run.changed):
            recorder.warn(
                state.step,
                f"not as when this run was last started: {factor}; bring that back, or start a new"
                " run",
            )
        for factor in comparison.few(run.mixed):
            said = f"more than one code has trained this run: {factor}"
            recorder.warn(state.step, said)
        for doubt in doubts.doubts(parts):
            recorder.warn(state.step, doubt)
        if config.log.report and state.step == 0:
            with _picturing(recorder, 0):
                recorder.picture("inputs", mosaic.draw(config, parts.data), 0)
        display.say(summary.opening(parts, path, state.step))
        yield replace(parts, recorder=recorder)
