"""Pages from templates: names and words in them are text, and what is missing is an error."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from host.text import printable

_HERE = Path(__file__).parent


def page(path: Path, filters: dict[str, Any] | None = None, **values: Any) -> str:
    """The page of a template, which finds `head.html` and the style here."""
    rooms = Environment(
        loader=FileSystemLoader([path.parent, _HERE]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    rooms.filters |= {"shown": printable, **(filters or {})}
    return rooms.get_template(path.name).render(**values)
