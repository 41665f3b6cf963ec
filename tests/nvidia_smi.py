"""An nvidia-smi for a PATH: answers as the real one does, from rows that are given.

It prints the fields that it is asked for, refuses the question where it does not know one (words
and code as `nvidia-smi --query-gpu=none` prints them), and lists GPUs with -L.
"""

from pathlib import Path
from shlex import quote
from typing import Any

# All of it is built into the shell: Python takes five times as long to start, and a machine of the
# doctor's asks twenty times.
_SCRIPT = """#!/bin/sh
case "$*" in
{others}
esac
{said}
if [ "$*" = -L ]; then
{listed}
exit 0
fi
for query; do
case $query in --query-*) break;; esac
done
IFS=,
for field in ${{query#*=}}; do
case $field in
{unknown}
esac
done
one() {{
line=
for field in ${{query#*=}}; do
value "$field"
line="$line, $shown"
done
printf '%s\\n' "${{line#, }}"
}}
case $query in *apps*)
{apps}
exit 0;;
esac
{before}
{rows}
{after}
exit {code}
"""


def write(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    apps: list[dict[str, Any]] | None = None,
    said: list[Any] | None = None,
    unknown: list[str] | None = None,
    before: str = "",
    after: str = "",
    complaint: str = "",
    code: int = 0,
    others: dict[str, list[Any]] | None = None,
) -> None:
    """Put it into `folder`.

    Args:
        said: the code and words that it ends with, whatever it is asked.
        before, after, complaint: what it writes around the rows, and beside them as errors; `code`.
        others: its answers to other words, as code, output and errors.
    """
    script = folder / "nvidia-smi"
    ends = [
        f"{quote(line)}) {_put(out)}; {_put(err)} >&2; exit {ends};;"
        for line, (ends, out, err) in (others or {}).items()
    ]
    listed = [
        f"GPU {row.get('index')}: {row.get('name')} (UUID: {row.get('uuid')})" for row in rows
    ]
    refused = 'printf \'Field "%s" is not a valid field to query.\\n\\n\' "$field"; exit 2'
    text = _SCRIPT.format(
        others="\n".join(ends),
        said=f"{_put(said[1])}; echo; exit {said[0]}" if said else "",
        listed="\n".join(f"{_put(row)}; echo" for row in listed),
        unknown="\n".join(f"{quote(field)}) {refused};;" for field in unknown or []),
        apps="\n".join(map(_row, apps or [])),
        before=f"{_put(before)}; {_put(complaint)} >&2",
        rows="\n".join(map(_row, rows)),
        after=_put(after),
        code=code,
    )
    script.write_text(text)
    script.chmod(0o755)


def _put(text: str) -> str:
    return f"printf '%s' {quote(text)}" if text else ":"


def _row(row: dict[str, Any]) -> str:
    """One that prints what was asked for of a GPU, or of a program."""
    known = {**row, "gpu_bus_id": row.get("pci.bus_id", "[N/A]")}
    cases = [f"{quote(name)}) shown={quote(str(value))};;" for name, value in known.items()]
    return "value() {\ncase $1 in\n" + "\n".join(cases) + "\n*) shown='[N/A]';;\nesac\n}\none"
