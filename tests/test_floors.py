"""The package stands on floors: a file imports lower floors only."""

import ast
from pathlib import Path

import pytest

FLOORS = [
    {
        "errors",
        "files",
        "schedule",
        "order",
        "progress",
        "parent",
        "exchange",
        "outcome",
        "limits",
        "stopwatch",
        "search",
    },
    {"config", "interrupt", "lock", "trace"},
    {"experiment"},
    {"cli", "runtime", "pictures", "data", "models", "optim", "metrics", "health"},
    {"provenance", "reduce", "checkpoint", "evaluate", "tripwire"},
    {"saver", "rundir", "estimate"},
    {"parts"},
    {"notes", "assemble"},
    {"loop"},
    {"summary", "record"},
    {"run", "score", "launch", "bench"},
    {"capacity"},
    {"trial"},
    {"trials"},
    {"sizes", "loaders", "rates"},
    {"variants"},
    {"reproduce", "tune"},
    {"__main__"},
]
# Inside the data package.
DATA_FLOORS = [{"images", "augment"}, {"tables"}, {"source"}, {"loader"}, {"__init__"}]
PACKAGE = Path(__file__).resolve().parent.parent / "train"


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "train":
            found |= {f"train.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return {name for name in found if name.startswith("train.")}


def floor_of(name: str, floors: list[set[str]]) -> int:
    [floor] = [number for number, names in enumerate(floors) if name in names]
    return floor


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda p: p.stem)
def test_a_file_imports_lower_floors_only(path: Path) -> None:
    if path.stem == "__init__":
        assert not imports(path)
        return
    for name in imports(path):
        lower = name.split(".")[1]
        assert floor_of(lower, FLOORS) < floor_of(path.stem, FLOORS), f"{path.name}: {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "data").glob("*.py")), ids=lambda p: p.stem)
def test_so_does_the_data_package(path: Path) -> None:
    for name in imports(path):
        parts = name.split(".")
        if parts[1] == "data":
            assert floor_of(parts[2], DATA_FLOORS) < floor_of(path.stem, DATA_FLOORS)
        else:
            assert floor_of(parts[1], FLOORS) < floor_of("data", FLOORS)


def test_every_floor_is_lived_on() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py")} | {"data"}
    assert set().union(*FLOORS) == there - {"__init__"}


def test_only_the_runtime_makes_an_accelerator() -> None:
    makers = [path.name for path in PACKAGE.rglob("*.py") if "Accelerator(" in path.read_text()]
    assert makers == ["runtime.py"]


def test_nothing_of_ours_is_pickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in text.replace("no pickle", ""), path
        assert "torch.load" not in text, path
        assert "torch.save" not in text, path
