"""Checkpoints of which each process writes a part."""

import errno
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from fault.harness import FSDP, assert_same_run, finish, start, whole_checkpoint

from host.errors import CheckpointError, HostError
from train.lanes.state import same
from train.record import checkpoint, files, spread
from train.record.checkpoint import read
from train.record.spread import Spread
from train.record.writer import write

SHAPES = {"wide": (7, 3), "narrow": (1, 5), "one": (1,), "even": (6, 2, 2), "empty": (0, 4)}


@pytest.fixture
def whole() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    kinds = [torch.float32, torch.bfloat16, torch.float64]
    return {
        name: torch.randn(shape, generator=generator).to(kinds[number % 3])
        for number, (name, shape) in enumerate(SHAPES.items())
    }


def part(tensors: dict[str, torch.Tensor], number: int, count: int) -> dict[str, torch.Tensor]:
    """The rows that torch gives to a process."""
    return {
        name: parts[number] if number < len(parts := tensor.chunk(count)) else tensor[:0]
        for name, tensor in tensors.items()
    }


def begun(root: Path, step: int, count: int) -> list[Spread]:
    """As of so many processes; this one is the main one of all."""
    aside = root / f".step-{step:08}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    found = [Spread(number, count, aside) for number in range(count)]
    for each in found:
        each.mark()
    return found


def save(root: Path, step: int, whole: dict[str, torch.Tensor], mine: Spread) -> Path:
    count = mine.parts
    model, moments = part(whole, mine.part, count), part(whole, mine.part, count)
    if mine.part == 0:
        model["steps"] = moments["0.step"] = torch.tensor(3)
    parts = {"optimizer": {**moments, "groups": [1, 2]}}
    return write(root, step, model, parts, {"step": step, "best_step": step}, spread=mine)


def together(root: Path, step: int, whole: dict[str, torch.Tensor], count: int) -> list[object]:
    """What each of `count` writers returned or raised, all at the same time."""
    ended: list[object] = [None] * count

    def one(mine: Spread) -> None:
        try:
            ended[mine.part] = save(root, step, whole, mine)
        except CheckpointError as error:
            ended[mine.part] = error

    writers = [threading.Thread(target=one, args=(each,)) for each in begun(root, step, count)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(20)
    return ended


@pytest.mark.parametrize("count", [2, 3, 8])
def test_parts_are_read_as_one(tmp_path, whole, count) -> None:
    ended = together(tmp_path, 5, whole, count)
    assert ended == [tmp_path / "step-00000005"] * count
    found = read(tmp_path / "latest")
    for held in (found.model, found.parts["optimizer"]):
        assert all(same(held[name], tensor) for name, tensor in whole.items())
    assert found.model["steps"] == found.parts["optimizer"]["0.step"] == 3
    assert found.parts["optimizer"]["groups"] == [1, 2]
    assert set(found.model) == {*whole, "steps"}
    check = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
    said = subprocess.run(
        check, cwd=tmp_path / "latest", capture_output=True, text=True, check=True
    )
    assert len(said.stdout.splitlines()) == 2 * count + 1
    names = {path.name for path in (tmp_path / "latest").iterdir()}
    assert names == {line.split(":")[0] for line in said.stdout.splitlines()} | {"SHA256SUMS"}


def test_each_part_is_as_large_as_its_rows(tmp_path) -> None:
    together(tmp_path, 5, {"wide": torch.zeros(4000, 100)}, 4)
    for number in range(4):
        size = (tmp_path / f"latest/model.{number}of4.safetensors").stat().st_size
        assert 400_000 <= size < 401_000


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_that_cannot_write_leaves_the_one_before(tmp_path, whole, failing, monkeypatch) -> None:
    together(tmp_path, 5, whole, 3)
    write_new = files.write_new

    def full(path, parts):
        if path.name == f"optimizer.{failing}of3.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_new(path, parts)

    monkeypatch.setattr(files, "write_new", full)
    ended = together(tmp_path, 9, whole, 3)
    said = str(ended[failing])
    assert isinstance(ended[failing], CheckpointError)
    assert "No space left on device; the last whole checkpoint is step-00000005" in said
    assert read(tmp_path / "latest").state["step"] == 5
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".step-")}
    assert left == {"best", "latest", "step-00000005"}
    monkeypatch.undo()
    together(tmp_path, 9, whole, 3)
    assert read(tmp_path / "latest").state["step"] == 9


