"""Checkpoints whose digests are right and whose content is not: each is named, and passed over."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import DIGITS, one_line

from host.errors import CheckpointError
from train import assemble
from train.__main__ import main
from train.config import Config
from train.data import load
from train.lanes import runtime as runtimes
from train.learn.models import build
from train.learn.optim import build as build_optimizer
from train.record import checkpoint, resume
from train.record.claim import Claim
from train.record.saver import Saver

END = 20
STATE, MODEL, OPTIMIZER = "state.json", "model.safetensors", "optimizer.safetensors"


def made(root: Path, config: Config) -> tuple[Claim, Saver]:
    """A run that is to go on, and a learner that has taken a few steps."""
    torch.manual_seed(0)
    images = load(config.data)
    with runtimes.start(config) as runtime:
        model = build(config.model, len(images.classes), images.train.shape)
        optimizer = build_optimizer(config, model)
        saver = Saver(root / "checkpoints", 9, model, assemble.facts(config, images, runtime))
        assemble.register(saver, config, optimizer, runtime)
    for _ in range(2):
        model(torch.rand(8, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    return Claim(root, continued=True, finished=False), saver


@pytest.fixture(scope="module", params=["sgd", "adamw"])
def run(request, tmp_path_factory) -> tuple[Claim, Saver, Config]:
    config = Config.model_validate({"model": {"name": "mlp"}, "optim": {"name": request.param}})
    claim, saver = made(tmp_path_factory.mktemp("run"), config)
    for step in (5, 10):
        values = {"seconds": 1.5, "measured": step, "best_step": 5, "best_top1": 0.5}
        saver.save({"step": step, **values})
    return claim, saver, config


def said(path: Path, change) -> None:
    """state.json after a change of what it says."""
    content = json.loads((path / STATE).read_text())
    content = change(content) or content
    (path / STATE).write_text(json.dumps(content))


def tensors(path: Path, name: str, change) -> None:
    held = safetensors.torch.load_file(path / name)
    held = change(held) or held
    safetensors.torch.save_file(held, path / name)


def first(held: dict) -> str:
    return min(name for name, tensor in held.items() if tensor.ndim > 0)


def nan(held: dict) -> None:
    held[first(held)].view(-1)[0] = float("nan")


def header(path: Path, name: str, text: bytes) -> None:
    (path / name).write_bytes(len(text).to_bytes(8, "little") + text)


def pipe(path: Path) -> None:
    os.mkfifo(path / "more")


def link(path: Path, target: str) -> None:
    (path / STATE).unlink()
    (path / STATE).symlink_to(target)


def sparse(path: Path, name: str, size: int) -> None:
    with (path / name).open("ab") as file:
        file.truncate(size)


def fewer(path: Path) -> None:
    """An optimizer that lost its state, with a list that agrees."""
    (path / OPTIMIZER).unlink()
    said(path, lambda s: s["tensors"].update(optimizer=["0.momentum_buffer"]))


DEEP = "[" * 100_000 + "]" * 100_000
# What is done to the directory, and what is said of it. Digests are made right afterwards, except
# where there would be no end to it.
DAMAGES = {
    "a pipe": (pipe, "more: it is no regular file"),
    "a folder": (lambda p: (p / "more").mkdir(), "more: Is a directory"),
    "a device": (lambda p: link(p, "/dev/zero"), "state.json: it is no regular file"),
    "a terminal": (lambda p: link(p, "/dev/tty"), "state.json: "),
    "a dangling link": (lambda p: link(p, "nowhere"), "state.json: No such file"),
    "a loop": (lambda p: link(p, "state.json"), "state.json: Too many levels"),
    "a huge state": (lambda p: sparse(p, STATE, 1 << 40), "GiB of memory|of memory"),
    "a large state": (lambda p: sparse(p, STATE, 70 << 20), "state.json: it is larger than 64 MiB"),
    "a huge model": (lambda p: sparse(p, MODEL, 1 << 43), "of memory"),
    "another file": (lambda p: (p / "average.safetensors").write_bytes(b""), "average.safetensors"),
    "another part": (
        lambda p: safetensors.torch.save_file({"a": torch.ones(2)}, p / "average.safetensors"),
        "state.json knows nothing of it",
    ),
    "no optimizer": (lambda p: (p / OPTIMIZER).unlink(), "other tensors of the optimizer"),
    "a blank optimizer": (lambda p: safetensors.torch.save_file({}, p / OPTIMIZER), "other tens"),
    "a listed slot that is not there": (fewer, "other tensors of the optimizer"),
    "no parts": (lambda p: said(p, lambda s: s.pop("parts") and None), "does not say what has"),
    "no list": (lambda p: said(p, lambda s: s.pop("tensors") and None), "does not say what has"),
    "parts that are a list": (lambda p: said(p, lambda s: s.update(parts=[1])), "what has state"),
    "a part that is a number": (
        lambda p: said(p, lambda s: s["parts"].update(optimizer=3)),
        "no mapping",
    ),
    "slots that are numbers": (
        lambda p: said(p, lambda s: s["tensors"].update(optimizer=[1, "a"])),
        "other tensors",
    ),
    "slots that are none": (
        lambda p: said(p, lambda s: s["tensors"].update(optimizer=None)),
        "other tensors",
    ),
    "one more part": (
        lambda p: said(p, lambda s: [s["parts"].update(a={}), s["tensors"].update(a=[]), s][2]),
        "holds the state of a, optimizer",
    ),
    "no JSON": (lambda p: (p / STATE).write_text("{"), "state.json is damaged"),
    "no text": (lambda p: (p / STATE).write_bytes(b"\xff\xfe\x00"), "state.json is damaged"),
    "nothing": (lambda p: (p / STATE).write_bytes(b""), "state.json is damaged"),
    "a list": (lambda p: (p / STATE).write_text("[]"), "it holds no mapping"),
    "depth": (lambda p: (p / STATE).write_text(DEEP), "it nests too deep"),
    "depth in a mapping": (lambda p: (p / STATE).write_text(f'{{"a": {DEEP}}}'), "nests too deep"),
    "a long number": (
        lambda p: (p / STATE).write_text('{"step": 1' + "0" * 9999 + "}"),
        "state.json is damaged",
    ),
    "NaN": (lambda p: said(p, lambda s: s.update(seconds=float("nan"))), "NaN is no number"),
    "infinity": (lambda p: said(p, lambda s: s.update(seconds=float("inf"))), "Infinity is no"),
    "a number past all": (
        lambda p: (p / STATE).write_text((p / STATE).read_text().replace("1.5", "1e999")),
        "seconds",
    ),
    "another step": (lambda p: said(p, lambda s: s.update(step=9)), "it says step 9"),
    "a step that is a word": (lambda p: said(p, lambda s: s.update(step="10")), "says step 10"),
    "a step that is a share": (lambda p: said(p, lambda s: s.update(step=10.0)), "step"),
    "no step": (lambda p: said(p, lambda s: s.pop("step") and None), "says step None"),
    "measured later": (lambda p: said(p, lambda s: s.update(measured=11)), "after its own step"),
    "measured before all": (lambda p: said(p, lambda s: s.update(measured=-1)), "measured"),
    "best of all": (lambda p: said(p, lambda s: s.update(best_top1=7.0)), "best_top1"),
    "time as a word": (lambda p: said(p, lambda s: s.update(seconds="1")), "seconds"),
    "no classes": (lambda p: said(p, lambda s: s.pop("classes") and None), "its classes"),
    "classes by number": (lambda p: said(p, lambda s: s.update(classes=[1, 2])), "classes"),
    "a shape of two": (lambda p: said(p, lambda s: s.update(shape=[1, 8])), "shape"),
    "a negative shape": (lambda p: said(p, lambda s: s.update(shape=[1, -8, 8])), "shape"),
    "a mean of words": (lambda p: said(p, lambda s: s.update(mean=["a"])), "mean"),
    "no header": (lambda p: (p / MODEL).write_bytes(b"1234"), "model.safetensors is damaged"),
    "a header of 2⁶³": (
        lambda p: (p / MODEL).write_bytes(b"\xff" * 7 + b"\x7f"),
        "model.safetensors is damaged",
    ),
    "a header of nothing": (lambda p: header(p, MODEL, b""), "model.safetensors is damaged"),
    "a header that is a list": (lambda p: header(p, MODEL, b"[]"), "model.safetensors is damaged"),
    "a deep header": (lambda p: header(p, MODEL, DEEP.encode()), "model.safetensors is damaged"),
    "a tensor past the end": (
        lambda p: header(
            p, MODEL, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'
        ),
        "model.safetensors is damaged",
    ),
    "an unknown type": (
        lambda p: header(p, MODEL, b'{"a":{"dtype":"F7","shape":[0],"data_offsets":[0,0]}}'),
        "model.safetensors is damaged",
    ),
    "a shape past all": (
        lambda p: header(
            p, MODEL, b'{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}'
        ),
        "damaged|another model",
    ),
    "versions that are no JSON": (
        lambda p: header(p, MODEL, b'{"__metadata__":{"versions":"{"}}'),
        "model.safetensors is damaged",
    ),
    "versions that are a list": (
        lambda p: header(p, MODEL, b'{"__metadata__":{"versions":"[1]"}}'),
        "model.safetensors is damaged",
    ),
    "versions by word": (
        lambda p: header(p, MODEL, b'{"__metadata__":{"versions":"{\\"\\": 3}"}}'),
        "model.safetensors is damaged",
    ),
    "an empty model": (lambda p: safetensors.torch.save_file({}, p / MODEL), "another model"),
    "a weight less": (lambda p: tensors(p, MODEL, lambda t: [t.pop(first(t)), t][1]), "another"),
    "a weight more": (lambda p: tensors(p, MODEL, lambda t: t | {"z": torch.ones(1)}), "another"),
    "another shape": (
        lambda p: tensors(p, MODEL, lambda t: t | {first(t): torch.ones(3)}),
        "another model",
    ),
    "another type": (
        lambda p: tensors(p, MODEL, lambda t: t | {first(t): t[first(t)].double()}),
        "is torch.float64 there, and torch.float32 in the model",
    ),
    "half a type": (
        lambda p: tensors(p, MODEL, lambda t: t | {first(t): t[first(t)].bfloat16()}),
        "is torch.bfloat16 there",
    ),
    "a weight that is NaN": (lambda p: tensors(p, MODEL, nan), "holds NaN"),
    "momentum that is NaN": (lambda p: tensors(p, OPTIMIZER, nan), "holds NaN"),
    "momentum of another shape": (
        lambda p: tensors(p, OPTIMIZER, lambda t: t | {first(t): torch.ones(3)}),
        "not of its parameter's shape",
    ),
}  # fmt: skip


def renamed(name: str):
    """The optimizer's first slot under another name, and listed so."""

    def damage(path: Path) -> None:
        tensors(
            path,
            OPTIMIZER,
            lambda t: {**{n: v for n, v in t.items() if n != first(t)}, name: t[first(t)]},
        )
        held = sorted(safetensors.torch.load_file(path / OPTIMIZER))
        said(path, lambda s: s["tensors"].update(optimizer=held))

    return damage


