import json
import random
import re
import shutil
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from host.errors import CheckpointError
from train.config import Config, Model, Optim
from train.learn import weights
from train.learn.models import build
from train.learn.optim import build as build_optimizer
from train.learn.optim import slots
from train.learn.weights import contiguous
from train.record import rundir, writer
from train.record.checkpoint import read, weights_sha256
from train.record.facts import Facts
from train.record.saver import Saver
from train.record.stateful import OptimizerState
from train.record.writer import prune

FILES = ["SHA256SUMS", "model.safetensors", "optimizer.safetensors", "state.json"]


FACTS = Facts({}, ["a"], (1, 8, 8), [0.5], [0.5], None, "no", 1)


def state_of(optimizer) -> OptimizerState:
    name = "adamw" if isinstance(optimizer, torch.optim.AdamW) else "sgd"
    return OptimizerState(optimizer, slots(Optim(name=name)))


def write(root, step, model, optimizer, state):
    parts = {"optimizer": state_of(optimizer).state_dict()}
    return writer.write(root, step, model.state_dict(), parts, state)


def restore(found, model, optimizer) -> None:
    found.restore_model(model)
    state_of(optimizer).load_state_dict(found.parts["optimizer"])


def learner(name: str = "sgd", steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer that have taken a few steps."""
    torch.manual_seed(0)
    model = build(Model(), 10, (1, 8, 8))
    optimizer = build_optimizer(Config(optim=Optim(name=name)), model)
    for _ in range(steps):
        model(torch.rand(8, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return write(tmp_path_factory.mktemp("root"), 100, *learner(), {"step": 100, "lr": 0.1 + 0.2})


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_what_is_written_is_read_back_to_the_bit(tmp_path, name) -> None:
    model, optimizer = learner(name)
    path = write(tmp_path, 7, model, optimizer, {"step": 7, "third": 1 / 3})
    found = read(path)
    other, fresh = learner(name, steps=0)
    restore(found, other, fresh)
    assert weights_sha256(other) == weights_sha256(model)
    assert found.state == {"step": 7, "third": 1 / 3}
    # Both go on alike.
    for net, opt in ((model, optimizer), (other, fresh)):
        opt.zero_grad()
        torch.manual_seed(5)
        net(torch.rand(8, 1, 8, 8)).square().mean().backward()
        opt.step()
    assert weights_sha256(other) == weights_sha256(model)


def test_its_files(saved) -> None:
    assert sorted(p.name for p in saved.iterdir()) == FILES
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=saved, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert (saved.parent / "latest").readlink().name == "step-00000100"


def test_300_flipped_bits_and_60_truncations_are_all_refused(saved, tmp_path) -> None:
    """Any bit of any file of a checkpoint, its list of digests included."""
    chance = random.Random(20261121)
    copy = tmp_path / "step-00000100"
    shutil.copytree(saved, copy)
    refused = 0
    for trial in range(360):
        # Half in proportion to size, half in the small files, where a flip looks like sense.
        sizes = [(copy / name).stat().st_size for name in FILES]
        [name] = chance.choices(FILES, sizes if trial % 2 else None)
        path = copy / name
        whole = path.read_bytes()
        if trial < 300:
            damaged = bytearray(whole)
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        else:
            damaged = whole[: chance.randrange(len(whole))]
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as raised:
            read(copy)
        refused += str(copy) in str(raised.value)
        path.write_bytes(whole)
    assert refused == 360
    read(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved, tmp_path, name) -> None:
    copy = tmp_path / "step-00000100"
    shutil.copytree(saved, copy)
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read(copy)


def test_a_file_that_was_added_is_refused(saved, tmp_path) -> None:
    copy = tmp_path / "step-00000100"
    shutil.copytree(saved, copy)
    (copy / "more.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"more\.json is damaged"):
        read(copy)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\n\n\n", b"hello", b"0" * 64 + b"  x"])
@pytest.mark.parametrize("name", [".fuse_hidden0001", "notes.txt", "model.1of2.safetensors"])
def test_a_file_of_others_is_refused_whatever_is_in_it(saved, tmp_path, name, content) -> None:
    copy = tmp_path / "step-00000100"
    shutil.copytree(saved, copy)
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is damaged"):
        read(copy)


def test_another_model_s_weights_are_refused(saved) -> None:
    with pytest.raises(CheckpointError, match="another model"):
        read(saved).restore_model(build(Model(name="mlp"), 10, (1, 8, 8)))


def test_the_last_ones_and_the_best_are_kept(tmp_path) -> None:
    model, optimizer = learner()
    saver = Saver(tmp_path, 2, model, FACTS)
    saver.register("optimizer", state_of(optimizer))
    for step in range(1, 7):
        saver.save({"step": step, "best_step": min(step, 2)})
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["best", "latest", "step-00000002", "step-00000005", "step-00000006"]
    assert (tmp_path / "best").readlink().name == "step-00000002"
    found = read(tmp_path / "latest")
    assert found.state == {"step": 6, "best_step": 2, **json.loads(json.dumps(FACTS.written()))}
    assert found.facts == FACTS


def test_writing_a_step_again_replaces_it(tmp_path) -> None:
    write(tmp_path, 4, *learner(), {"step": 4, "try": 1})
    write(tmp_path, 4, *learner(), {"step": 4, "try": 2})
    assert read(tmp_path / "step-00000004").state["try"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000004"]


def test_what_dead_writers_left_is_removed(tmp_path) -> None:
    (tmp_path / ".step-00000001.4242").mkdir()
    write(tmp_path, 2, *learner(), {"step": 2})
    prune(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000002"]


def test_what_has_another_name_is_nobody_s_to_remove(tmp_path) -> None:
    others = ["step-00000001.bak", "step-zzz", "step-1", "step-٣", ".step-notes", "step-00000009x"]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("kept")
    (tmp_path / "step-00000008").write_text("a file")
    for step in (99_999_999, 100_000_000, 100_000_001):  # nine digits come after eight
        write(tmp_path, step, *learner(), {"step": step})
    prune(tmp_path, 2)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {*others, "latest", "step-00000008", "step-100000000", "step-100000001"}
    assert [rundir.step_of(path) for path in rundir.steps(tmp_path)] == [100_000_001, 100_000_000]


def test_a_disk_that_refuses_leaves_the_last_one_whole(tmp_path, monkeypatch) -> None:
    write(tmp_path, 1, *learner(), {"step": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("train.record.files.write_new", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(tmp_path, 2, *learner(), {"step": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001"]
    assert read(tmp_path / "latest").state == {"step": 1}


def test_nothing_is_a_pickle(saved) -> None:
    assert json.loads((saved / "state.json").read_text())["lr"] == 0.1 + 0.2
    for name in ("model.safetensors", "optimizer.safetensors"):
        head = (saved / name).read_bytes()
        assert json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])


def test_the_hash_follows_names_types_shapes_and_bytes() -> None:
    model = nn.Linear(2, 3)
    first = weights_sha256(model)
    assert first == weights_sha256(model)
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert weights_sha256(model) != first
    blank = [nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 3).double()]
    for other in blank:
        nn.init.zeros_(other.weight), nn.init.zeros_(other.bias)
    assert len({weights_sha256(other) for other in blank}) == 3


class Average:
    """An average of weights, as people add one: tensors and a number."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.count = 0

    def state_dict(self) -> dict:
        return {**self.shadow, "count": self.count}

    def load_state_dict(self, state_dict: dict) -> None:
        self.count = state_dict.pop("count")
        self.shadow = state_dict


def test_a_new_thing_with_state_needs_a_name_and_no_more(tmp_path) -> None:
    model, optimizer = learner()

    def saver(*, average: Average | None) -> Saver:
        made = Saver(tmp_path, 2, model, FACTS)
        made.register("optimizer", state_of(optimizer))
        if average:
            made.register("average", average)
        return made

    average = Average(model)
    average.count = 7
    saver(average=average).save({"step": 3, "best_step": 0})
    found = read(tmp_path / "latest")
    assert (tmp_path / "latest" / "average.safetensors").exists()
    again = Average(learner("sgd", 0)[0])
    saver(average=again).restore(found)
    assert again.count == 7
    assert all(torch.equal(again.shadow[n], t) for n, t in average.shadow.items())
    with pytest.raises(CheckpointError, match="holds the state of average, optimizer, and this"):
        saver(average=None).restore(found)


def test_a_model_that_reads_by_version_comes_back(tmp_path) -> None:
    """MNASNet's layers were other ones in version 1, which is what no version means to it."""
    model = build(Model(name="mnasnet0_5"), 10, (3, 64, 64))
    Saver(tmp_path, 2, model, FACTS).save({"step": 3, "best_step": 3})
    found = read(tmp_path / "latest")
    assert found.versions is not None
    assert found.versions[""] == {"version": 2}
    weights = str(tmp_path / "latest" / "model.safetensors")
    again = build(Model(name="mnasnet0_5", weights=weights), 10, (3, 64, 64))
    assert weights_sha256(again) == weights_sha256(model)
    blank = build(Model(name="mnasnet0_5"), 10, (3, 64, 64))
    found.restore_model(blank)
    assert weights_sha256(blank) == weights_sha256(model)
    # A file that says no versions is taken for one of this version.
    plain = tmp_path / "plain.safetensors"
    safetensors.torch.save_file(contiguous(model.state_dict()), plain)
    again = build(Model(name="mnasnet0_5", weights=str(plain)), 10, (3, 64, 64))
    assert weights_sha256(again) == weights_sha256(model)


@pytest.mark.parametrize("value", [(0.9, 0.999), {1: 2.0}, {"ema": torch.ones(2)}, np.float64(1)])
def test_a_state_that_json_would_change_is_refused(tmp_path, value) -> None:
    model, _ = learner()
    average = Average(model)
    average.count = value
    saver = Saver(tmp_path, 2, model, FACTS)
    saver.register("average", average)
    with pytest.raises(ValueError, match="average has a count that JSON cannot hold"):
        saver.save({"step": 3, "best_step": 0})
    assert not (tmp_path / "latest").exists()


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_two_parts_of_one_name(tmp_path, name) -> None:
    model, optimizer = learner()
    saver = Saver(tmp_path, 2, model, FACTS)
    saver.register("optimizer", state_of(optimizer))
    with pytest.raises(ValueError, match=f"a part named {name} already"):
        saver.register(name, state_of(optimizer))


def test_the_same_weights_make_the_same_file() -> None:
    """Its header has two entries, and the library writes them in an order that it draws."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    files = {weights.pack(model.state_dict()) for _ in range(20)}
    assert len(files) == 1
    tensors, versions = weights.unpack(files.pop())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())
    assert versions is not None
    assert versions["1"] == {"version": 2}


def test_any_kind_of_number_and_shape_is_written_as_the_library_reads_it() -> None:
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8)
    kinds += (torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn)
    tensors = {f"{dtype} ü{n}": torch.ones(n, 3).to(dtype) for dtype in kinds for n in (0, 2, 5)}
    tensors["alone"] = torch.tensor(2.5)
    tensors["turned"] = torch.arange(6.0).reshape(2, 3).t()
    tensors["view"] = tensors["turned"][1:]
    loaded = safetensors.torch.load(b"".join(weights.pieces(tensors)))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].float(), tensor.float())
    for strange in (torch.complex128, torch.float4_e2m1fn_x2):
        with pytest.raises(TypeError, match=f"one is {strange}, which no checkpoint can hold"):
            weights.pieces({"one": torch.empty(1, dtype=strange)})
