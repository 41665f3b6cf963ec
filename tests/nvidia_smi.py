"""An nvidia-smi for a PATH: answers as the real one does, from rows that are given.

It prints the fields that it is asked for, refuses the question where it does not know one (words
and code as `nvidia-smi --query-gpu=none` prints them), and lists GPUs with -L.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

_SCRIPT = """#!{python} -SE
import sys
rows, apps, said, unknown, others = {rows!r}, {apps!r}, {said!r}, {unknown!r}, {others!r}
before, after, complaint, code = {before!r}, {after!r}, {complaint!r}, {code!r}
words = sys.argv[1:]
if " ".join(words) in others:
    code, out, err = others[" ".join(words)]
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(code)
if said:
    print(said[1])
    sys.exit(said[0])
if words == ["-L"]:
    for row in rows:
        print("GPU {{index}}: {{name}} (UUID: {{uuid}})".format(**row))
    sys.exit()
query = next(word for word in words if word.startswith("--query-"))
for field in query.split("=")[1].split(","):
    if field in unknown:
        print('Field "%s" is not a valid field to query.\\n' % field)
        sys.exit(2)
if "apps" not in query:
    sys.stdout.write(before)
    sys.stderr.write(complaint)
for row in apps if "apps" in query else rows:
    row = dict(row, gpu_bus_id=row.get("pci.bus_id", "[N/A]"))
    print(", ".join(str(row.get(field, "[N/A]")) for field in query.split("=")[1].split(",")))
if "apps" not in query:
    sys.stdout.write(after)
    sys.exit(code)
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
    # PATH may hold nothing else.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    script.write_text(
        _SCRIPT.format(
            python=python, rows=rows, apps=apps or [], said=said or [], unknown=unknown or [],
            before=before, after=after, complaint=complaint, code=code, others=others or {},
        )
    )  # fmt: skip
    script.chmod(0o755)
