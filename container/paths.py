"""Paths of a command that its container cannot see: refused before anything is written there."""

from __future__ import annotations

import os
from pathlib import Path

from host import HOME
from host.errors import UsageError

_VERBS = HOME / "train" / "verbs"
# Verbs with words of another kind behind them.
_OTHERS = ("knobs", "runs")
# Flags of `predict` that take no value.
_SWITCHES = ("--csv", "--debug")
# What a container sees of the checkout: flags whose value is a path, and the folder it must be in.
_FOLDERS = {
    "--config": ("configs", "runs"),
    "--verify": ("configs", "runs"),
    "--like": ("runs",),
    "--run": ("runs",),
    "--resume": ("runs",),
    "--data.root": ("data",),
    "--model.weights": ("runs", "data"),
    "--picture": ("runs",),
    "--show": ("runs",),
    "--to": ("runs",),
    "--html": ("runs",),
    "--pictures": ("data", "runs"),
}


def check(words: list[str]) -> None:
    """Refuse paths that a container cannot see: a run written there would be lost with it."""
    # What stands behind a verb without a flag is a run; behind predict it is pictures.
    verb = words and words[0] not in _OTHERS and (_VERBS / f"{words[0]}.py").exists()
    if words[:1] == ["predict"]:
        _check_pictures(words[1:])
    elif verb and len(words) > 1 and not words[1].startswith("-"):
        words = ["--run", *words[1:]]
    pairs = zip(words, [*words[1:], "--"])
    for flag, value in [*pairs, *(word.split("=", 1) for word in words if "=" in word)]:
        folders = _FOLDERS.get(flag)
        if folders is None or value.startswith("--"):
            continue
        if flag == "--model.weights" and not value.endswith(".safetensors"):
            continue  # it is no file
        here = os.path.relpath(value, HOME)
        if Path(value).is_absolute() and Path(here).parts[:1] in [(each,) for each in folders]:
            raise UsageError(
                f"{flag} {value} is named from the root, where a container has other folders",
                f"say {flag} {here}",
            )
        if Path(os.path.normpath(value)).parts[:1] not in [(folder,) for folder in folders]:
            way = f"a path below {folders[0]}/"
            if folders == ("data",):
                way = "DATA=DIR, which stands in data/ then, and --data.root data"
            raise UsageError(
                f"{flag} {value} is outside what the container sees",
                f"use {way}, or train without a container: ENGINE=local",
            )


def _check_pictures(words: list[str]) -> None:
    before = ["", *words]
    for word, flag in zip(words, before):
        if word.startswith("-") or (flag.startswith("--") and flag not in _SWITCHES):
            continue
        here = Path(os.path.relpath(word, HOME))
        if Path(word).is_absolute() and here.parts[:1] in [("data",), ("runs",)]:
            raise UsageError(
                f"{word} is named from the root, where a container has other folders", f"say {here}"
            )
        if Path(os.path.normpath(word)).parts[:1] not in [("data",), ("runs",)]:
            raise UsageError(
                f"{word} is outside what the container sees",
                "use DATA=DIR, which stands in data/ then, and name what lies in data/, or predict"
                " without a container: ENGINE=local",
            )
