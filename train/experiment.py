"""An experiment's file: read, override, check, compare and write it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from host.errors import UsageError, nearest
from train.config import FREE, Config, knobs


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, not a silent last one wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            word = self.construct_object(key_node, deep=True)
            if word in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {word} stands twice", problem_mark=key_node.start_mark
                )
            seen.add(word)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        content = yaml.load(path.read_bytes(), _Loader)  # noqa: S506  (a SafeLoader)
    except FileNotFoundError as error:
        near = nearest(path.stem, [p.stem for p in path.parent.glob("*.yaml")])
        raise UsageError(
            f"there is no config file {path}{near}", "name one, such as configs/digits.yaml"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{path} is not valid YAML{place}: {error.problem}", "mend it") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}", "mend it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no mapping of knobs", "write lines such as `seed: 1`")
    return content


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
    path = [str(part) for part in first["loc"]]
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
        f"{where}: {name} = {first['input']!r}: {text}{more}", f"give {name} such a value"
    )


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
