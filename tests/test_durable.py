"""What a checkpoint promises survives a power cut where only what was synced survives."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DIGITS

from train.record.saver import Saver

# Operations that change the names in a directory, by the place of the path in their arguments.
_NAMES = {"os.mkdir": (0,), "os.rename": (0, 1), "os.symlink": (1,), "os.link": (1,)}
_FREE = ("/tensorboard", "/.lock", "/.alive", "/.probe")
_watched: list["Disk"] = []


class Disk:
    """Which names and bytes a power cut might undo."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.names: dict[str, str] = {}  # directory: what changed in it last
        self.bytes: dict[str, str] = {}

    def seen(self, event: str, arguments: tuple) -> None:
        for place in _NAMES.get(event, ()):
            self._named(os.path.abspath(arguments[place]))
        if event == "os.rename":  # what moves keeps what is known of it
            old, new = (os.path.abspath(path) for path in arguments[:2])
            for known in (self.names, self.bytes):
                for path in [p for p in known if p == old or p.startswith(f"{old}/")]:
                    known[new + path[len(old) :]] = known.pop(path)
        if event == "open" and isinstance(arguments[0], (str, Path)):
            path, flags = os.path.abspath(arguments[0]), arguments[2]
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not os.path.exists(path):
                self._named(path)
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.bytes |= {path: path} if path.startswith(self.root) else {}

    def _named(self, path: str) -> None:
        if path.startswith(self.root) and not any(word in path for word in _FREE):
            self.names[os.path.dirname(path)] = path

    def synced(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        (self.names if os.path.isdir(path) else self.bytes).pop(path, None)

    def lost(self) -> list[str]:
        """What might be gone, but for what promises nothing."""
        paths = [p for known in (self.names, self.bytes) for p in known]
        return sorted(p for p in paths if not any(w in p for w in _FREE) and os.path.exists(p))


sys.addaudithook(
    lambda event, arguments: [disk.seen(event, arguments) for disk in _watched or ()] and None
)


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Iterator[Disk]:
    made = Disk(tmp_path)
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        made.synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    _watched.append(made)
    yield made
    _watched.clear()


def test_all_that_a_checkpoint_promises_is_synced(tmp_path, cli, disk, monkeypatch) -> None:
    """After each save, from the name of the run's directory down to the last byte."""
    after = []
    save = Saver.save

    def saved(self, *given) -> None:
        save(self, *given)
        after.append(disk.lost())

    monkeypatch.setattr(Saver, "save", saved)
    run = tmp_path / "new" / "deep" / "run"
    words = [*DIGITS, "--max_steps", 6, "--checkpoint.every", 2, "--checkpoint.keep", 1]
    words += ["--checkpoint.background", "false"]  # or what is logged meanwhile would show
    assert cli("fit", *words, "--log.every", 1, "--run", run).code == 0
    assert after == [[], [], []]
    assert disk.lost() == []


def test_the_watch_sees_what_is_not_synced(tmp_path, disk) -> None:
    """A control: without syncs all of it might be lost."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("c")
    assert disk.lost() == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    with (tmp_path / "a" / "b").open("rb+") as file:
        os.fsync(file.fileno())
    assert disk.lost() == [str(tmp_path), str(tmp_path / "a")]
