"""A checkpoint that several processes of one machine write, each its part, and one makes whole.

They tell each other by files beside the parts, for all but the main process write while they train:
a mark for each that writes, which says at last what was written; without a mark it has failed.
"""

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from host.errors import CheckpointError, LostPeers
from train.lanes.runtime import Runtime
from train.record import files, rundir

_LOOK = 0.02  # seconds between looks at what the others have written


@dataclass(frozen=True)
class Written:
    """What a process has written.

    Attributes:
        digests: of its files, by name.
        tensors: names of those in them, by what has them as its state.
    """

    digests: dict[str, str]
    tensors: dict[str, list[str]]

    def joined(self, other: "Written") -> "Written":
        """This and what another one has written."""
        tensors = {
            part: sorted({*self.tensors.get(part, []), *other.tensors.get(part, [])})
            for part in {**self.tensors, **other.tensors}
        }
        return Written(self.digests | other.digests, tensors)


@dataclass(frozen=True)
class Spread:
    """One process's part of a checkpoint in the making.

    Attributes:
        part, parts: which one of how many; the first is that of the main process.
        aside: the directory that becomes the checkpoint.
    """

    part: int
    parts: int
    aside: Path

    def written(self, what: Written) -> None:
        """Say that this process's files are written, and what they hold."""
        mark, new = self._mark(self.part), self.aside / f".{self.part}.new"
        new.write_text(json.dumps({"process": os.getpid(), "written": asdict(what)}))
        new.replace(mark)

    def failed(self) -> None:
        """Say that they are not."""
        self._mark(self.part).unlink(missing_ok=True)

    def with_others(self, mine: Written) -> Written | None:
        """What all have written, once they have, and their marks are gone.

        Args:
            mine: what this process has.

        Returns:
            None where one of them has failed, which says why itself.

        Raises:
            LostPeers: one of them is gone.
        """
        found = mine
        for part in range(1, self.parts):
            other = self._wait(part)
            if other is None:
                return None
            found = found.joined(other)
        for part in range(self.parts):
            self._mark(part).unlink(missing_ok=True)
        return found

    def settle(self) -> None:
        """Wait until no other process writes any more."""
        for part in range(1, self.parts):
            with suppress(LostPeers, OSError):
                self._wait(part)

    def _wait(self, part: int) -> Written | None:
        lives = True
        while True:
            try:
                said = json.loads(self._mark(part).read_text())
            except FileNotFoundError:
                return None
            if said["written"] is not None:
                return Written(**said["written"])
            if not lives:  # and had not written it, as was looked after it was gone
                raise LostPeers(
                    f"process {part} is gone, and its part of {self.aside.name} is not written",
                    "read above how it ended, and add --resume: the checkpoint before is whole",
                    one_rank=True,
                )
            lives = _lives(said["process"])
            time.sleep(_LOOK * lives)

    def mark(self) -> None:
        """Say that this process is about to write."""
        said = {"process": os.getpid(), "written": None}
        self._mark(self.part).write_text(json.dumps(said))

    def _mark(self, part: int) -> Path:
        return self.aside / f".{part}"


def begin(root: Path, step: int, runtime: Runtime) -> Spread | None:
    """Make ready for checkpoint `step` under `root`. All processes call this together.

    Returns:
        None where another process writes what this one holds: of several copies of a model, the
        first is written.

    Raises:
        CheckpointError: one of them cannot write there.
    """
    aside = runtime.from_main(root / f".{rundir.name_of(step)}.{os.getpid()}")
    spread: Spread | None = Spread(runtime.rank, runtime.world // runtime.copies, aside)
    if runtime.copy:
        spread = None
    with runtime.together():
        try:
            if runtime.main:
                files.make_directory(root)
                for left in rundir.leftovers(root):  # the disk may be full of them
                    shutil.rmtree(left, ignore_errors=True)
                aside.mkdir()
        except OSError as error:
            raise cannot_write(root, step, error) from error
    with runtime.together():
        try:
            if spread is not None:
                spread.mark()
        except FileNotFoundError as error:
            raise CheckpointError(
                f"process {runtime.rank} does not see {aside}, which the main process has made",
                "have all processes see the run directory: each writes its part of the weights",
            ) from error
        except OSError as error:
            raise cannot_write(root, step, error) from error
    return spread


def cannot_write(root: Path, step: int, error: OSError) -> CheckpointError:
    """Checkpoint `step` under `root` could not be written."""
    final = root / rundir.name_of(step)
    earlier = next((path.name for path in rundir.steps(root) if path != final), None)
    left = f"the last whole checkpoint is {earlier}" if earlier else "there is none before it"
    return CheckpointError(
        f"cannot write {final}: {error.strerror}; {left}",
        "make room or mend the disk, then add --resume",
    )


def _lives(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
