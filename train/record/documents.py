"""The JSON documents of a run, run.json and result.json: read and checked, or written whole."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from host import regular
from host.errors import CheckpointError
from train.config import Config
from train.experiment import parse, settled
from train.record import files

MOST = 64 << 20
"""Bytes that a JSON file of a run may have, but for results: they hold a matrix of all classes."""
_MEND = "make room or mend the disk, then add --resume"
_FIX = "restore it from a copy, or train into another --run"
RECORD, RESULT = "run.json", "result.json"


class _Part(BaseModel):
    """What is read of a document; there may be more. Older versions wrote less: hence defaults."""

    model_config = ConfigDict(strict=True)


class _Attempt(_Part):
    started: str
    world_size: Annotated[int, Field(ge=1)]
    changed: list[str]


class _Hardware(_Part):
    type: Literal["cpu", "cuda"]
    mixed_precision: Literal["no", "fp16", "bf16"]


class _Git(_Part):
    commit: str | None


class _Record(_Part):
    id: str = ""
    seed: int = 0
    world_size: Annotated[int, Field(ge=1)] = 1
    exchanged: list[int] = []
    network: dict[str, float] | None = None
    config: dict[str, Any] = {}
    hardware: _Hardware = _Hardware(type="cpu", mixed_precision="no")
    fingerprint: dict[str, str] = {}
    first_pass: str | None = None
    optimizer_kernel: str = ""
    environment: dict[str, str] = {}
    git: _Git = _Git(commit=None)
    code: dict[str, str] = {}
    own_code: dict[str, str] = {}
    image: dict[str, Any] | None = None
    data_sha256: str | None = None
    versions: dict[str, str | None] = {}
    attempts: list[_Attempt] = []


class _Result(_Part):
    status: Literal["finished", "stopped", "failed"] = "failed"
    steps: int = 0
    samples: int = 0
    weights_sha256: str = ""
    ema_sha256: str | None = None
    metrics: dict[str, Any] = {}
    best: dict[str, Any] = {}


def record(run: Path) -> dict[str, Any] | None:
    """What a run's run.json says; None where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    return _checked(run / RECORD, _Record)


def result(run: Path) -> dict[str, Any] | None:
    """What a run's result.json says; None where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    return _checked(run / RESULT, _Result, most=1 << 32)


def experiment(run: Path, record: dict[str, Any]) -> Config:
    """The experiment of a run, which its record holds.

    Raises:
        CheckpointError: it does not.
        UsageError: it is none.
    """
    if "config" not in record:
        raise CheckpointError(f"{run / RECORD} does not say its experiment", _FIX)
    return settled(parse(record["config"], str(run / RECORD)))


def _checked(path: Path, kind: type[_Part], most: int = MOST) -> dict[str, Any] | None:
    try:
        content = mapping(regular.read(path, most))
        kind.model_validate(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}", _FIX) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{path} is damaged: {name}: {first['msg']}", _FIX) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}", _FIX) from error
    return content


def mapping(text: bytes) -> dict[str, Any]:
    """The mapping that JSON text holds.

    Raises:
        ValueError: it is no JSON, has other numbers than JSON knows, nests too deep, or holds
            something else.
    """
    try:
        content = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if not isinstance(content, dict):
        raise ValueError("it holds no mapping")
    return content


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole.

    Raises:
        CheckpointError: it cannot be written.
    """
    write(path, text(content) + "\n")


def text(value: Any, indent: str = "") -> str:
    """JSON for people too: a line for each key, and for each list of plain values."""
    deeper = f"{indent} "
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(name)}: {text(inner, deeper)}" for name, inner in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        rows = [text(inner, deeper) for inner in value]
        opening, closing = "[]"
    else:
        return json.dumps(value, allow_nan=False)
    listed = f",\n{deeper}".join(rows)
    return f"{opening}\n{deeper}{listed}\n{indent}{closing}"


def write(
    path: Path, text: str, fix: str = "make room or mend the disk, then add --resume"
) -> None:
    """Write a text file whole.

    Args:
        fix: what to do where that fails.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        files.write_whole(path, [text.encode()])
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}",
            fix,
        ) from error
