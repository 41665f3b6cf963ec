"""What can be asked for on the command line: a verb a file, found by its name.

A verb's module says all there is to it. Its docstring's first line is its help. It is imported to
parse a command line, so what takes long to import (torch) is imported by its `main`.
"""

import argparse
import importlib
import pkgutil
from typing import Any, Protocol, cast

from train.config import Config


class Verb(Protocol):
    """What a verb's module holds.

    Attributes:
        LAUNCHED: whether its processes are Accelerate's: it trains or measures on all of them.
        KNOBS: whether it takes an experiment's knobs as flags.
    """

    __name__: str
    __doc__: str | None
    LAUNCHED: bool
    KNOBS: bool

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its own arguments."""

    def main(self, options: argparse.Namespace, knobs: dict[str, Any]) -> None:
        """Do it; `knobs` are those that the command line sets, as a nested mapping."""


class Launched(Verb, Protocol):
    """A verb that is LAUNCHED says what it is about before torch is imported."""

    def experiment(self, options: argparse.Namespace, knobs: dict[str, Any]) -> Config:
        """The experiment that it trains or measures."""

    def lanes(self, config: Config) -> int | None:
        """What its processes have to share; None: any number of them will do."""


def found() -> dict[str, Verb]:
    """Every verb by its name."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {n: cast(Verb, importlib.import_module(f"{__name__}.{n}")) for n in names}


def positive(text: str) -> int:
    """An argument that is a number from 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def help_line(verb: Verb) -> str:
    """What a verb does, on a line."""
    return (verb.__doc__ or "").splitlines()[0]
