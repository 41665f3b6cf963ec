"""The command line's words: the verbs, their arguments, and one flag for each knob."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from host.errors import UsageError, nearest
from train import experiment, verbs
from train.config import Config, knobs
from train.knobs import table

_LISTED = 4  # of several that are unknown


@dataclass(frozen=True)
class Command:
    """What was asked for.

    Attributes:
        options: the verb's own arguments.
        knobs: those that were set, as a nested mapping.
    """

    verb: verbs.Verb
    options: argparse.Namespace
    knobs: dict[str, Any]

    def run(self) -> None:
        """Do it."""
        self.verb.main(self.options, self.knobs)


class _Flags(Config, BaseSettings):
    """Config again, for its flags only.

    A BaseSettings that is instantiated would also take its values from environment variables,
    where NAME or SEED may mean anything.
    """

    model_config = SettingsConfigDict(cli_parse_none_str="null", cli_avoid_json=True)


class Parser(argparse.ArgumentParser):
    """argparse that raises our errors, with the nearest known word."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        verb = re.match(r"argument VERB: invalid choice: '(.*)' \(choose from (.*)\)", message)
        if verb:
            near = nearest(verb[1], re.findall(r"\w+", verb[2]))
            raise UsageError(f"there is no verb {verb[1]}{near}", f"one of {verb[2]}")
        name = self.prog.rpartition(" ")[2]
        lacking = re.match(r"the following arguments are required: ([A-Z]+)$", message)
        if lacking and name != "train":
            words = f"make {_target(name)} ARGS={lacking[1]}"
            raise UsageError(f"no {lacking[1]} is named", f"name it: {words}; {_help_of(name)}")
        fix = "see `make help`" if name == "train" else _help_of(name)
        raise UsageError(message, fix)


def parse(argv: list[str]) -> Command:
    """What a command line asks for.

    Raises:
        UsageError: unknown verb or flag, or a missing value.
    """
    parser = Parser(
        prog="python -m train",
        description="Lockstep: reproducible training.",
        epilog=f"The knobs of an experiment, for `fit`:\n\n{table(knobs())}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    known = verbs.found()
    sources = {}
    for name, verb in known.items():
        said = verbs.help_line(verb)
        own = places.add_parser(name, help=said, description=said, allow_abbrev=False)
        own.add_argument("--debug", action="store_true", help="show the traceback of an error")
        verb.arguments(own)
        # To make the flags takes a moment, so it is done for the verb that is meant.
        if verb.KNOBS and argv[:1] == [name]:
            for word in argv[1:]:
                if word.split("=")[0] not in own._option_string_actions:
                    _check_group(word.split("=")[0])
            sources[name] = CliSettingsSource[Any](_Flags, root_parser=own)
    options, rest = parser.parse_known_args(argv)
    if rest:
        raise _unknown(
            rest, list(places.choices[options.verb]._option_string_actions), known[options.verb]
        )
    given = {name: _nulls(source(parsed_args=options)()) for name, source in sources.items()}
    return Command(known[options.verb], options, given.get(options.verb, {}))


def _nulls(given: Any) -> Any:
    """What was said, with `null` in the place of a list that holds nothing else."""
    if isinstance(given, dict):
        return {name: _nulls(value) for name, value in given.items()}
    return None if given == [None] else given


def _check_group(flag: str) -> None:
    """Refuse a section in the place of one of its knobs: others have `--model resnet18`."""
    inner = [name for name, _ in knobs() if f"--{name.split('.')[0]}" == flag and "." in name]
    if inner:
        listed = ", ".join(f"--{name}" for name in inner[:4])
        more = f" and {len(inner) - 4} more" if len(inner) > 4 else ""
        raise UsageError(f"{flag} is a group of knobs", f"set one of them: {listed}{more}")


def _help_of(verb: str) -> str:
    return f"`make {_target(verb)} ARGS=--help` says what it takes"


def _target(verb: str) -> str:
    return {"evaluate": "eval", "fit": "train"}.get(verb, verb)


def _unknown(words: list[str], flags: list[str], verb: verbs.Verb) -> UsageError:
    word, *others = [w for w in words if w.startswith("-")] or words[:1]
    near = experiment.meant(word, flags)
    name = verb.__name__.rpartition(".")[2]
    fix = "`make knobs` lists every knob"
    if re.fullmatch(r"[-\d.,eE\[\]]+", word):
        fix = f"a list is one word in brackets, such as '[0.9,0.99]'; {fix}"
    elif word.endswith((".yaml", ".yml")):
        fix = f"name an experiment with --config {word} (make: CONFIG=)"
    if not verb.KNOBS:
        fix = _help_of(name)
        if not word.startswith("-"):
            fix = f"name all of them in one place, without flags between; {fix}"
            if (Path(word) / "run.json").exists():
                fix = f"name a run with --run {word} (make: RUN={word}); {_help_of(name)}"
    said = [f"unknown argument {word}{near}"]
    said += [f"unknown argument {each}{experiment.meant(each, flags)}" for each in others[:_LISTED]]
    return UsageError("; ".join(said), fix)
