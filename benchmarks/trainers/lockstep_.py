"""Lockstep's own trainer, its command line and all; instrumented, not changed."""

import sys

from common import BATCH, EPOCHS, HOME, SAVE_EVERY, consumed, finished, step_done

from train import journal, loop
from train import run as run_module
from train.__main__ import main
from train.data import loader

state = {"step": 0}
fetch, keep, update = loader._fetch, journal.Journal.keep, loop.update
result = run_module.summary.result


def logged_update(parts, batches, step, lr):
    state["step"] = step + 1
    return update(parts, batches, step, lr)


def logged_fetch(split, numbers, keys):
    if numbers is not keys:  # evaluation has no keys
        consumed(state["step"], numbers.tolist())
    return fetch(split, numbers, keys)


def deadly_keep(self, report, norm):
    keep(self, report, norm)
    step_done(self.state.step - 1)  # after what was due for the step before


def logged_result(parts, *rest):
    finished(parts.unwrapped)
    return result(parts, *rest)


loop.update, loader._fetch, journal.Journal.keep = logged_update, logged_fetch, deadly_keep
run_module.summary.result = logged_result
words = [
    "fit", "--data.source", "folder", "--data.root", HOME / "data", "--model.name", "dropnet",
    "--batch_size", BATCH, "--lanes", 2, "--epochs", EPOCHS, "--optim.lr", 0.05,
    "--checkpoint.every", SAVE_EVERY, "--run", HOME / "run", "--resume",
]  # fmt: skip
sys.exit(main([str(word) for word in words]))
