"""name what is on pictures: a line for each file"""

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host import INSIDE, dotted
from host.errors import DataError, UsageError
from host.text import json_line, printable
from train import trained
from train.config import Config

if TYPE_CHECKING:  # what imports torch is imported when it is run
    from train.predictions.asked import Row
    from train.trained import Trained

LAUNCHED = True
KNOBS = False

_DRAWN = 48
_DRAWS = (".png", ".jpg", ".jpeg", ".webp")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights, which pictures, and what is told of them."""
    trained.arguments(parser)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="pictures, folders, patterns such as 'new/*.jpg', or - for a list of files on the"
        " standard input",
    )
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="classes that are told of each (default: 5)"
    )
    parser.add_argument("--csv", action="store_true", help="a table instead of lines of JSON")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="draw the first pictures with their classes"
    )


def experiment(options: argparse.Namespace, _knobs: dict[str, Any]) -> Config:
    """What the weights were trained with, as their checkpoint has it. `main` verifies that.

    Raises:
        UsageError: there is no such run.
    """
    return trained.experiment(trained.chosen(options))


def lanes(_config: Config) -> None:
    """Any number of processes can predict."""


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Predict, and print a line for each file; go on where one cannot be used.

    Raises:
        DataError: some of the files cannot be used; the others are predicted.
        LockstepError: what went wrong, for the user to mend.
    """
    if options.top < 1:
        raise UsageError(f"--top {options.top}", "ask for one class or more")
    if options.show and options.show.suffix.lower() not in _DRAWS:
        raise UsageError(f"--show {options.show}", f"name a file that ends in {_DRAWS[0]}")
    with trained.opened(trained.chosen(options)) as it:
        from train.data import loose, unusable
        from train.predictions import asked

        runtime, source = it.runtime, it.config.data.source
        if dotted.is_path(source):
            trained.warn(f"pictures are read as files, where {source} may change what is in them")
        with runtime.together():
            listed = loose.listed(_names(options.files) if runtime.main else [])
        listed = runtime.from_main(listed)
        if runtime.main and not (options.run or options.checkpoint):
            print(printable(f"asking {it.path}, of the newest run"), file=sys.stderr)
        if listed.left_out:
            trained.warn(f"left out, as hidden or no pictures: {listed.left_out:,}")
        told = _Told(options, min(options.top, len(it.facts.classes)), writes=runtime.main)
        told.add([{"file": name, "error": why} for name, why in listed.bad.items()])
        for rows in asked.predicted(it, listed.names, options.top):
            told.add(rows)
            if runtime.any(told.unread):
                break
        if options.show and runtime.main and told.first:
            _draw(it, told.first, options.show)
    if told.dark:
        trained.warn(
            f"files with more than 8 bits that are nearly black: {told.dark:,}; where fewer bits"
            " are used than there are, make them brighter first"
        )
    if told.bad:
        rest = len(listed.names) + len(listed.bad) - told.count  # who read it left
        raise DataError(
            f"{told.failed:,} of {told.count:,} file{'s' * (told.count > 1)} cannot be used:"
            f" {unusable.by_reason(told.bad)}",
            (
                "name a file or folder that is there"
                if all(os.strerror(errno.ENOENT) in why for why in told.bad.values())
                else "mend or remove them"
                + ", or ask a run that takes them (RUN=)" * any("×" in w for w in told.bad.values())
            )
            + "; the others are predicted" * (told.failed < told.count)
            + f"; {rest:,} more were not looked at" * (rest > 0)
            + "; a container sees data/ and runs/ alone, by these names" * INSIDE.exists(),
        )


class _Told:
    """What is told of the files, and what is kept of it.

    Attributes:
        bad: why files cannot be used, by name.
        count: of files that were looked at.
        failed: how many cannot be used, of which some may have the same name.
        dark: how many have more than eight bits and are nearly black.
        first: the first of those that can be drawn.
        unread: whether nobody reads any more what is written.
    """

    def __init__(self, options: argparse.Namespace, top: int, *, writes: bool) -> None:
        self.bad: dict[str, str] = {}
        self.count = self.failed = self.dark = 0
        self.first: list[Row] = []
        self.unread = False
        self._table, self._top, self._writes = options.csv, top, writes
        if self._table:
            more = [f"{what}_{n}" for n in range(2, top + 1) for what in ("class", "probability")]
            self._write(self._cells(["file", "class", "probability", *more, "error", "doubt"]))

    def add(self, rows: "list[Row]") -> None:
        """Of a few more files."""
        self.count += len(rows)
        for row in rows:
            if "error" in row:
                self.bad[row["file"]] = row["error"]
                self.failed += 1
            elif len(self.first) < _DRAWN:
                self.first.append(row)
            self.dark += "doubt" in row
        self._write("".join(self._line(row) for row in rows))

    def _line(self, row: "Row") -> str:
        if not self._table:
            return f"{json_line(row)}\n"
        cells = [each[what] for each in row.get("top", []) for what in ("class", "probability")]
        cells += [""] * (2 * self._top - len(cells))
        return self._cells([row["file"], *cells, row.get("error", ""), row.get("doubt", "")])

    def _cells(self, values: list[object]) -> str:
        from train.predictions import table

        return table.line(values)

    def _write(self, text: str) -> None:
        if not self._writes or self.unread:
            return
        try:
            # In one piece: Docker brings both streams into one. Names are bytes to the system.
            sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # such as `| head`
            self.unread = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _names(said: list[str]) -> list[tuple[str, bool]]:
    """Files, folders and patterns, with what the standard input lists in the place of -; of each,
    whether it may be a pattern: what is listed is a name.
    """
    given = []
    for word in said:
        if word == "-":
            text = os.fsdecode(sys.stdin.buffer.read())
            lines = text.split("\0" if "\0" in text else "\n")
            given += [(line, False) for line in lines if line]
        else:
            given.append((word, True))
    if not given:
        raise UsageError("the standard input lists no file", "name pictures, one on a line")
    return given


def _draw(it: "Trained", rows: "list[Row]", path: Path) -> None:
    from train.predictions import asked

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        asked.draw(it, rows).save(path)
    except OSError as error:
        raise DataError(f"cannot draw {path}: {error}", "name another file: --show") from error
    print(printable(f"the first pictures, as the model got them: {path}"), file=sys.stderr)
