"""Does a model come out in the same bits on 1, 2 and 4 processes, killed and resumed, measured and
trained again? Or is it refused by name, before the first step? A third outcome is a bug.

    python benchmarks/idioms.py [MODELS.py] [--only NAME …] [--reproduce] [--out TABLE.md]

MODELS.py has ALL, a mapping of names to functions (classes, (C, H, W)) -> nn.Module, as
tests/idioms.py has. They are put into a copy of this checkout as a user would put them there, and
trained on 8×8 digits: nine steps, the last one short, with evaluations and checkpoints on the way.
Without a file it is torchvision's families, three steps on digits made larger.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("host", "train", "configs", "docs", "requirements", "tests", "benchmarks")


def copy_with(models: Path | None, there: Path) -> None:
    """A copy of the checkout in which these models are among ours."""
    for name in COPIED:
        shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = "ALL = {}\n" if models is None else models.read_text()
    (there / "train/learn/idioms.py").write_text(text)
    with (there / "train/learn/models.py").open("a") as file:
        file.write("\n\nfrom train.learn import idioms\n\nOURS.update(idioms.ALL)\n")


def main() -> int:
    """Try them, and print the table; 1 where one of them is neither equal nor refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--reproduce", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    words = ["--only", *options.only] if options.only else []
    words += ["--reproduce"] if options.reproduce else []
    words += ["--out", str(options.out.resolve())] if options.out else []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "checkout"
        copy_with(options.models, there)
        words = [sys.executable, "benchmarks/idiom_rows.py", *words]
        environ = {**os.environ, "PYTHONPATH": f"{there}:{there / 'tests'}"}
        return subprocess.run(words, cwd=there, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
