"""The trainer as it is, with a ledger of what it consumes and a hand that strikes at a moment.

`strike` is a mapping; every key is optional:
    at      load | lane | eval | file: while data is loaded, between two lanes of a step, between
            two batches of an evaluation, or before a file operation on checkpoints
    count   the how-manieth of these moments on this process (from 1)
    signal  what this process then sends itself
    flip    [step, element, bit]: flip a bit of the first weight tensor after the update of `step`
    cgroup  the directory of a control group that this process enters first
"""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import idioms

_FILE_EVENTS = (
    "open",
    "os.rename",
    "os.mkdir",
    "os.symlink",
    "os.remove",
    "os.rmdir",
    "os.listdir",
)


def run(words: list[str], environ: dict[str, str], folder: str, strike: dict[str, Any]) -> None:
    """Be one process of a run; does not return. Output and ledger go to files in `folder`."""
    os.environ.update(environ)
    os.chdir(environ.get("WORK", "."))
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    if "cgroup" in strike:
        Path(strike["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    rank = environ.get("RANK", "0")
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    ledger = os.open(f"{folder}/{rank}.ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _instrument(folder, ledger, strike)
    from train.__main__ import main
    from train.learn import models

    if idioms.ALL.keys() & set(words):
        models.OURS.update(idioms.ALL)
    # The fork server would have loader processes come from another one.
    multiprocessing.set_start_method("fork", force=True)
    sys.exit(main(words))


def _instrument(folder: str, ledger: int, strike: dict[str, Any]) -> None:
    import torch

    from train import assemble, journal, measure, parts

    left = {strike.get("at", ""): strike.get("count", 1)}
    home = os.getpid()  # loader processes inherit all this

    def moment(name: str) -> None:
        if name not in left or os.getpid() != home:
            return
        left[name] -= 1
        if left[name] == 0:
            Path(folder, "struck").touch()
            os.kill(home, strike["signal"])

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS and arguments and "/checkpoints/" in str(arguments[0]):
            moment("file")

    if strike.get("at") == "file":
        sys.addaudithook(on_event)

    lanes, blocks, load = parts.Parts.batches, measure.eval_batches, assemble.load

    def batches(self, step):
        mine, lane = self.runtime.lanes, 0
        for batch in lanes(self, step):
            moment("lane")
            keys = " ".join(map(str, batch.keys.tolist()))
            os.write(ledger, f"{step} {mine[lane]} {keys}\n".encode())
            yield batch
            lane = (lane + 1) % len(mine)
            step += lane == 0

    def eval_batches(*words):
        for item in blocks(*words):
            moment("eval")
            yield item

    def load_data(*words, **named):
        moment("load")
        return load(*words, **named)

    parts.Parts.batches, measure.eval_batches = batches, eval_batches
    assemble.load = load_data
    if "flip" in strike:
        when, element, bit = strike["flip"]
        keep = journal.Journal.keep

        def flip(self, report, norm):
            if self.state.step == when and not left.pop("flipped", None):
                weights = next(iter(self.parts.unwrapped.parameters())).detach().view(torch.int32)
                weights.view(-1)[element % weights.numel()] ^= torch.tensor(1 << bit).int()
                left["flipped"] = 1
            keep(self, report, norm)

        journal.Journal.keep = flip