for other, text in {
    "x.momentum_buffer": "belongs to no parameter",
    "999.momentum_buffer": "belongs to no parameter",
    "momentum_buffer": "belongs to no parameter",
    "-1.momentum_buffer": "belongs to no parameter",
    "²": "belongs to no parameter",
    "0.other": "should have",
}.items():
    DAMAGES[f"a slot named {other}"] = (renamed(other), text)


def sums(path: Path) -> None:
    rows = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(path.iterdir())
        if file.is_file() and file.name != "SHA256SUMS" and file.stat().st_size < 1 << 30
    ]
    (path / "SHA256SUMS").write_text("".join(rows))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", DAMAGES)
def test_it_is_named_and_passed_over(tmp_path, run, capfd, name) -> None:
    kept, saver, config = run
    root = tmp_path / "run"
    shutil.copytree(kept.path, root, symlinks=True)
    claim = Claim(root, continued=True, finished=False)
    newest = claim.checkpoints / "step-00000010"
    damage, text = DAMAGES[name]
    damage(newest)
    sums(newest)
    with runtimes.start(config) as runtime:
        assert resume.last(claim, saver, runtime, END).step == 5
        warning = one_line(capfd.readouterr().out)
        assert warning.startswith("warning: ")
        assert "step-00000010" in warning
        shutil.rmtree(claim.checkpoints / "step-00000005")
        with pytest.raises(CheckpointError, match=text) as raised:
            resume.last(claim, saver, runtime, END)
    one_line(raised.value.line())


