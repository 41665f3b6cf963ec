"""The verbs `fit` and `evaluate`: assemble the parts and run them."""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from train import checkpoint, loop, models, optim, order, provenance, rundir, runtime
from train.checkpoint import Checkpoint, Saver
from train.config import Config, differences, dump, load, parse
from train.data import Augmenter, ImageData
from train.data import load as load_data
from train.errors import TrainError, UsageError
from train.evaluate import Metrics, evaluate
from train.files import write_whole
from train.loop import Parts, State
from train.metrics import Recorder
from train.progress import Display
from train.reduce import AllReduce, LaneTree, Reducer
from train.runtime import Runtime


def fit(config: Config, run: Path | None, resume: str | bool | None) -> None:
    """Train an experiment, or go on with it, in a run directory.

    Args:
        run, resume: as `rundir.choose` takes them.

    Raises:
        TrainError: what went wrong, for the user to mend; the run's files say so too.
    """
    with runtime.start(config) as here:
        path, continued = here.on_main(lambda: rundir.choose(config, run, resume))
        if continued:
            here.on_main(lambda: _same_experiment(config, path))
        if continued and rundir.status(path) == "finished":
            if here.main:
                print(f"{path} is finished: there is nothing left to do")
            return
        try:
            _train(config, path, continued, here)
        except BaseException as error:
            code = error.code if isinstance(error, TrainError) else 1
            if here.main:
                _close(path, code, str(error) or type(error).__name__)
            raise


