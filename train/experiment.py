"""An experiment's file: read, override, check, compare and write it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from host import regular
from host.errors import UsageError, nearest
from train.config import FREE, Config, knobs

_MERGED = "tag:yaml.org,2002:merge"
_MOST = 1 << 16  # bytes of a file
_DEEP = 20
_SHOWN = 80  # characters of a wrong value
_VALUES = 10_000  # aliases counted as often as they stand


class _Loader(yaml.SafeLoader):
    """YAML in which a key is a word, and one that stands twice is an error: no silent last wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGED:  # <<: *anchor, over which the mapping's own keys win
                continue
            word = self.construct_object(key_node, deep=True)
            wrong = "is no word" if not isinstance(word, str) else "stands twice"
            if wrong == "is no word" or word in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {_short(str(word))} {wrong}", problem_mark=key_node.start_mark
                )
            seen.add(word)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        text = regular.read(path, _MOST)
        _check_depth(text)
        content = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except FileNotFoundError as error:
        near = nearest(path.stem, [p.stem for p in path.parent.glob("*.yaml")])
        raise UsageError(
            f"there is no config file {path}{near}", "name one, such as configs/digits.yaml"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name an experiment's file"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{path} is not valid YAML{place}: {error.problem}", "mend it") from error
    except (yaml.YAMLError, ValueError) as error:  # a number of thousands of digits, for one
        raise UsageError(f"{path} is not valid YAML: {error}", "mend it") from error
    if content is None:
        return {}
    if not _few(content):
        raise UsageError(
            f"{path} holds more than {_VALUES} values", "write lines such as `seed: 1`"
        )
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no mapping of knobs", "write lines such as `seed: 1`")
    return content


def _check_depth(text: bytes) -> None:
    """Refuse what nests deep before the rest of it is read: that takes the square of its depth."""
    depth = 0
    event: Any
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEP:
            raise yaml.MarkedYAMLError(problem="it nests too deep", problem_mark=event.start_mark)


def _few(content: Any) -> bool:
    """Whether there are no more than `_VALUES` values: aliases of aliases make many of few."""
    left, count = [content], 0
    while left and count <= _VALUES:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, set, tuple)):
            left += value
    return count <= _VALUES


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Defaults < file < overrides (nested mappings), checked.

    Raises:
        UsageError: naming the first knob that is wrong, and where it was set.
    """
    over = overrides or {}
    return parse(_merge(read_yaml(path) if path else {}, over), str(path or "defaults"), over)


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
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged


def _explain(error: ValidationError, origin: str, overrides: Mapping[str, Any]) -> UsageError:
    wrong = error.errors(include_url=False)
    # What would follow from a knob that is wrong is not wrong itself.
    first, *others = [e for e in wrong if e["type"] != "default_factory_not_called"]
    more = f" (and {len(others)} more)" if others else ""
    known = [name for name, _ in knobs()]
    # Validators of unions and list items add parts that are no knob: keep the known beginning.
    sections = {name.split(".")[0] for name in known if "." in name}
    path = [_short(str(part)) for part in first["loc"]]
    path = path[: 2 if path[0] in sections else 1]
    name, given = ".".join(path), overrides
    for part in path:
        given = given.get(part, {}) if isinstance(given, Mapping) else {}
    where = "the command line" if given != {} else origin
    if first["type"] == "extra_forbidden":
        by_last_word = {k.rsplit(".", 1)[-1]: k for k in known}
        near = nearest(name, [*known, *sections]) or nearest(by_last_word.get(name, ""), known)
        return UsageError(
            f"{where}: unknown key {name}{near}{more}",
            "see `python -m train fit --help` for every key",
        )
    text = first["msg"][0].lower() + first["msg"][1:]
    return UsageError(
        f"{where}: {name} = {_short(repr(first['input']))}: {text}{more}",
        f"give {name} such a value",
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def dump(config: Config) -> str:
    """The whole experiment as YAML, which `load` takes back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Knobs that decide the result and differ: dotted name, and both values."""
    return [
        (name, _value(one, name), _value(other, name))
        for name, field in knobs()
        if field.json_schema_extra != FREE and _value(one, name) != _value(other, name)
    ]


def _value(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def signature(config: Config) -> str:
    """Eight hexadecimal digits that are equal for experiments that decide the same result."""
    values = {n: _value(config, n) for n, field in knobs() if field.json_schema_extra != FREE}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
