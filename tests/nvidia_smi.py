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
rows, apps, said, unknown, complaint = {rows!r}, {apps!r}, {said!r}, {unknown!r}, {complaint!r}
words = sys.argv[1:]
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
if complaint and "apps" not in query:
    print(complaint)
for row in apps if "apps" in query else rows:
    print(", ".join(str(row.get(field, "[N/A]")) for field in query.split("=")[1].split(",")))
"""


def write(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    apps: list[dict[str, Any]] | None = None,
    said: list[Any] | None = None,
    unknown: list[str] | None = None,
    complaint: str = "",
) -> None:
    """Put it into `folder`. `said`: the code and words that it ends with, whatever it is asked."""
    script = folder / "nvidia-smi"
    # PATH may hold nothing else.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    script.write_text(
        _SCRIPT.format(
            python=python, rows=rows, apps=apps or [], said=said or [], unknown=unknown or [],
            complaint=complaint,
        )
    )  # fmt: skip
    script.chmod(0o755)
