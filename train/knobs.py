"""What a knob can be marked with, and a section of knobs."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

# Marks a knob that cannot change what is learned, so that a resumed run may change it.
FREE: JsonDict = {"free": True}


def idle(knob: str, *values: str | int | None) -> JsonDict:
    """Marks a knob that does nothing where another one has one of these values."""
    return {"idle": {knob: list(values)}}


class Section(BaseModel):
    """A group of knobs; unknown keys are errors, not silence."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML takes `yes` and `on` for true, which is 1 to whoever asks for a number."""
        truths = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, bool)]
        field = cls.model_fields[info.field_name or ""]
        converted = any(isinstance(each, BeforeValidator) for each in field.metadata)
        if truths and field.annotation is not bool and not converted:
            raise PydanticCustomError(
                "truth", "Input should not be true or false (in YAML, yes, no, on and off are)"
            )
        return value


def is_free(field: FieldInfo) -> bool:
    """Whether a knob cannot change what is learned."""
    return _marks(field).get("free") is True


def idle_with(field: FieldInfo) -> tuple[str, list[Any]] | None:
    """Another knob, and those of its values with which this one does nothing."""
    found = _marks(field).get("idle")
    return next(iter(found.items()), None) if isinstance(found, dict) else None  # type: ignore[return-value]


def _marks(field: FieldInfo) -> JsonDict:
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def default(field: FieldInfo) -> str:
    """A knob's default, as YAML takes it; only `lanes` has one that follows from another knob."""
    return "from batch_size" if field.default_factory else json.dumps(field.default)


def table(knobs: Iterable[tuple[str, FieldInfo]]) -> str:
    """A line for each knob: its flag, what it does, and its default."""
    rows = [
        (f"--{name}", f"{' '.join((field.description or '').split())} [{_values(field)}]")
        for name, field in knobs
    ]
    width = max((len(flag) for flag, _ in rows), default=0)
    return "\n".join(f"  {flag:<{width}}  {text}" for flag, text in rows)


def _values(field: FieldInfo) -> str:
    others = [w for w in get_args(field.annotation) if isinstance(w, str) and w != field.default]
    return default(field) + (f"; or {', '.join(others)}" if others else "")


def named(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every knob of a section and of those in it, under its dotted name."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from named(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field
