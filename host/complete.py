"""What could stand at the cursor after `make`, for the Tab key of bash and zsh.

    python3 host/complete.py 'make train CONFIG=conf' conf

The first argument is the line up to the cursor, the second the end of it that the shell replaces.
Prints a candidate a line: the text, a tab, and what it is, where that is known.

It reads the checkout in the working directory and runs nothing of it, since a shell asks wherever
somebody presses Tab. So it imports nothing of ours, and finds make's words in the Makefile's text.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Iterator, Tuple

Candidates = Iterator[Tuple[str, str]]

_FOLDERS = ("DATA", "CACHE", "CODE")
_FILES = ("WANDB_API_KEY_FILE", "HF_TOKEN_FILE")
_CHOICES = {
    "ENGINE": ("auto", "docker", "local"),
    "PRECISION": ("no", "fp16", "bf16"),
    "GPUS": ("all", "free"),
    "DOCTOR": ("0", "1"),
    "READ_ONLY": ("true", "false"),
}
_PLACES: dict[str, tuple[str, ...] | None] = {
    "data.root": None,
    "model.weights": (".safetensors", ".pt", ".pth"),
    "checkpoint": None,
}
_WORDS = {"what": ("batch", "workers", "speed", "lr")}
_OPTIONS = {
    "train": {"--resume": "go on with the newest unfinished run of this name"},
    "tune": {"--what=": "batch,workers,speed,lr"},
    "sweep": {
        "--over": "KNOB=VALUE,VALUE or KNOB=LOW..HIGH",
        "--trials": "draw so many",
        "--resume": "go on with RUN, or the newest sweep",
    },
    "seeds": {"--workers": "so many at once", "--resume": "go on with RUN, or the newest sweep"},
    "data": {
        "--picture=": "where the picture goes",
        "--cached": "what is kept of decoded pictures",
        "--clear": "remove what is kept",
    },
    "eval": {"--checkpoint=": "one checkpoint directory", "--data.root=": "where the data is now"},
}


def candidates(line: str) -> tuple[str, list[tuple[str, str]]]:
    """The word at the end of a command line, quotes taken off, and what could stand in its place.

    Each candidate comes with what it is, or "".
    """
    words = _split(line)
    word = words[-1]
    name, equals, value = word.partition("=")
    found = _values(name, value, words[1:-1]) if equals else _names()
    start = name + equals if equals else ""
    return word, [(start + text, about) for text, about in found if (start + text).startswith(word)]


def _split(line: str) -> list[str]:
    """The words of a line whose last quote may be open; the last word may be empty."""
    words, quote = [""], ""
    for mark in line:
        if mark in (quote or "\"'"):
            quote = "" if quote else mark
        elif mark.isspace() and not quote:
            words += [""] if words[-1] else []
        else:
            words[-1] += mark
    return words


def _names() -> Candidates:
    """Targets, and variables with their equals sign."""
    makefile = Path("Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    yield from re.findall(r"^([a-z-]+):.*?##[1-3]? *(.*)$", makefile, re.MULTILINE)
    meaning = dict(
        re.findall(r"^\t@echo [\"'] *([A-Z_]+)=\S+ +(.*?) *(?:\[.*)?[\"']", makefile, re.MULTILINE)
    )
    known = re.search(r"^known *:= (.*)$", makefile, re.MULTILINE)
    for variable in known[1].split() if known else ():
        if variable not in ("SHELL", "MAKEFLAGS"):
            yield f"{variable}=", meaning.get(variable, "")


def _values(name: str, value: str, words: list[str]) -> Candidates:
    """What a variable can be."""
    if name == "ARGS":
        yield from _arguments(value, words)
    elif name == "CONFIG":
        yield from _paths(value or "configs/", (".yaml", ".yml"))
    elif name == "RUN":
        yield from _paths(value or "runs/", None)
    elif name in _FOLDERS:
        yield from _paths(value, None)
    elif name in _FILES:
        yield from _paths(value, ("",))
    elif name == "ACCELERATE":
        yield from ((path.stem, "") for path in sorted(Path("configs/accelerate").glob("*.yaml")))
    elif name == "CUDA":
        yield "auto", ""
        yield from ((path.stem, "") for path in sorted(Path("requirements").glob("cuda*.txt")))
    else:
        yield from ((choice, "") for choice in _CHOICES.get(name, ()))


def _paths(value: str, endings: tuple[str, ...] | None) -> Candidates:
    """Folders, and files with one of these endings, that begin as typed; not what is in a run."""
    folder, slash, start = value.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except (OSError, RuntimeError):  # it may not be read, or there is no such user
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not start.startswith(".")
        # Other names would have to be quoted, as the shell and the place ask for.
        if hidden or not re.fullmatch(r"[\w.,+@%-]+", entry.name):
            continue
        path = folder + slash + entry.name
        if entry.is_dir():
            yield path + ("" if _is_run(entry) else "/"), ""
        elif endings is not None and entry.name.endswith(endings):
            yield path, ""


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "config.yaml").exists()
    except OSError:  # it may not be entered
        return False


def _arguments(value: str, words: list[str]) -> Candidates:
    """Flags and knobs, or the values of the one before; what stands before stays."""
    kept, space, last = value.rpartition(" ")
    flag, equals, typed = last.partition("=")
    before = (kept.split() or [""])[-1]
    name = re.sub("^--", "", flag if equals else before)
    start = kept + space
    knobs = (
        every_knob() if not words or {"train", "tune", "data", "sweep", "seeds"} & {*words} else {}
    )
    if name in _WORDS:
        start += flag + equals if equals else ""
        yield from ((start + word, "") for word in _WORDS[name])
        return
    if equals or name in knobs or name in _PLACES:
        start += flag + equals if equals else ""
        typed = typed if equals else last
        found = _paths(typed, _PLACES[name]) if name in _PLACES else _choices(knobs.get(name, {}))
        yield from ((start + text, "") for text, _ in found)
        return
    for target, options in _OPTIONS.items():
        if target in words:
            yield from ((start + option, about) for option, about in options.items())
    for knob, described in knobs.items():
        yield f"{start}--{knob}=", str(described.get("description", "")).splitlines()[0]


def every_knob() -> dict[str, dict[str, Any]]:
    """Every knob with its schema, under its dotted name."""
    schema = json.loads(Path("configs/schema.json").read_text(encoding="utf-8"))

    def below(properties: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, one in properties.items():
            section = one.get("$ref", "").rpartition("/")[2]
            if section:
                yield from below(schema["$defs"][section]["properties"], f"{prefix}{name}.")
            else:
                yield prefix + name, one

    return dict(below(schema["properties"], ""))


def _choices(described: dict[str, Any]) -> Candidates:
    """The values of a knob that has only some."""
    found: list[str] = []
    for one in [described, *described.get("anyOf", [])]:
        kind = one.get("type")
        found += {"boolean": ["true", "false"], "null": ["null"]}.get(kind, [])
        found += [str(choice) for choice in one.get("enum", [])]
    yield from ((text, "") for text in found if set(found) != {"null"})


def main(line: str, end: str = "") -> None:
    """Print the candidates, cut to what stands where the shell replaces."""
    try:
        word, found = candidates(line)
    except (OSError, ValueError, KeyError):
        return  # no checkout, or one of another time: the shell says nothing then
    cut = max(0, len(word) - len(end))
    for text, about in found:
        print(f"{text[cut:]}\t{about}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
