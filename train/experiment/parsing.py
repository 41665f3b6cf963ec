"""From a mapping to an experiment: overridden, checked, and wrong knobs named."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from host.errors import UsageError
from host.text import short
from train.config import Config, knobs
from train.experiment.aliases import meant
from train.experiment.comparing import changed, value
from train.experiment.reading import read_yaml
from train.knobs import default, idle_with

_PIXELS = "pixels run from 0 to 1: divide means and deviations of 0 to 255 by 255"
_UNITS = {
    "data.mean": _PIXELS,
    "data.std": _PIXELS,
    "data.size": "give one number, the pixels of the shorter side, such as 32",
}
"""What a value of a knob is, where its type does not tell."""


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Defaults < file < overrides (nested mappings), checked.

    Raises:
        UsageError: naming the first knob that is wrong or does nothing, and where it was set.
    """
    return loaded(read_yaml(path) if path else {}, str(path or "defaults"), overrides or {})


def loaded(given: Mapping[str, Any], origin: str, over: Mapping[str, Any]) -> Config:
    """As `load`, with what a file says; `origin` names it.

    Raises:
        UsageError: as `load`.
    """
    config = parse(_merge(given, over), origin, over)
    # A file may say both, as a run's own does: it is the default.
    if _stated(over, "optim.nesterov") and config.optim.nesterov and not config.optim.momentum:
        raise UsageError(
            "the command line: optim.nesterov does nothing with optim.momentum: 0",
            "take one of the two away",
        )
    dropped: set[str] = set()  # what hangs on one that was taken away goes with it
    for name, field in knobs():
        switch, values = idle_with(field) or ("", [])
        if switch and value(config, switch) in values:
            before = value(config, name)
            if switch in dropped and not _stated(over, name):
                config = changed(config, name, field.default)
            else:
                config = _without(config, (name, field.default), switch, given, (origin, over))
            if value(config, name) != before:
                dropped.add(name)
    return config


def _without(
    config: Config,
    idle: tuple[str, Any],
    switch: str,
    given: Mapping[str, Any],
    over: tuple[str, Mapping[str, Any]],
) -> Config:
    """The same without a knob that does nothing beside the value of another one, the switch.

    What the command line sets must do something. What a file sets, too, unless the command line
    has turned it off; then it is as if the file had not said it, and the record does not say it.
    """
    (name, default), (origin, overrides) = idle, over
    where = "the command line" if _stated(overrides, name) else origin
    now = value(config, switch)
    # `mode: off` beside `project: mine` is a switch that somebody turned off on purpose.
    off = now == "off" and (_stated(given, switch) or _stated(overrides, switch))
    if _stated(overrides, name) or (
        value(config, name) != default and not _stated(overrides, switch) and not off
    ):
        shown = "null" if now is None else now
        raise UsageError(
            f"{where}: {name} does nothing with {switch}: {shown}",
            f"take {name} away, or set another {switch}",
        )
    return config if off else changed(config, name, default)


def _stated(given: Mapping[str, Any], name: str) -> bool:
    inner: Any = given
    for part in name.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return True


def settled(config: Config) -> Config:
    """The same with the defaults of all knobs that do nothing: older records may say others."""
    for name, field in knobs():
        switch, values = idle_with(field) or ("", [])
        if switch and value(config, switch) in values and value(config, switch) != "off":
            config = changed(config, name, field.default)
    return config


def moved(config: Config, root: str | None) -> Config:
    """The same with its data elsewhere; None: where it was.

    Raises:
        UsageError: its data is in no place of the user's.
    """
    if root is not None and config.data.source == "digits":
        raise UsageError(
            "--data.root does nothing with data.source: digits", "take --data.root away"
        )
    return config if root is None else changed(config, "data.root", root)


def parse(
    content: Mapping[str, Any], origin: str, overrides: Mapping[str, Any] | None = None
) -> Config:
    """A checked Config from a mapping.

    Args:
        origin: where the mapping comes from, for errors.
        overrides: the part of it that comes from the command line.

    Raises:
        UsageError: naming the first knob that is wrong, and where it was set.
    """
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _explain(error, origin, overrides or {}) from error


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, now in over.items():
        both = isinstance(now, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], now) if both else now
    return merged


def _explain(error: ValidationError, origin: str, overrides: Mapping[str, Any]) -> UsageError:
    wrong = error.errors(include_url=False)
    # What would follow from a knob that is wrong is not wrong itself.
    first, *others = [e for e in wrong if e["type"] != "default_factory_not_called"]
    more = f" (and {len(others)} more)" if others else ""
    fields = dict(knobs())
    known = list(fields)
    # Validators of unions and list items add parts that are no knob: keep the known beginning.
    sections = {name.split(".")[0] for name in known if "." in name}
    path = [short(str(part)) for part in first["loc"]]
    path = path[: 2 if path[:1] and path[0] in sections else 1]
    name, given = ".".join(path), overrides
    for part in path:
        given = given.get(part, {}) if isinstance(given, Mapping) else {}
    where = "the command line" if given != {} else origin
    if first["type"] == "extra_forbidden" and name in known and "." in path[0]:
        section, _, knob = name.partition(".")
        return UsageError(
            f"{where}: {name} is one key, and a file has a section for it{more}",
            f"write {section}: and on the next line, two blanks in, {knob}: …",
        )
    if first["type"] == "extra_forbidden":
        near = meant(name, [*known, *sections])
        return UsageError(
            f"{where}: unknown key {name}{near}{more}", "`make knobs` lists every knob"
        )
    if name in sections:
        inner = [k for k in known if k.startswith(f"{name}.")]
        return UsageError(
            f"{where}: {name} is a group of knobs, and not {short(repr(first['input']))}{more}",
            f"write {name}: {{{inner[0].split('.')[1]}: …}}",
        )
    if first["type"] in ("tuple_type", "list_type"):
        one = short(repr(first["input"]))
        return UsageError(f"{where}: {name} is a list, and not {one}{more}", f"write [{one}, …]")
    text = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "missing":  # no knob has to be set, and of lists only a pair can lack one
        one = short(repr(given if given != {} else first["input"]))
        return UsageError(f"{where}: {name} has two values, and not {one}{more}", "give both")
    too_large = first["type"] == "less_than_equal"
    usual = f"give another value (default: {default(fields[name])})"
    if first["type"] in ("bool_parsing", "bool_type"):
        usual = "write true or false"
    elif first["type"] == "literal_error":
        usual = "write one of these"
    # Not 12,500, which may be thousands.
    comma = re.fullmatch(r"-?(0,\d+|\d+,(\d{1,2}|\d{4,}))", str(first["input"]))
    if first["type"] == "float_parsing" and comma:
        usual = f"write {first['input'].replace(',', '.')}"
    return UsageError(
        f"{where}: {name} = {short(repr(first['input']))}: {text}{more}",
        _UNITS.get(name, usual) if too_large or name == "data.size" else usual,
    )
