"""The command line's words: verbs, their options, and one flag for each knob."""

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn

from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from train.config import Config, knobs
from train.errors import UsageError, nearest

VERBS = {
    "fit": "train an experiment; the script that every hardware config launches",
    "evaluate": "measure a run's final weights, or one checkpoint, on the validation set",
    "reproduce": "train a finished run again from its record, and compare the bits",
    "tune": "measure what an experiment can do here: batch, loaders, precision, learning rate",
    "doctor": "what torch sees of this machine; `make doctor` looks at the host too",
}


_MEASURES = ("batch", "workers", "speed", "lr")


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
        raise UsageError(message, f"see `{self.prog} --help`")


def _unknown(words: list[str], flags: list[str]) -> UsageError:
    word = next((w for w in words if w.startswith("-")), words[0])
    near = nearest(word.split("=")[0], flags)
    return UsageError(f"unknown argument {word}{near}", "see `python -m train fit --help`")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def _measures(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    unknown = [word for word in words if word not in _MEASURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(_MEASURES)}")
    return words


def _experiment(parser: Parser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the experiment, a YAML file")


def _common(parser: Parser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def parse(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Options of the verb, and the knobs that were set, as a nested mapping.

    Raises:
        UsageError: unknown verb or flag, or a missing value.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m train", description="Lockstep: reproducible training.",
        allow_abbrev=False, formatter_class=formatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    fit = verbs.add_parser("fit", help=VERBS["fit"], description=VERBS["fit"], allow_abbrev=False)
    _common(fit)
    _experiment(fit)
    fit.add_argument(
        "--run", type=Path, metavar="DIR",
        help="the run directory (default: runs/<name>/<time>-<signature>)",
    )  # fmt: skip
    fit.add_argument(
        "--resume", nargs="?", const=True, metavar="DIR",
        help="continue DIR, or --run's directory, or the newest unfinished run of this name; "
        "with --run, start where there is nothing to continue",
    )  # fmt: skip
    measure = verbs.add_parser(
        "tune", help=VERBS["tune"], description=VERBS["tune"], allow_abbrev=False
    )
    _common(measure)
    _experiment(measure)
    measure.add_argument(
        "--what", default=",".join(_MEASURES), type=_measures, metavar="LIST",
        help=f"which of {', '.join(_MEASURES)} (default: all)",
    )  # fmt: skip
    # Both take knobs; to make their flags takes a moment, so it is done for the verb that is meant.
    knobbed = measure if argv[:1] == ["tune"] else fit
    source: CliSettingsSource[Any] = CliSettingsSource(_Flags, root_parser=knobbed)

    evaluate = verbs.add_parser(
        "evaluate", help=VERBS["evaluate"], description=VERBS["evaluate"], allow_abbrev=False
    )
    _common(evaluate)
    what = evaluate.add_mutually_exclusive_group()
    what.add_argument(
        "--run", type=Path, metavar="DIR",
        help="a run directory: its newest weights (default: the newest run)",
    )  # fmt: skip
    what.add_argument("--checkpoint", type=Path, metavar="DIR", help="one checkpoint directory")
    evaluate.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")

    again = verbs.add_parser(
        "reproduce", help=VERBS["reproduce"], description=VERBS["reproduce"], allow_abbrev=False
    )
    _common(again)
    again.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run")
    where = again.add_mutually_exclusive_group()
    for device in ("cpus", "gpus"):
        where.add_argument(
            f"--{device}", type=_positive, metavar="N",
            help=f"train on N {device[:-1].upper()} processes (default: as recorded)",
        )  # fmt: skip
    again.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")
    again.add_argument(
        "--anyway", action="store_true", help="train even where code or data changed since"
    )

    look = verbs.add_parser(
        "doctor", help=VERBS["doctor"], description=VERBS["doctor"], allow_abbrev=False
    )
    _common(look)
    look.add_argument("--json", action="store_true", help="print a list of mappings")
    look.add_argument(
        "--verify", type=Path, metavar="CONFIG", help="also: will this experiment fit this machine"
    )

    parser.epilog = f"The knobs of an experiment, for `fit`:\n\n{_table()}"
    options, rest = parser.parse_known_args(argv)
    if rest:
        raise _unknown(rest, list(verbs.choices[options.verb]._option_string_actions))
    given = source(parsed_args=options)() if options.verb in ("fit", "tune") else {}
    return options, given


def _table() -> str:
    rows = [(f"--{name}", field.description, json.dumps(field.default)) for name, field in knobs()]
    width = max(len(flag) for flag, *_ in rows)
    return "\n".join(f"  {flag:<{width}}  {text} [{default}]" for flag, text, default in rows)
