"""list every knob: what it does, and its default, whatever CONFIG says"""

import argparse
from typing import Any

from host.errors import UsageError, nearest
from train.config import knobs
from train.knobs import table

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which of them."""
    parser.add_argument("word", nargs="*", help="only knobs with one of these words in their line")


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Print them.

    Raises:
        UsageError: none has such a word.
    """
    found = [
        (name, field)
        for name, field in knobs()
        if not options.word
        or any(word.lower() in f"{name} {field.description}".lower() for word in options.word)
    ]
    if not found:
        near = nearest(options.word[0], [name for name, _ in knobs()])
        raise UsageError(f"no knob has {' or '.join(options.word)}{near}", "`make knobs` lists all")
    print(table(found))
