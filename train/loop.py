"""The training loop: one screen."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import torch
from torch import Tensor

from host.errors import LostPeers
from train import pipelined
from train.company import Company
from train.config import Config
from train.data import Batch
from train.journal import Journal
from train.lanes import order
from train.lanes.stagesum import StageSum
from train.learn import optim
from train.learn.loss import total
from train.learn.schedule import is_due
from train.measure import Metrics
from train.parts import Parts
from train.process import failures
from train.record.resume import State


def train(parts: Parts, state: State) -> Metrics | None:
    """Train from `state` to the end; returns the last evaluation, None if none was due.

    Raises:
        DivergedError: the loss is not finite any more; the last checkpoint is from before.
        HostError: the processes' weights are not the same any more.
        Stopped: a signal came; there is a checkpoint of this step.
    """
    journal = Journal(parts, state)
    try:
        return _train(parts, state, journal)
    except RuntimeError as error:
        if isinstance(failures.lost(error), LostPeers):
            journal.rescue()
        raise
    finally:
        journal.close()


def _train(parts: Parts, state: State, journal: Journal) -> Metrics | None:
    config, runtime, steps = parts.config, parts.runtime, parts.steps
    epoch = order.steps(len(parts.data.train), config.batch_size)
    eval_every, save_every = config.eval.every or epoch, config.checkpoint.every or epoch
    metrics = None
    company = Company(parts, state)
    journal.compare()
    # A run that was stopped inside an evaluation goes on with it.
    if state.step > state.measured and is_due(state.step, eval_every, steps):
        metrics = journal.measure()
    paused = True  # whether a signal may have come since the step asked for one
    with ExitStack() as feeds:
        batches = feeds.enter_context(closing(parts.batches(state.step)))
        for step in range(state.step, steps):
            runtime.pulse.step = step + 1
            if _spent(config, state, eval_every):
                journal.say_spent()
                break
            with parts.watch.span("communication"):  # the others may not have come so far yet
                asked = runtime.vote.answer() or (paused and runtime.any(bool(parts.stop)))
            if asked:
                journal.stop()
            lr = optim.lr_at(config.optim, step, steps, epoch)
            report, norm = update(parts, batches, step, lr)
            state.step = step + 1
            journal.keep(report, norm)

            log_due = is_due(state.step, config.log.every, steps)
            eval_due = is_due(state.step, eval_every, steps)
            save_due = is_due(state.step, save_every, steps)
            if log_due or eval_due or save_due:
                journal.settle()  # waits for the device: what is due comes after sound steps only
            if log_due and parts.recorder:
                parts.recorder.train(state.step, state.seconds, lr, report.tolist(), float(norm))
            if log_due and parts.health:
                company.look(parts.health)
            if config.tripwire and is_due(state.step, config.tripwire, steps):
                journal.compare()
            if eval_due:
                metrics = journal.measure()
            best = state.best_step == state.step
            if save_due or best or (eval_due and _spent(config, state, eval_every)):
                journal.save()
                if company.share():  # and so has other samples
                    feeds.close()
                    batches = feeds.enter_context(closing(parts.batches(state.step)))
            paused = eval_due or save_due
    journal.saved()
    return metrics


def _spent(config: Config, state: State, every: int) -> bool:
    """Whether so many evaluations were no better that the run ends early."""
    patience = config.eval.patience
    return patience > 0 and state.measured - state.best_step >= patience * every


def update(parts: Parts, batches: Iterator[Batch], step: int, lr: float) -> tuple[Tensor, Tensor]:
    """One step of training.

    Returns:
        What `forward_backward` reports, and the gradient's norm.
    """
    optim.set_lr(parts.optimizer, lr)
    report = forward_backward(parts, batches, step)
    norm = parts.clip()
    if parts.tripwire:
        parts.tripwire.before_update(step)
    parts.optimizer.step()
    if parts.tripwire:
        parts.tripwire.after_update()
    if parts.average:  # buffers are everybody's by now: the reducer shares them
        parts.average.update(step + 1)
    return report, norm


def forward_backward(parts: Parts, batches: Iterator[Batch], step: int) -> Tensor:
    """This process's lanes of one step; gradients end up summed over all lanes.

    Returns:
        Mean loss and accuracy of the whole batch, float32 [2], on the device.
    """
    if parts.pipeline is not None:
        return pipelined.forward_backward(parts, batches, step)
    config, runtime, reducer = parts.config, parts.runtime, parts.reducer
    assert not isinstance(reducer, StageSum)
    batch_size, samples = config.batch_size, parts.samples
    size = order.consumed(step + 1, batch_size, samples) - step * batch_size
    for lane in runtime.lanes:
        batch = next(batches)
        parts.generators.seed_lane(config.seed, step, lane)
        runtime.pulse.count += 1
        report = torch.zeros(2, device=runtime.device)
        with reducer.lane(sync=lane == runtime.lanes[-1] and size == batch_size):
            if len(batch):
                images = batch.images
                if config.model.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                logits = parts.model(images).float()
                loss = total(parts.loss, logits, batch.labels, batch.partners, batch.shares)
                runtime.accelerator.backward(loss * (reducer.scale / size))
                hits = (logits.detach().argmax(1) == batch.prevailing).sum()
                report = torch.stack([loss.detach(), hits.float()])
        reducer.add(len(batch) / size, report)
    runtime.vote.ask(bool(parts.stop))
    with parts.watch.span("communication"), runtime.pulse.together("the sum of gradients"):
        return reducer.total() / size
