"""An experiment's file as a mapping: YAML that neither hangs nor says a thing twice."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from host import regular
from host.errors import UsageError
from host.text import short

_MERGED = "tag:yaml.org,2002:merge"
_MOST = 1 << 16  # bytes of a file
_DEEP = 20
_THOUSANDS = r"[-+]?[1-9]\d{0,2}(_\d{3})+"  # 10_000
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
                    problem=f"the key {short(str(word))} {wrong}", problem_mark=key_node.start_mark
                )
            seen.add(word)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """A number as it is written: YAML 1.1 reads 010 as eight, 1:30 as ninety and 1_0 as ten."""
    text = str(loader.construct_scalar(node))
    if not re.fullmatch(_THOUSANDS, text) and re.search(r"[_:xb]|^[-+]?0\d", text):
        raise yaml.MarkedYAMLError(
            problem=f"{text} is no plain number to YAML: write it in decimal, or a word in quotes",
            problem_mark=node.start_mark,
        )
    whole = node.tag.endswith("int")
    return loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


def _called_alike(path: Path) -> Path | None:
    """The experiment that may be meant: beside a file that is not there, or of ours."""
    places = (Path("configs"), path.parent)
    known = {file.stem: file for place in places for file in place.glob("*.yaml")}
    near = get_close_matches(path.stem, known, n=1, cutoff=0.6)
    return known[near[0]] if near else None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        text = regular.read(path, _MOST)
        _check_depth(text)
        content = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except FileNotFoundError as error:
        near = _called_alike(path)
        raise UsageError(
            f"there is no config file {path}{f'; did you mean {near}?' if near else ''}",
            "name one" + ", such as configs/digits.yaml" * (not near),
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
