"""Trainings on the machines of a network: started, looked at, and brought to harm."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import DIGITS, ROOT
from nodes.net import FIRST, POSSIBLE, Net, Node, network

needs_network = pytest.mark.skipif(not POSSIBLE, reason="needs root and iproute2")
PYTHON = ROOT / ".venv" / "bin" / "python"
# Seconds: long enough for a start on a busy machine, short enough to wait for.
WAITS = {"NODE_WAIT": "60", "NODE_SILENCE": "16", "OMP_WAIT_POLICY": "PASSIVE", "CPUS": "1"}


@dataclass
class Training:
    """One training on some machines.

    Attributes:
        least: as many machines are enough; None: all of them.
        words: of the trainer, beyond those that name the experiment and the run.
        own_disks: whether each machine has a runs folder of its own.
    """

    net: Net
    folder: Path
    least: int | None = None
    words: tuple[Any, ...] = ()
    own_disks: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        """The folder of runs as the machines see it."""
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        """The run directory as this process sees it: node 0's."""
        return self.folder / ("disk0" if self.own_disks else "runs") / "run"

    def start(self, number: int, *words: Any, cwd: Path = ROOT, **environ: str) -> Node:
        """Start one machine's part."""
        self.runs.mkdir(exist_ok=True)
        count = f"{self.least}:{self.net.count}" if self.least else str(self.net.count)
        told = {"NODES": count, "NODE_RANK": str(number), "MASTER_ADDR": FIRST}
        line = [PYTHON, "-m", "train.launch", "fit", *DIGITS, "--run", self.runs / "run"]
        line += ["--resume", "--log.report", "false", *self.words, *words]
        disk = self.runs if self.own_disks else None
        return self.net.start(
            number, self.folder, line, {**told, **WAITS, **self.environ, **environ}, cwd, disk
        )

    def start_all(self, *words: Any) -> None:
        """Start all of them."""
        for number in range(self.net.count):
            self.start(number, *words)

    def codes(self, limit: float = 200) -> list[int | None]:
        """How they ended."""
        deadline = time.monotonic() + limit
        return [
            self.net.nodes[number].code(max(0.1, deadline - time.monotonic()))
            for number in range(self.net.count)
        ]

    def errors(self) -> list[str]:
        """The last line of error of each."""
        return [self.net.nodes[number].error() for number in range(self.net.count)]

    def said(self) -> str:
        """All that they said."""
        return "\n".join(f"--- {n}\n{node.said()}" for n, node in self.net.nodes.items())

    def step(self) -> int:
        """The last step that was logged."""
        with suppress(OSError, IndexError, ValueError):
            lines = (self.run / "metrics.jsonl").read_text().splitlines()
            return int(json.loads(lines[-1])["step"])
        return 0

    def reaches(self, step: int, limit: float = 120) -> bool:
        """Wait for a step; False where the training has ended before."""
        deadline = time.monotonic() + limit
        while self.step() < step:
            if self.net.nodes[0].process.poll() is not None:
                return False
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        return True

    def weights(self) -> str:
        """The result's hash."""
        result: dict[str, str] = json.loads((self.run / "result.json").read_text())
        return result["weights_sha256"]


@contextmanager
def training(count: int, folder: Path, *, delay: float = 0.0, **how: Any) -> Iterator[Training]:
    """A training on so many machines, not started yet; `delay` as `network` has it."""
    with network(count, delay) as net:
        yield Training(net, folder, **how)


def lose(node: Node) -> None:
    """Switch a machine off: all of its processes at once."""
    node.signal(signal.SIGKILL)
    node.process.wait(20)


def trainer(node: Node) -> psutil.Process:
    """A trainer of a machine."""
    return next(p for p in node.part("-m train fit") if "train.nodes" not in " ".join(p.cmdline()))


def shifted_clock(folder: Path, seconds: int = 3600) -> Path:
    """A library that has the time of day ahead, an hour or as told, for LD_PRELOAD."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *t) {\n"
        '  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");\n'
        "  int code = real(id, t);\n"
        f"  if (id == CLOCK_REALTIME) t->tv_sec += {seconds};\n  return code;\n}}\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