def test_a_step_past_the_end(tmp_path, run, capfd) -> None:
    """It would have been finished at once."""
    kept, saver, config = run
    root = tmp_path / "run"
    shutil.copytree(kept.path, root, symlinks=True)
    claim = Claim(root, continued=True, finished=False)
    far = claim.checkpoints / "step-1000000000"
    shutil.copytree(claim.checkpoints / "step-00000010", far)
    said(far, lambda s: s.update(step=10**9))
    sums(far)
    with runtimes.start(config) as runtime:
        assert resume.last(claim, saver, runtime, END).step == 10
    assert "is of step 1000000000, and the run ends with step 20" in capfd.readouterr().out


def test_what_starts_as_no_number_may_stay_so(tmp_path) -> None:
    """A weight that is never used, of memory as it was found."""
    config = Config.model_validate({"model": {"name": "mlp"}})
    claim, saver = made(tmp_path, config)
    saver.model.unused = torch.nn.Parameter(torch.full((2,), float("nan")))
    saver.save({"step": 5, "best_step": 5})
    saver.restore(checkpoint.read(claim.checkpoints / "latest"))
    assert saver.model.unused.isnan().all()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of three steps, which has ended."""
    run = tmp_path_factory.mktemp("finished") / "run"
    words = ["fit", *DIGITS, "--max_steps", "3", "--checkpoint.every", "1", "--log.every", "1"]
    assert main([*words, "--run", str(run)]) == 0
    return run


def put(name: str, value: object):
    """Another value in run.json, by its dotted name."""

    def damage(run: Path) -> None:
        content = json.loads((run / "run.json").read_text())
        place = content
        *above, last = name.split(".")
        for part in above:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value
        (run / "run.json").write_text(json.dumps(content))

    return damage


def written(name: str, text: bytes):
    return lambda run: (run / name).write_bytes(text)


def replaced(name: str, target: str | None):
    """A link, or a pipe, in a file's place."""

    def damage(run: Path) -> None:
        (run / name).unlink()
        if target is None:
            os.mkfifo(run / name)
        else:
            (run / name).symlink_to(target)

    return damage


