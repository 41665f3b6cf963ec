"""Starts real trainers by the dozen: each a process of its own, forked from one that has torch.

A fork server has imported everything once, so that a start takes one second instead of six. What
runs in the fork is the trainer's own `main`, with the environment that a launcher would set.
"""

import itertools
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import torch
from conftest import Outcome, without_report
from fault import trainer

from host.errors import CheckpointError
from train.lanes import order
from train.record import checkpoint, rundir, trace

# Below those that connections are given; workers of one session have their own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(range(20_000 + 700 * _WORKER, 20_000 + 700 * (_WORKER + 1)))
_FORK = multiprocessing.get_context("forkserver")
# Not train.__main__, which looks at RANK when it is imported.
_FORK.set_forkserver_preload(["fault.trainer", "train.run", "torch._dynamo", "tensorboard.summary"])


@dataclass
class Attempt:
    """One start of a run: its processes, and the folder with their output and ledgers."""

    ranks: list[BaseProcess]
    folder: Path

    def wait(self, seconds: float) -> list[int | None]:
        """The processes' exit codes, once all are gone; None for one that stays too long."""
        deadline = time.monotonic() + seconds
        for rank in self.ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        return [rank.exitcode for rank in self.ranks]

    def struck(self) -> None:
        """Wait for the moment that a strike was set for."""
        deadline = time.monotonic() + 60
        while not (self.folder / "struck").exists():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def end(self) -> None:
        """Make sure that nothing is left."""
        for rank in self.ranks:
            rank.kill()
            rank.join()

    def alive(self) -> bool:
        """Whether all processes live."""
        return all(rank.is_alive() for rank in self.ranks)

    def output(self) -> str:
        """What the processes printed: what they had to say, and then what was wrong."""
        return self.said("out") + self.said("err")

    def said(self, stream: str) -> str:
        """What they printed to `out` or to `err`."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"*.{stream}")))

    def loaders(self) -> list[psutil.Process]:
        """The loader processes that live."""
        found = []
        for rank in self.ranks:
            try:
                found += psutil.Process(rank.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return found


def start(
    folder: Path,
    world: int,
    words: list[Any],
    strikes: dict[int, dict[str, Any]] | None = None,
    variables: dict[int, dict[str, str]] | None = None,
) -> Attempt:
    """Start `python -m train …` on `world` processes.

    Args:
        folder: for this attempt's output and ledgers.
        strikes: by rank, as `trainer.run` takes them.
        variables: by rank, over those that a launcher would set.
    """
    folder.mkdir(parents=True)
    ranks = []
    port = str(free_port())
    for rank in range(world):
        environ = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        if world > 1:
            environ |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
        environ |= (variables or {}).get(rank, {})
        told = [str(word) for word in without_report(words)]
        given = (told, environ, str(folder), (strikes or {}).get(rank, {}))
        ranks.append(_FORK.Process(target=trainer.run, args=given))
    for process in ranks:
        process.start()
    return Attempt(ranks, folder)


def processes(world: int, *words: Any, where: Path | None = None, seconds: float = 240) -> Outcome:
    """`python -m train …` on `world` processes, to its end, in the folder `where`."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"WORK": str(where)} if where else {}
        attempt = start(
            Path(folder, "log"), world, list(words), variables=dict.fromkeys(range(world), place)
        )
        try:
            codes = attempt.wait(seconds)
        finally:
            attempt.end()
        assert len(set(codes)) == 1, attempt.output()
        return Outcome(codes[0], attempt.said("out"), attempt.said("err"))


def free_port() -> int:
    """A port that nobody listens on, and that no connection is given by the system meanwhile."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


# What Accelerate's launcher says for configs/accelerate/fsdp.yaml.
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
}

# Two epochs of 1,436 samples: 45 steps, the last one short.
WORDS = [
    "fit", "--config", "configs/digits.yaml", "--batch_size", 64, "--lanes", 8, "--epochs", 2,
    "--checkpoint.every", 5, "--eval.every", 12, "--log.every", 1,
]  # fmt: skip
SIZE = 1436


def finish(home: Path, words: list[Any], world: int = 1, seconds: float = 240) -> Path:
    """Run to the end without a fault, and return the run directory."""
    attempt = start(home / "log", world, [*words, "--run", home / "run", "--resume"])
    assert attempt.wait(seconds) == [0] * world, attempt.output()
    return home / "run"


def whole_checkpoint(run: Path) -> int | None:
    """The step of the newest checkpoint that can be loaded; None where none was written yet.

    Raises:
        AssertionError: some were written, and none can be loaded.
    """
    paths = rundir.steps(rundir.checkpoints(run))
    for path in paths:
        with suppress(CheckpointError):
            return int(checkpoint.read(path).state["step"])
    assert not paths
    return None


def consumed(attempts: list[Path]) -> Counter[int]:
    """How often each sample's key counts for the weights at the end, after these attempts in order.

    What an attempt did at a step counts unless a later attempt did that step again.
    """
    lanes: dict[int, tuple[int, dict[int, list[int]]]] = {}
    for number, folder in enumerate(attempts):
        for path in folder.glob("*.ledger"):
            for line in path.read_text().splitlines():
                step, lane, *keys = map(int, line.split())
                if lanes.get(step, (-1,))[0] != number:
                    lanes[step] = (number, {})
                assert lane not in lanes[step][1], f"{path}: lane {lane} of step {step} ran twice"
                lanes[step][1][lane] = keys
    return Counter(key for _, held in lanes.values() for keys in held.values() for key in keys)


def expected(seed: int, size: int, total: int) -> Counter[int]:
    """Each sample of each epoch once: the keys of `total` samples, whole epochs of `size`."""
    assert total % size == 0
    every = torch.arange(size)
    return Counter(
        key
        for epoch in range(total // size)
        for key in order.keys(order.key(seed, epoch, 1), every).tolist()
    )


def assert_same_run(run: Path, reference: Path) -> None:
    """Both finished with the same bits, and wrote the same things down, each once."""
    one, other = (json.loads((path / "result.json").read_text()) for path in (run, reference))
    for name in ("status", "steps", "samples", "weights_sha256", "ema_sha256", "metrics", "best"):
        assert one.get(name) == other.get(name), name
    assert trace.read(run) == trace.read(reference)
    assert written(run) == written(reference)


def written(run: Path) -> list[tuple[Any, ...]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] not in ("health", "shares", "warning")]
    names = ("kind", "step", "epoch", "samples", "loss", "lr", "grad_norm", "top1", "top5")
    return [tuple(line.get(name) for name in names) for line in lines]
