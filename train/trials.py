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

from train import launch, limits, outcome, parent
from train.config import Config
from train.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    HostError,
    TrainError,
    UsageError,
)

Note = dict[str, Any]

_KINDS = {
    kind.code: kind for kind in (UsageError, DataError, CheckpointError, DivergedError, HostError)
}


class NoMemory(HostError):
    """A trial ended for lack of memory: by an error, or killed by the kernel."""


@dataclass
class Trials:
    """Runs trials one after another.

    Attributes:
        folder: where their tasks, notes and logs are.
        visible: GPUs that can be used.
        started: how many were started.
    """

    folder: Path
    visible: int
    started: int = field(default=0)

    def run(
        self, config: Config, kind: str, variables: dict[str, str] | None = None, **task: Any
    ) -> list[Note]:
        """The notes of a trial; each is printed as it comes.

        Args:
            variables: as PRECISION, over those of the environment.

        Raises:
            NoMemory: it ended for lack of memory; what it noted before is in `notes`.
            TrainError: it ended otherwise.
        """
        self.started += 1
        name = f"{self.started:02d}-{kind}"
        place = self.folder / "trials"
        place.mkdir(exist_ok=True)
        paths = {end: place / f"{name}.{end}" for end in ("json", "notes", "log", "end")}
        about = {
            "kind": kind,
            "notes": str(paths["notes"]),
            "config": config.model_dump(mode="json"),
        }
        paths["json"].write_text(json.dumps({**about, **task}))
        paths["notes"].write_text("")
        environ = {**os.environ, **(variables or {})}
        words = launch.command(
            environ, [str(paths["json"])], self.visible, config.lanes, module="train.trial"
        )
        before = limits.oom_kills()
        with paths["log"].open("wb") as log:
            code = _watch(
                words, {**environ, outcome.VARIABLE: str(paths["end"])}, log, paths["notes"]
            )
        said = outcome.read(paths["end"])
        notes = read(paths["notes"])
        if code == 0:
            return notes
        error = _error(code, said, paths["log"], _killed(before, paths["log"]))
        error.notes = notes  # type: ignore[attr-defined]
        raise error


def read(path: Path) -> list[Note]:
    """The notes so far; a last line that was cut short is none."""
    found = []
    for row in path.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(row))
    return found


def _watch(words: list[str], environ: dict[str, str], log: Any, notes: Path) -> int:
    """Run a trial to its end, showing its notes."""
    environ = {"OMP_NUM_THREADS": "1", **environ}
    shown = 0
    with subprocess.Popen(
        words, env=environ, stdout=log, stderr=log, start_new_session=True,
        preexec_fn=partial(parent.signal_on_death, signal.SIGTERM),  # noqa: PLW1509  (a single system call)
    ) as child:  # fmt: skip
        try:
            while True:
                code = child.poll()
                for note in read(notes)[shown:]:
                    shown += 1
                    show(note)
                if code is not None:
                    return code
                time.sleep(0.2)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise


def show(note: Note) -> None:
    """A line for people, where the note says something by itself."""
    if "fits" in note:
        size = f"  micro-batch {note['size']:>5}"
        if note["fits"]:
            memory = f"{note['memory'] / 2**30:6.2f} of {note['memory_total'] / 2**30:.1f} GiB"
            print(f"{size}  {note['samples_per_second']:9,.1f} samples/s  {memory}", flush=True)
        else:
            print(f"{size}  does not fit", flush=True)
    elif "workers" in note:
        print(
            f"  workers {note['workers']:>3}  prefetch {note['prefetch']:>2}"
            f"  {note['samples_per_second']:9,.1f} samples/s"
            f"  {100 * note['data_share']:5.1f} % of step time waits for data",
            flush=True,
        )


def _killed(before: int | None, log: Path) -> bool:
    """Whether the kernel killed a process of the trial for memory."""
    after = limits.oom_kills()
    if before is not None and after is not None and limits.memory() is not None:
        return after > before
    # No cgroup counts them here: a SIGKILL that nobody of ours sent.
    text = log.read_text(errors="replace")
    return "SIGKILL" in text or "Signal 9" in text


def _error(code: int, said: Note, log: Path, killed: bool) -> TrainError:
    if "code" in said and not said.get("bystander"):
        problem, _, fix = str(said["error"]).partition(" → ")
        if "ran out of" in problem:
            return NoMemory(problem, fix)
        return _KINDS.get(int(said["code"]), HostError)(problem, fix or f"see {log}")
    if killed:
        return NoMemory("the kernel killed a trial for lack of memory", "lower what it holds")
    if code != 0 and said.get("bystander"):
        return NoMemory("a process of the trial ended for lack of memory", f"see {log}")
    return HostError(f"a trial ended with code {code}", f"see {log}")
