"""`reproduce`: the same bits again, and the name of whatever is not what it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, one_line, picture

from host.errors import HostError
from train import reproduce
from train.process import supervisor
from train.record import environment, provenance, rundir, trace

SHORT = ["--config", "configs/digits.yaml", "--max_steps", 6, "--eval.every", 3, "--log.every", 2]


@pytest.fixture
def here(cli, monkeypatch, tmp_path):
    """Let `reproduce` train in this process instead of under a launcher; real training it is."""
    monkeypatch.setattr(rundir, "RUNS", tmp_path / "runs")

    def supervise(words: list[str], *, alone: bool) -> int:
        assert alone
        done = cli(*words[words.index("train") + 1 :])
        print(done.out, done.err)
        return done.code

    monkeypatch.setattr(supervisor, "supervise", supervise)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short finished run on a folder of pictures."""
    from train.__main__ import main

    home = tmp_path_factory.mktemp("trained")
    for split, count in (("train", 12), ("validation", 3)):
        for name, value in (("dark", 60), ("light", 200)):
            for number in range(count):
                picture(home / "data" / split / name / f"{number}.png", value)
    words = [
        *SHORT,
        "--data.source",
        "folder",
        "--data.root",
        home / "data",
        "--batch_size",
        8,
        "--lanes",
        8,
    ]
    assert main([str(w) for w in ("fit", *words, "--run", home / "run")]) == 0
    return home / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of it to tamper with."""
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def change(run: Path, *path: str, to: Any) -> None:
    """Change a value of run.json."""
    manifest = json.loads((run / "run.json").read_text())
    place = manifest
    for name in path[:-1]:
        place = place[name]
    assert path[-1] in place
    place[path[-1]] = to
    (run / "run.json").write_text(json.dumps(manifest))


def test_the_same_bits(run, cli, here) -> None:
    done = cli("reproduce", run)
    assert done.code == 0, done.err
    digest = json.loads((run / "result.json").read_text())["weights_sha256"]
    assert f"same bits: all 6 steps, all figures, and weights {digest}, on 1 process" in done.out
    assert "not as recorded" not in done.out


def test_what_differs_is_named_even_when_the_bits_are_the_same(run, cli, here) -> None:
    change(run, "hardware", "threads", to=4)
    change(run, "versions", "torch", to="2.14.0")
    change(run, "hardware", "cpu_capability", to="AVX9")
    change(run, "environment", to={"GLIBC_TUNABLES": "x"})
    done = cli("reproduce", run)
    assert done.code == 0, done.err
    for says in (
        "threads: 4 recorded, 1 now",
        "package torch: 2.14.0 recorded",
        "cpu_capability: AVX9 recorded",
        "variable GLIBC_TUNABLES: x recorded, none now",
    ):
        assert f"not as recorded: {says}" in done.out
    assert "same bits" in done.out


def test_another_seed_in_the_record_is_refused_and_gives_other_bits(run, cli, here) -> None:
    change(run, "config", "seed", to=1)
    refused = cli("reproduce", run)
    assert refused.code == 2
    assert "contradicts itself: seed is 1 in run.json and 0 in config.yaml" in one_line(refused.err)
    different = cli("reproduce", run, "--anyway")
    assert different.code == 7
    assert "not the same bits: step 1 is the first that differs" in one_line(different.err)
    assert "seed is 1 in run.json" in different.err


def test_one_changed_pixel_is_refused_and_found(trained, run, cli, here, tmp_path) -> None:
    from PIL import Image

    shutil.copytree(trained.parent / "data", tmp_path / "data")
    image = Image.open(tmp_path / "data/train/dark/3.png")
    image.putpixel((2, 2), 255 - image.getpixel((2, 2)))
    image.save(tmp_path / "data/train/dark/3.png")
    refused = cli("reproduce", run, "--data.root", tmp_path / "data")
    assert refused.code == 3
    assert "is not what" in one_line(refused.err)
    different = cli("reproduce", run, "--data.root", tmp_path / "data", "--anyway")
    assert different.code == 7
    assert "data: " in one_line(different.err)


def test_changed_code_is_refused_by_name(run, cli, here, monkeypatch) -> None:
    change(run, "code", "train/loop.py", to="0" * 64)
    change(run, "code", "train/learn/optim.py", to="0" * 64)
    refused = cli("reproduce", run)
    assert refused.code == 2
    assert "the code changed since: train/learn/optim.py, train/loop.py (" in one_line(refused.err)
    change(run, "git", "diff_sha256", to="0" * 64)
    change(run, "git", "commit", to="1" * 40)
    refused = one_line(cli("reproduce", run).err)
    assert "ran commit 111111111111 with changes that were not committed" in refused
    assert "git checkout" not in refused
    done = cli("reproduce", run, "--anyway")
    assert done.code == 0
    assert "not as recorded: code train/loop.py: 000000000000 recorded" in done.out


def test_a_step_that_differs_is_found(run, cli, here) -> None:
    """Another machine would differ somewhere in the middle: the record of step 4 is changed."""
    figures = trace.read(run)
    figures[4] = (figures[4][0], float.hex(float.fromhex(figures[4][1]) * (1 + 2**-20)))
    lines = [f"{n},{loss},{norm}\n" for n, (loss, norm) in figures.items()]
    (run / "trace.csv").write_text("step,loss,grad_norm\n" + "".join(lines))
    done = cli("reproduce", run)
    assert done.code == 7
    assert "step 4 is the first that differs; nothing that is recorded differs" in done.err


def test_weights_that_are_not_those_of_the_record(run, cli, here) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "weights_sha256": "0" * 64}))
    refused = cli("reproduce", run)
    assert refused.code == 2
    assert "result.json gives another weights_sha256" in refused.err
    different = cli("reproduce", run, "--anyway")
    assert different.code == 7
    assert "only the final weights differ" in different.err


@pytest.mark.parametrize(
    ("name", "says"),
    [("top1", "top1 is 0.99 in its record"), ("confusion", "confusion is 0.99 in its record")],
)
def test_a_forged_figure_is_found(run, cli, here, name, says) -> None:
    result = json.loads((run / "result.json").read_text())
    result["metrics"][name] = 0.99
    (run / "result.json").write_text(json.dumps(result))
    done = cli("reproduce", run)
    assert done.code == 7
    assert f"the weights are the same, and {says}" in one_line(done.err)


def test_a_forged_evaluation_on_the_way_is_found(run, cli, here) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["kind"] == "eval")
    first["loss"] = 0.001
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = cli("reproduce", run)
    assert done.code == 7
    assert "loss at step 3 is 0.001 in its record" in one_line(done.err)
    (run / "metrics.jsonl").unlink()  # lost, and not forged
    assert cli("reproduce", run).code == 0


def test_what_cannot_be_reproduced(run, cli, tmp_path) -> None:
    assert cli("reproduce", tmp_path / "none").code == 2
    (tmp_path / "old").mkdir()
    (tmp_path / "old/run.json").write_text('{"config": {}}')
    old = cli("reproduce", tmp_path / "old")
    assert old.code == 2
    assert "it has no attempts, code, git, hardware, versions" in one_line(old.err)
    change(run, "reproducibility", to="deterministic")
    change(run, "config", "reproducibility", to="deterministic")
    (run / "config.yaml").unlink()
    shutil.rmtree(run / "checkpoints")
    other = cli("reproduce", run, "--cpus", 2)
    assert other.code == 2
    assert "at `deterministic` another number gives other bits → use 1" in one_line(other.err)
    many = cli("reproduce", run, "--cpus", 64)
    assert "--lanes" not in one_line(many.err)
    (run / "result.json").write_text('{"status": "stopped"}')
    unfinished = cli("reproduce", run)
    assert unfinished.code == 2
    assert "has not finished" in one_line(unfinished.err)


def test_a_training_that_fails_again_keeps_its_code(run, cli, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(rundir, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(supervisor, "supervise", lambda words, alone: 75)
    assert cli("reproduce", run).code == 75


def test_devices_and_precision_come_from_the_record_unless_asked_for(run) -> None:
    manifest = json.loads((run / "run.json").read_text())
    config = reproduce.parse({**manifest["config"], "numerics": "native"}, "run.json")

    def words(**free: int | None) -> str:
        planned = reproduce._plan(config, manifest, free.get("cpus"), free.get("gpus"))
        return " ".join(planned.words)

    assert words().endswith("/cpu.yaml")
    assert "multi_cpu.yaml --num_processes 4" in words(cpus=4)
    manifest["hardware"]["mixed_precision"] = "bf16"
    manifest["world_size"] = 2
    assert "--num_processes 2 --mixed_precision bf16" in words()
    manifest["hardware"]["type"] = "cuda"
    with pytest.raises(HostError, match="GPUS=2"):
        words()


def test_no_secret_is_recorded() -> None:
    variables = {
        "OMP_PROC_BIND": "true", "CUDA_API_KEY": "s3cret", "TORCH_HUB_TOKEN": "s3cret",
        "NCCL_PASSWORD": "s3cret", "WANDB_API_KEY": "s3cret", "HOME": "/home/me",
    }  # fmt: skip
    assert environment.recorded(variables) == {"OMP_PROC_BIND": "true"}


@pytest.mark.parametrize(
    "value",
    [
        "http://user:s3cret@host/", "redis://:s3cret@host", "user:s3cret@host",
        "sv=2024-11-04&sig=s3cret%3D", "x?token=s3cret", "plain http://host/s3cret",
    ],
)  # fmt: skip
def test_a_value_that_may_hold_a_secret_is_recorded_as_a_digest(value) -> None:
    found = environment.recorded({"NCCL_ALGO": value})["NCCL_ALGO"]
    assert found.startswith("sha256:")
    assert found != environment.recorded({"NCCL_ALGO": f"{value}!"})["NCCL_ALGO"]


@pytest.mark.parametrize(
    "value",
    ["", "1", "X86_V4 AVX512_ICL", "{0:4}:2", "granularity=fine,compact,1,0", "/opt/lib:/usr/lib",
     "glibc.cpu.hwcaps=-AVX2,-ERMS", "[::1]", "0-3,8", "max_split_size_mb:128", "^lo,docker0"],
)  # fmt: skip
def test_a_setting_is_recorded_as_it_is(value) -> None:
    assert environment.recorded({"NCCL_ALGO": value}) == {"NCCL_ALGO": value}
    # What no library documents may be anything.
    assert environment.recorded({"NCCL_FOO": value})["NCCL_FOO"].startswith("sha256:")


def test_the_record_names_this_code_and_these_packages() -> None:
    code = provenance.code()
    assert "train/data/loader.py" in code
    files = [p for name in ("host", "train") for p in (ROOT / name).rglob("*.py")]
    assert set(code) == {str(p.relative_to(ROOT)) for p in files}
    assert "host/limits.py" in code  # it chooses threads
    assert {"python", "torch", "torchvision", "numpy", "safetensors"} <= set(provenance.versions())
