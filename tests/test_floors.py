"""What the floors stand on (the floors themselves are import-linter's: `make lint`)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "train"
# What runs before anything is installed.
BARE = [path for name in ("host", "container", "doctor") for path in (ROOT / name).glob("*.py")]


def imports(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("path", BARE, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_runs_on_a_bare_machine_needs_the_standard_library_alone(path: Path) -> None:
    own = {"host"} if path.parent.name == "host" else {"host", path.parent.name}
    assert imports(path) <= sys.stdlib_module_names | own


@pytest.mark.parametrize("place", ["train/stray.py", "host/stray.py", "doctor/stray.py"])
def test_a_file_on_no_floor_and_an_arrow_upwards_are_found(place: str, tmp_path: Path) -> None:
    """The contracts are alive: they fail for a file that nobody put anywhere, or that looks up."""
    for name in ("host", "container", "doctor", "train", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    target = tmp_path / Path(place).parts[0]
    target.unlink()
    subprocess.run(["cp", "-r", ROOT / target.name, target], check=True)
    words = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]

    def lint() -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert lint().returncode == 0
    (tmp_path / place).write_text("")
    done = lint()
    assert done.returncode == 1
    assert "stray" in done.stdout
    (tmp_path / place).unlink()
    low, high = {
        "train": (target / "record/files.py", "train.loop"),
        "host": (target / "errors.py", "host.cuda"),
        "doctor": (target / "finding.py", "train.config"),
    }[target.name]
    low.write_text(f"import {high}\n{low.read_text()}")
    done = lint()
    assert done.returncode == 1
    assert high in done.stdout


def test_only_the_runtime_makes_an_accelerator() -> None:
    makers = [path.name for path in PACKAGE.rglob("*.py") if "Accelerator(" in path.read_text()]
    assert makers == ["runtime.py"]


def test_nothing_of_ours_is_pickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name == "cifar.py":  # others' files, by a reader that runs nothing (test_sources)
            continue
        text = path.read_text()
        assert "pickle" not in text.replace("no pickle", ""), path
        assert "torch.load" not in text, path
        assert "torch.save" not in text, path