RECORDS = {
    "attempts that are none": put("attempts", None),
    "attempts that are words": put("attempts", ["a"]),
    "attempts that are a number": put("attempts", 3),
    "an attempt without its start": put("attempts", [{"world_size": 1, "changed": []}]),
    "a start that is a number": put("attempts.0.started", 3),
    "changes that are a word": put("attempts.0.changed", "all"),
    "hardware that is a word": put("hardware", "GPU"),
    "hardware of another type": put("hardware.type", ["cpu"]),
    "a precision nobody has": put("hardware.mixed_precision", "fp3"),
    "processes that are a word": put("world_size", "many"),
    "a seed that is a list": put("seed", [1]),
    "code that is a list": put("code", ["a"]),
    "code by number": put("code", {"train/cli.py": 3}),
    "packages by number": put("versions", {"torch": 3}),
    "variables by number": put("environment", {"OMP_NUM_THREADS": 3}),
    "probes that are a list": put("fingerprint", [1]),
    "a commit that is a number": put("git.commit", 3),
    "git that is none": put("git", None),
    "data that is a list": put("data_sha256", [1]),
    "a config that is a list": put("config", [1]),
    "an image that is a word": put("image", "mine"),
    "an id that is a mapping": put("id", {}),
    "a kernel that is a list": put("optimizer_kernel", []),
    "no JSON": written("run.json", b"{"),
    "no text": written("run.json", b"\xff\xfe"),
    "nothing at all": written("run.json", b""),
    "a list": written("run.json", b"[]"),
    "depth": written("run.json", DEEP.encode()),
    "depth in a mapping": written("run.json", b'{"a":' + DEEP.encode() + b"}"),
    "NaN": written("run.json", b'{"seed": NaN}'),
    "a long number": written("run.json", b'{"seed": 1' + b"0" * 9999 + b"}"),
    "a device": replaced("run.json", "/dev/zero"),
    "a pipe": replaced("run.json", None),
    "a large one": lambda run: sparse(run, "run.json", 70 << 20),
}


