"""What tests share: the command line in this process and in real ones, and small data."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

# The suite is about the CPU on every machine; this must be set before torch looks. What was set
# before is for tests/gpu. The workers of `-n` find what their parent left.
_BEFORE = "CUDA_VISIBLE_DEVICES_BEFORE_TESTS"
if "PYTEST_XDIST_WORKER" not in os.environ and "CUDA_VISIBLE_DEVICES" in os.environ:
    os.environ[_BEFORE] = os.environ["CUDA_VISIBLE_DEVICES"]
VISIBLE = os.environ.get(_BEFORE)
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# And about this environment; tests/container is about the other engine.
os.environ["ENGINE"] = "local"

# What tests find out of their pictures is not kept beside what you know of yours.
if "PYTEST_XDIST_WORKER" not in os.environ:
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = Path(tempfile.mkdtemp(prefix="lockstep-tests-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    for each in usual.iterdir() if usual.is_dir() else []:
        if each.name != "lockstep":
            (own / each.name).symlink_to(each)
    os.environ["XDG_CACHE_HOME"] = str(own)

# What `make test ARGS=…` was told is not for the `make` of a test.
for name in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(name, None)

# In a container of ours, what it was started with is about that container.
for name in [n for n in os.environ if n.startswith("LOCKSTEP_") or n.endswith("_FILE")]:
    del os.environ[name]

from train.numerics import variables

# The suite trains digits in this process, which says numerics: portable.
os.environ.update(variables.HELD)
# As every trainer starts: threads that wait sleep, and leave the CPUs to other tests.
os.environ["OMP_WAIT_POLICY"] = variables.STARTED["OMP_WAIT_POLICY"]

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest
import turns
from accelerate.state import AcceleratorState, GradientState
from checkouts import Checkout, copy
from PIL import Image

from train.__main__ import main

# Nothing here asserts how long something takes.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ["--config", "configs/digits.yaml"]
# The experiments that come with it, as their page lists them; a user's own stand beside them.
SHIPPED = [
    ROOT / "configs" / f"{name}.yaml"
    for name in re.findall(
        r"^\| `([\w-]+)` \|",
        (ROOT / "docs/experiments.md").read_text().split("| `configs/` |")[1].split("\n\n")[0],
        re.MULTILINE,
    )
]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run at the repository's root, with no launcher's variables, and no state of Accelerate's."""
    monkeypatch.chdir(ROOT)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GPUS", "CPUS", "PRECISION", "ACCELERATE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in set(os.environ) - set(before):
        del os.environ[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        metavar="N/M",
        help="the first of the slow tests, and the N-th M-th of the others",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """The long ones first; of the slow ones those of a share, where one is asked for."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and turns.strange(items):
        raise pytest.UsageError(f"tests/turns.py names no test: {', '.join(turns.strange(items))}")
    turns.mark(items)
    if share := config.getoption("--share"):
        left = turns.outside(items, share)
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    yield  # to what leaves out others, as -m does
    turns.sort(items, getattr(config, "workerinput", {}).get("workercount", 1))


def pytest_collection_finish() -> None:
    """Leave the modules and tests out of what the garbage collector goes through."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it go through them once more: Triton lists what was left out as leaks."""
    gc.unfreeze()


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`python -m train …` in this process: the same code, without five seconds of imports."""

    def call(*words: Any) -> Outcome:
        capfd.readouterr()
        code = main([str(word) for word in without_report(words)])
        return Outcome(code, *capfd.readouterr())

    return call


def without_report(words: Sequence[Any]) -> list[Any]:
    """A training's words with no report asked for, which takes a second, unless they ask."""
    skip = list(words[:1]) == ["fit"] and "--log.report" not in words
    return [*words, *["--log.report", "false"] * skip]


def one_line(text: str) -> str:
    """The single line of `text`; fails where there are more, or a traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def picture(path: Path, value: int, size: tuple[int, int] = (8, 8), mode: str = "L") -> None:
    """A noisy picture around a grey value, so that classes can be told apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(abs(hash(str(path))) % 2**32).integers(-20, 20, size[::-1])
    grey = Image.fromarray(np.clip(noise + value, 0, 255).astype(np.uint8))
    grey.convert(mode).save(path)


def slow_pictures(root: Path, count: int = 160, side: int = 1100) -> None:
    """Noise of two classes; each takes some 30 ms of one core to decode."""
    for split, number in (("train", count), ("validation", 8)):
        for n in range(number):
            name = "dark" if n % 2 else "light"
            target = root / split / name / f"{n}.png"
            if n < 8:
                picture(target, 60 if n % 2 else 200, (side, side), "RGB")
            else:
                target.hardlink_to(root / split / name / f"{n % 8}.png")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two classes, dark and light: 24 to train on and 9 held out."""
    root = tmp_path_factory.mktemp("folder")
    for split, count in (("train", 12), ("validation", 5)):
        for name, value in (("dark", 60), ("light", 200)):
            for number in range(count - (split == "validation" and name == "light")):
                picture(root / split / name / f"{number}.png", value)
    return root


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of digits, 20 steps, with checkpoints at 5, 10, 15 and 20."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    os.chdir(ROOT)
    knobs = "--max_steps 20 --eval.every 10 --checkpoint.every 5 --checkpoint.keep 4 --log.every 1"
    code = main(["fit", *DIGITS, "--run", str(run), *knobs.split()])
    assert code == 0
    AcceleratorState._reset_state(reset_partial_state=True)
    return run


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A copy of the repository that another user owns, with the run and image of a `make train`."""
    made = copy(tmp_path_factory.mktemp("checkout") / "lockstep")
    first = made.run("make", "train", "RUN=runs/first", "CPUS=1", "ARGS=--epochs 4")
    assert first.code == 0, first.said
    yield made
    made.remove()


@pytest.fixture
def local_copy(tmp_path: Path) -> Path:
    """The tracked and new files as they are now, in a place of their own, with this environment."""
    made = copy(tmp_path / "lockstep", os.getuid())
    (made.path / ".venv").symlink_to(ROOT / ".venv")
    return made.path


def stated_hash() -> str:
    """The weights' hash that README.md shows, which digits ends with everywhere."""
    (found,) = re.findall(
        r"^weights ([0-9a-f]{64})$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    return str(found)


def commands(text: str) -> list[str]:
    """The lines of a Markdown text's ```console blocks that start with `$ `, joined over `\\`."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        joined = re.sub(r"\\\n\s*", "", block)
        found += [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return found
