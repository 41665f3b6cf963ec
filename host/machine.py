"""The machine that is looked at: its files and what its programs say. Checks see nothing else.

What they see can be written down with --record and read back as a machine in tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from host import HOME, limits
from host.followed import FOLLOWED
from host.text import whole, without_passwords, without_secrets

# Kubernetes' plugins, WSL, Gentoo and driver containers put nvidia-smi there, which is not on
# everybody's PATH.
_NVIDIA = (
    "/usr/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/opt/bin",
    "/run/nvidia/driver/usr/bin",
    "/run/current-system/sw/bin",
)
NO_ANSWER = 124
_GONE = 0.5  # seconds that a program may take to be gone, once it was killed
_LEFT: list[subprocess.Popen[bytes]] = []  # those that were not


@dataclass(frozen=True)
class Answer:
    """What a program said; code 127 where there is no such program, NO_ANSWER where it took too
    long.
    """

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both streams: programs differ in where they complain."""
        return f"{self.out}\n{self.err}".strip()


class Machine:
    """This machine, or a recorded one.

    Args:
        root: where its files are; "/" but for recorded machines, whose programs PATH names.
        environ: its variables.
        home: the checkout, as a path on it.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
        home: str = str(HOME),
    ) -> None:
        self.root, self.environ, self.home = root, environ, home
        self._answers: dict[str, Answer] = {}
        self._files: dict[str, str] = {}
        self._folders: dict[str, list[str]] = {}
        self._links: dict[str, str] = {}
        self._programs: set[str] = set()
        self._silent: set[str] = set()

    def read(self, path: str) -> str | None:
        """The text of a file without the space around it; None where it cannot be read."""
        try:
            data = self._place(path).read_bytes()
        except (OSError, ValueError):  # a name with a NUL in it, of what another file said
            return None
        try:  # a compiler's log has quotes of its own, a file of Windows' a mark at its start
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        text = text.replace("\r\n", "\n")
        self._files[path] = text
        return text.strip()

    def names(self, path: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""
        try:
            found = sorted(os.listdir(self._place(path)))  # noqa: PTH208  (names are wanted)
        except (OSError, ValueError):
            return []
        self._folders[path] = found
        return found

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder; False where that cannot be seen."""
        place = self._place(path)
        try:
            if place.is_dir():
                self._folders.setdefault(path, [])
            elif place.exists():
                self._files.setdefault(path, "")
            return place.exists()
        except (OSError, ValueError):
            return False

    def real(self, path: str) -> str:
        """The path without symbolic links."""
        try:
            target = os.path.realpath(self._place(path))
        except ValueError:  # a name with a NUL in it, of what a file said
            return path
        found = "/" + os.path.relpath(target, os.path.realpath(self.root))
        if found != path:
            self._links[path] = found
        return found

    def uptime(self) -> float | None:
        """Seconds since it was started; None where that is not known."""
        found = re.match(r"[0-9]{1,12}\.[0-9]{1,9}", self.read("/proc/uptime") or "")
        return float(found.group()) if found else None

    def run(self, *words: str, seconds: float | None = None) -> Answer:
        """What a program says; asked once.

        Args:
            seconds: until it is given up; a minute for nvidia-smi, which may wake eight GPUs.
        """
        if seconds is None:
            seconds = 60 if words[0] == "nvidia-smi" else 20
        line = shlex.join(words)
        if line not in self._answers:
            if words[0] in self._silent:  # it would not answer this either
                answer = Answer(NO_ANSWER, "", f"{words[0]}: no answer")
            else:
                answer = self._started(words, seconds)
            if answer.code == NO_ANSWER and words[:2] != ("docker", "run"):
                self._silent.add(words[0])
            self._answers[line] = answer
        return self._answers[line]

    def _started(self, words: tuple[str, ...], seconds: float) -> Answer:
        return _run(self.place(words[0]), words, self.environ, seconds)

    def has(self, program: str) -> bool:
        """Whether there is such a program."""
        found = self.place(program)
        if found is not None:
            self._programs.add(program)
        return found is not None

    def place(self, program: str) -> str | None:
        """Where a program is: on PATH, or where NVIDIA's are that PATH need not name."""
        found = shutil.which(program, path=self.environ.get("PATH", ""))
        if found is None and program.startswith("nvidia-"):
            found = shutil.which(program, path=":".join(str(self._place(p)) for p in _NVIDIA))
        return found

    def free(self, path: str) -> int | None:
        """Bytes that may still be written below a folder; None where that is not known."""
        return self._df(path, 3)

    def size(self, path: str) -> int | None:
        """Bytes that a file system holds in all."""
        return self._df(path, 1)

    def files(self, path: str) -> tuple[int, int] | None:
        """Files that may still be made below a folder, and all that its file system can hold; None
        where there is no such limit.
        """
        total, left = self._row("-iP", path, 1), self._row("-iP", path, 3)
        return (left, total) if total and left is not None else None  # btrfs says 0 of 0

    def _df(self, path: str, column: int) -> int | None:
        count = self._row("-kP", path, column)
        return None if count is None else count * 1024

    def _row(self, how: str, path: str, column: int) -> int | None:
        rows = self.run("df", how, path).out.splitlines()
        words = rows[1].split() if len(rows) > 1 else []
        # The device's name may have spaces: count from the end.
        return whole(words[column - 6]) if len(words) >= 6 else None

    def record(self) -> str:
        """All that was read and said so far, as JSON."""
        answers = {
            line: {"code": a.code, "out": without_passwords(a.out), "err": without_passwords(a.err)}
            for line, a in self._answers.items()
        }
        for path in limits.sources(self.root):
            look = self.names if self._place(path).is_dir() else self.read
            look(path)
        told = {
            name: without_secrets(self.environ[name]) for name in FOLLOWED if name in self.environ
        }
        seen = {
            "home": self.home,
            "environ": told,
            "files": {path: without_passwords(text) for path, text in self._files.items()},
            "folders": self._folders,
            "links": self._links,
            "programs": sorted(self._programs),
            "commands": answers,
        }
        return json.dumps(seen, indent=1, ensure_ascii=False) + "\n"

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _run(
    program: str | None, words: tuple[str, ...], environ: Mapping[str, str], seconds: float
) -> Answer:
    if program is None:
        return Answer(127, "", f"{words[0]}: not found")
    try:
        started = subprocess.Popen(
            [program, *words[1:]],
            # What is said in the user's language cannot be recognised.
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except (OSError, ValueError) as error:  # ValueError: a variable with a NUL in it
        return Answer(126, "", f"{words[0]}: {getattr(error, 'strerror', error)}")
    try:
        out, err = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        # One that sleeps in the driver cannot be killed, and is left behind.
        try:
            started.communicate(timeout=_GONE)
        except subprocess.TimeoutExpired:
            _LEFT.append(started)
            for stream in (started.stdout, started.stderr):
                if stream is not None:
                    stream.close()
        return Answer(NO_ANSWER, "", f"{words[0]}: no answer in {seconds:g} s")
    said = (stream.decode("utf-8", "replace") for stream in (out, err))
    return Answer(started.returncode, *said)