@pytest.mark.slow
@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_damaged_is_said_to_be(tmp_path, finished, cli, name) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "result.json").unlink()
    RECORDS[name](run)
    kept = {path: path.lstat().st_mtime_ns for path in run.rglob("*")}
    done = cli("fit", *DIGITS, "--max_steps", 3, "--run", run, "--resume")
    assert done.code == 4
    assert "run.json" in one_line(done.err)
    shutil.copy(finished / "result.json", run)
    done = cli("reproduce", run)
    assert done.code == 4
    assert "run.json" in one_line(done.err)
    assert {p: t for p, t in kept.items() if p.is_file() and p.lstat().st_mtime_ns != t} == {}


@pytest.mark.parametrize("count", [0, -1, 9, 64, 10**9])
def test_a_record_of_so_many_processes_starts_none(tmp_path, finished, cli, count) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    put("world_size", count)(run)
    before = sorted(tmp_path.rglob("*"))
    done = cli("reproduce", run)
    assert done.code in (2, 4)
    assert re.search(r"processes cannot share|world_size", one_line(done.err.splitlines()[-1]))
    assert sorted(tmp_path.rglob("*")) == before


RESULTS = {
    "status that is a list": b'{"status": ["finished"]}',
    "status nobody has": b'{"status": "won"}',
    "steps that are a word": b'{"status": "finished", "steps": "3"}',
    "weights by number": b'{"status": "finished", "weights_sha256": 3}',
    "metrics that are a list": b'{"status": "finished", "metrics": []}',
    "no JSON": b"{",
    "no text": b"\xff",
    "depth": DEEP.encode(),
    "a list": b"[]",
    "NaN": b'{"steps": NaN}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_damaged_is_no_result(tmp_path, finished, cli, name) -> None:
    """Nobody compares with it; a training that goes on writes it anew."""
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "result.json").write_bytes(RESULTS[name])
    done = cli("reproduce", run)
    assert done.code == 4
    assert "result.json is damaged" in one_line(done.err)
    assert cli("fit", *DIGITS, "--max_steps", 3, "--run", run, "--resume").code == 0
    one, other = (json.loads((p / "result.json").read_text()) for p in (run, finished))
    assert one["weights_sha256"] == other["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["metrics.jsonl", "trace.csv"])
@pytest.mark.parametrize(
    "tail",
    [
        b"\xff\xfe\x00",
        b'{"kind": "train", "step": "4"}\n',
        b'{"kind": ["eval"], "step": 2}\n',
        b'{"kind": "eval", "step": 1e999}\n',
        b"[" * 100_000 + b"\n",
        b"3,nan\n4,\xff,\xff\n",
        b"9" * 30 + b",0x1p0,0x1p0\n",
        b"\n\n\n",
    ],
)
def test_a_tail_that_makes_no_sense_is_dropped(tmp_path, finished, cli, file, tail) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    with (run / file).open("ab") as out:
        out.write(tail)
    done = cli("fit", *DIGITS, "--max_steps", 3, "--run", run, "--resume")
    assert done.code == 0, done.err
    assert (run / "trace.csv").read_bytes() == (finished / "trace.csv").read_bytes()
    for path in (run, finished):
        rows = [json.loads(row) for row in (path / "metrics.jsonl").read_text().splitlines()]
        assert [(r["kind"], r["step"]) for r in rows if r["kind"] in ("train", "eval")] == [
            ("train", 1), ("train", 2), ("train", 3), ("eval", 3),
        ]  # fmt: skip


@pytest.mark.parametrize("file", ["metrics.jsonl", "trace.csv"])
@pytest.mark.parametrize("target", ["/dev/zero", None])
def test_what_is_no_file_is_not_read(tmp_path, finished, cli, file, target) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    replaced(file, target)(run)
    done = cli("reproduce", run)
    assert done.code == 4
    assert f"{file}: it is no regular file" in one_line(done.err)
    (run / "result.json").unlink()
    done = cli("fit", *DIGITS, "--max_steps", 3, "--run", run, "--resume")
    assert done.code == 4
    assert "it is no regular file" in one_line(done.err)