def _train(config: Config, path: Path, continued: bool, here: Runtime) -> None:
    data = here.together(lambda: load_data(config.data))
    samples = _samples(config, data)
    display = Display(config.epochs, order.steps(samples, config.batch_size), shown=here.main)
    found = here.together(lambda: _last_checkpoint(path, display)) if continued else None

    torch.manual_seed(order.key(config.seed) & (2**63 - 1))
    plain = here.together(
        lambda: models.build(config.model, len(data.classes), data.train.shape)
    ).to(here.device)  # fmt: skip
    optimizer = optim.build(config.optim, plain)
    state = State()
    if found is not None:
        found.restore(plain, optimizer)
        state = State(**{name: found.state[name] for name in asdict(state)})
        if here.accelerator.scaler and found.state["scaler"]:
            here.accelerator.scaler.load_state_dict(found.state["scaler"])

    if here.main:
        manifest = provenance.describe(config, here, data.sha256)
        manifest |= {"started": _now(), "resumed_from_step": state.step or None}
        rundir.write_json(path / "run.json", manifest)
        write_whole(path / "config.yaml", dump(config).encode())
    facts = {
        "config": config.model_dump(mode="json"), "classes": data.classes,
        "shape": data.train.shape, "mean": data.mean, "std": data.std, "data_sha256": data.sha256,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(display)
        recorder = None
        if here.main:
            recorder = stack.enter_context(
                Recorder(
                    path, config, display,
                    step=state.step, per_epoch=len(data.train), samples=samples,
                )  # fmt: skip
            )
        model, reducer = _wrap(plain, config, here)
        parts = Parts(
            config=config, runtime=here, data=data, model=model, plain=plain, reducer=reducer,
            augmenter=Augmenter(config.augment, data.mean, data.std, here.device),
            optimizer=here.accelerator.prepare_optimizer(optimizer),
            saver=Saver(
                rundir.checkpoints(path), config.checkpoint.keep, plain, optimizer,
                here.accelerator.scaler, facts,
            ),
            recorder=recorder, samples=samples,
        )  # fmt: skip
        display.say(_opening(config, here, data, plain, path, state.step))
        figures = loop.fit(parts, state) or parts.measure()
        if here.main:
            _finish(path, parts, state, figures)
            display.say(_closing(path, figures))


def _samples(config: Config, data: ImageData) -> int:
    """Samples the run consumes.

    Raises:
        UsageError: a batch is larger than the data.
    """
    if config.batch_size > len(data.train):
        raise UsageError(
            f"batch_size {config.batch_size} is larger than the {len(data.train)} training samples",
            "choose a smaller --batch_size",
        )
    samples = round(config.epochs * len(data.train))
    if config.max_steps is not None:
        samples = min(samples, config.max_steps * config.batch_size)
    return max(1, samples)


def _wrap(plain: nn.Module, config: Config, here: Runtime) -> tuple[nn.Module, Reducer]:
    """The model as it is called, and what sums over its lanes."""
    exact = config.reproducibility == "lockstep"
    # Accelerate's evaluation mode is precision and device without DDP.
    alone = exact or here.world == 1
    model = here.accelerator.prepare_model(plain, evaluation_mode=alone)
    reducer: Reducer
    if exact:
        reducer = LaneTree(plain, here.rank, here.world)
    else:
        reducer = AllReduce(model, here.world)
    return (torch.compile(model) if config.model.compile else model), reducer


def _same_experiment(config: Config, path: Path) -> None:
    """Refuse to go on with a run under knobs that would have led elsewhere."""
    if not (path / "config.yaml").exists():
        return
    other = differences(config, load(path / "config.yaml"))
    if other:
        raise UsageError(
            f"{path} was started with another {', '.join(other)}",
            "continue with the run's own config.yaml, or start another run",
        )


def _last_checkpoint(path: Path, display: Display) -> Checkpoint | None:
    found, damage = checkpoint.newest(rundir.checkpoints(path))
    for error in damage:
        display.say(f"warning: {error.problem}; going on from an older checkpoint")
    return found


def _finish(path: Path, parts: Parts, state: State, figures: Metrics) -> None:
    samples = parts.consumed(state.step)
    result = {
        "status": "finished",
        "steps": state.step,
        "samples": samples,
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(samples / max(state.seconds, 1e-9), 1),
        "weights_sha256": checkpoint.weights_sha256(parts.plain),
        "metrics": figures.full(),
        "best": {"step": state.best_step, "top1": state.best_top1},
    }
    rundir.write_json(path / "result.json", result)
    _end(path, 0)


def _close(path: Path, code: int, problem: str) -> None:
    """Leave word of how a run ended that did not finish. Its checkpoints stay."""
    status = "stopped" if code == 75 else "failed"
    last = checkpoint.steps(rundir.checkpoints(path))
    steps = int(last[0].name.removeprefix("step-")) if last else 0
    try:
        rundir.write_json(
            path / "result.json", {"status": status, "steps": steps, "error": problem}
        )
        _end(path, code)
    except TrainError:
        pass  # the disk may be what failed; the error that is on its way says more


def _end(path: Path, code: int) -> None:
    manifest = rundir.read_json(path / "run.json")
    if manifest is not None:
        rundir.write_json(path / "run.json", {**manifest, "ended": _now(), "exit_code": code})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _opening(
    config: Config, here: Runtime, data: ImageData, model: nn.Module, path: Path, step: int
) -> str:
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    where = provenance.hardware(here)
    each, precision = len(here.lanes), where["mixed_precision"]
    return "\n".join(
        (
            f"{config.data.source}: {len(data.train):,} training and {len(data.held_out):,}"
            f" validation images, {len(data.classes)} classes",
            f"{config.model.name}: {millions:.2f} M parameters · {config.reproducibility}"
            f" · seed {config.seed}",
            f"{here.world} process{'es' * (here.world > 1)} on {where['device']}"
            f"{'' if precision == 'no' else ', ' + precision}: batch {config.batch_size}"
            f" = {here.world} × {each} × {config.micro_batch}"
            " (processes × accumulation × micro-batch)",
            f"{'continuing after step ' + str(step) if step else 'writing'} in {path}",
        )
    )


def _closing(path: Path, figures: Metrics) -> str:
    result = rundir.read_json(path / "result.json") or {}
    return (
        f"validation top-1 {100 * figures.top1:.2f} %  loss {figures.loss:.4f}  after"
        f" {result['steps']} steps in {result['seconds']:.1f} s"
        f" ({result['samples_per_second']:,.0f} samples/s)\n"
        f"weights {result['weights_sha256']}\n"
        f"result in {path / 'result.json'}"
    )


def evaluate_run(run: Path | None, single: Path | None, root: str | None) -> None:
    """Measure a run's newest weights, or one checkpoint, and print the figures as JSON.

    Args:
        run, single: a run directory or a checkpoint directory; one of them.
        root: where the data is now, if elsewhere than when it was trained on.

    Raises:
        TrainError: what went wrong, for the user to mend.
    """
    path = single if single is not None else rundir.final_checkpoint(run or Path())
    found = checkpoint.read(path)
    config = parse(found.state["config"], str(path))
    with runtime.start(config, training=False) as here:
        source = config.data if root is None else config.data.model_copy(update={"root": root})
        data = here.together(lambda: load_data(source))
        if here.main and data.sha256 != found.state["data_sha256"]:
            print("warning: the data is not what the weights were trained on", file=sys.stderr)
        shape = (data.train.shape[0], data.train.shape[1], data.train.shape[2])
        plain = models.build(config.model.model_copy(update={"weights": None}), len(found.state["classes"]), shape)
        found.restore(plain)
        plain = plain.to(here.device)
        here.accelerator.prepare_model(plain, evaluation_mode=True)
        augmenter = Augmenter(config.augment, found.state["mean"], found.state["std"], here.device)
        block = config.eval.batch_size or config.micro_batch
        figures = evaluate(
            plain, data.held_out, augmenter, len(found.state["classes"]), block, here
        )
        if here.main:
            about: dict[str, Any] = {"checkpoint": str(path), "step": found.state["step"]}
            print(json.dumps({**about, **figures.full()}))