def test_one_that_is_gone_is_not_waited_for(tmp_path, whole) -> None:
    """It was killed while it wrote, and its parent has not looked yet."""
    first, second = begun(tmp_path, 5, 2)
    child = os.fork()
    if child == 0:
        second.mark()
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with pytest.raises(HostError, match="process 1 is gone, and its part of"):
        save(tmp_path, 5, whole, first)
    os.waitpid(child, 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.1of2.safetensors", "optimizer.0of2.safetensors"])
def test_a_part_that_is_missing_or_damaged_is_named(tmp_path, whole, name) -> None:
    together(tmp_path, 5, whole, 2)
    file = tmp_path / "step-00000005" / name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: its SHA-256"):
        read(tmp_path / "latest")
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        read(tmp_path / "latest")


def test_a_directory_that_one_process_does_not_see(tmp_path) -> None:
    """As on another machine: the words say what sharded weights want."""

    class Other(SimpleNamespace):
        rank, world, main, copies, copy = 1, 2, False, 1, 0

        def from_main(self, _):
            return tmp_path / "there" / ".step-00000005.1"

        def together(self):
            from contextlib import nullcontext

            return nullcontext()

    with pytest.raises(CheckpointError, match=r"process 1 does not see .*have all processes see"):
        spread.begin(tmp_path, 5, Other())


WORDS = [
    "fit", "--config", ROOT / "configs/digits.yaml", "--batch_size", 96, "--lanes", 8,
    "--max_steps", 6, "--checkpoint.every", 3, "--optim.ema", 0.9,
]  # fmt: skip


@pytest.mark.slow
def test_other_verbs_read_what_processes_have_written(tmp_path, cli) -> None:
    """A run on four processes, of sharded weights."""
    told, words = dict.fromkeys(range(4), FSDP), [*WORDS, "--run", tmp_path / "run"]
    attempt = start(tmp_path / "0", 4, words, variables=told)
    assert attempt.wait(120) == [0] * 4, attempt.output()
    usual = finish(tmp_path / "usual", WORDS)
    assert_same_run(tmp_path / "run", usual)
    spread_out, in_one = (run / "checkpoints/latest" for run in (tmp_path / "run", usual))
    parts = sorted(path.name for path in spread_out.glob("model*"))
    assert parts == [f"model.{n}of4.safetensors" for n in range(4)]
    sizes = [path.stat().st_size for path in spread_out.glob("*.safetensors")]
    once = [path.stat().st_size for path in in_one.glob("*.safetensors")]
    assert sum(sizes) == pytest.approx(sum(once), rel=0.1)
    assert max(sizes) < max(once) / 2
    one, other = (checkpoint.read(path) for path in (spread_out, in_one))
    for what, wanted in {"model": other.model, **other.parts}.items():
        held = {"model": one.model, **one.parts}[what]
        assert held.keys() == wanted.keys()
        for name, value in wanted.items():
            tensor = isinstance(value, torch.Tensor)
            assert same(held[name], value) if tensor else held[name] == value
    assert whole_checkpoint(tmp_path / "run") == 6
    said = [cli("evaluate", "--run", run) for run in (tmp_path / "run", usual)]
    assert [each.code for each in said] == [0, 0], said
    first, second = (json.loads(each.out.splitlines()[-1]) for each in said)
    assert first["loss"] == second["loss"] > 0
    assert cli("export", "--run", tmp_path / "run", "--formats", "safetensors").code == 0
