"""Launches what `tune` measures, and finds out how it ended: done, out of memory, or an error.

A try that takes too much memory may be killed by the kernel. So tries run in processes of their
own, under the same launcher as a training; this process holds no tensor, and outlives them.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from host import limits, plan
from host.errors import HostError, LockstepError, LostPeers, OutOfMemory
from train.config import Config
from train.numerics import variables
from train.process import outcome, parent, supervisor

Row = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a trial ended: what it wrote, and why it did not come to its end, where it did not."""

    rows: list[Row]
    error: LockstepError | None


@dataclass
class Trials:
    """Runs trials one after another.

    Attributes:
        folder: where their tasks, rows and logs are.
        visible: GPUs that CUDA sees.
        started: how many were started.
    """

    folder: Path
    visible: int
    started: int = field(default=0)

    def plan(self, config: Config, asked: dict[str, str] | None = None) -> plan.Plan:
        """Where a trial runs; `asked` (such as PRECISION) go over the environment's."""
        environ, portable = {**os.environ, **(asked or {})}, config.portable
        level = config.reproducibility
        return plan.make(environ, self.visible, config.lanes, level=level, portable=portable)

    def run(
        self, config: Config, kind: str, asked: dict[str, str] | None = None, **task: Any
    ) -> list[Row]:
        """The rows of a trial; each is printed as it comes.

        Args:
            asked: variables such as PRECISION, over those of the environment.

        Raises:
            LockstepError: it did not come to its end.
        """
        ended = self.attempt(config, kind, asked, **task)
        if ended.error is not None:
            raise ended.error
        return ended.rows

    def attempt(
        self, config: Config, kind: str, asked: dict[str, str] | None = None, **task: Any
    ) -> Ended:
        """As `run`, for whom a trial that did not come to its end is an answer as well."""
        self.started += 1
        name = f"{self.started:02d}-{kind}"
        place = self.folder / "trials"
        place.mkdir(exist_ok=True)
        file, rows, log, said = (place / f"{name}.{end}" for end in ("json", "rows", "log", "end"))
        about = {"kind": kind, "rows": str(rows), "config": config.model_dump(mode="json")}
        file.write_text(json.dumps({**about, **task}))
        rows.write_text("")
        planned = self.plan(config, asked)
        words = supervisor.command(planned, "train.tuning.trial", [str(file)])
        before = limits.oom_kills()
        with log.open("wb") as out:
            code = _watch(words, {**os.environ, outcome.VARIABLE: str(said)}, out, rows)
        if code == 0:
            return Ended(read(rows), None)
        killed = _killed(code, before, log)
        return Ended(read(rows), _error(code, outcome.read(said).error, log, killed))


def read(path: Path) -> list[Row]:
    """The rows so far; a last line that was cut short is none."""
    found = []
    for row in path.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(row))
    return found


def _watch(words: list[str], environ: dict[str, str], log: Any, rows: Path) -> int:
    """Run a trial to its end, showing its rows."""
    environ = {"OMP_NUM_THREADS": "1", **variables.STARTED, **environ}
    shown = 0
    die = partial(parent.signal_on_death, signal.SIGTERM)  # a single system call
    with subprocess.Popen(
        words,
        env=environ,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=die,  # noqa: PLW1509  (a single system call)
    ) as child:
        try:
            while True:
                code = child.poll()
                for row in read(rows)[shown:]:
                    shown += 1
                    show(row)
                if code is not None:
                    return code
                time.sleep(0.2)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise


def show(row: Row) -> None:
    """A line for people, where the row says something by itself."""
    if "fits" in row:
        size = f"  micro-batch {row['size']:>5}"
        if row["fits"]:
            memory = f"{row['memory'] / 2**30:6.2f} of {row['memory_total'] / 2**30:.1f} GiB"
            print(f"{size}  {row['samples_per_second']:9,.1f} samples/s  {memory}")
        else:
            print(f"{size}  does not fit")
    elif "workers" in row:
        print(
            f"  workers {row['workers']:>3}  prefetch {row['prefetch']:>2}"
            f"  {row['samples_per_second']:9,.1f} samples/s"
            f"  {100 * row['data_share']:5.1f} % of step time waits for data",
        )


def _killed(code: int, before: int | None, log: Path) -> bool:
    """Whether the kernel killed a process of the trial for memory."""
    after = limits.oom_kills()
    if before is not None and after is not None and limits.memory() is not None:
        return after > before
    # No cgroup counts them here: a SIGKILL that nobody of ours sent.
    text = log.read_text(errors="replace")
    return code == -signal.SIGKILL or "SIGKILL" in text or "Signal 9" in text


def _error(code: int, said: LockstepError | None, log: Path, killed: bool) -> LockstepError:
    """Why a trial ended."""
    if said is not None and not isinstance(said, LostPeers):
        return said
    if killed or said is not None:  # who is lost left nothing behind but those who miss it
        return OutOfMemory("a trial was killed for lack of memory", "lower what it holds")
    return HostError(f"a trial ended with code {code}", f"see {log}")
