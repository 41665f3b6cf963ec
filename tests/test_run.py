"""`fit` and `evaluate` from end to end, in this process."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import DIGITS, one_line
from torch import nn
from torchvision.models import resnet18

from train import journal
from train.config import Config
from train.doubts import ends_in, larger_lanes
from train.learn import models
from train.record import manifest, rundir
from train.record.checkpoint import read
from train.record.writer import write

SHORT = [*DIGITS, "--max_steps", 12, "--eval.every", 6, "--checkpoint.every", 4, "--log.every", 1]


def result(run) -> dict:
    return json.loads((run / "result.json").read_text())


def lines(run) -> list[dict]:
    """Its records but for the machine's health, which depends on the clock, and warnings."""
    rows = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] not in ("health", "warning")]


def test_a_run_directory_holds_what_the_contract_names(finished) -> None:
    assert {p.name for p in finished.iterdir()} == {
        "run.json", "config.yaml", "metrics.jsonl", "result.json", "checkpoints", "tensorboard",
        "trace.csv", "predictions.csv", "report.html",
    }  # fmt: skip
    found = result(finished)
    assert found["status"] == "finished"
    assert (found["steps"], found["samples"]) == (20, 2560)
    assert found["samples_per_second"] == pytest.approx(2560 / found["seconds"], rel=0.01)
    assert re.fullmatch("[0-9a-f]{64}", found["weights_sha256"])
    assert set(found["metrics"]) >= {"loss", "top1", "top5", "per_class", "confusion"}
    assert found["best"]["step"] in (10, 20)
    record = json.loads((finished / "run.json").read_text())
    assert set(record) >= {
        "world_size", "lanes", "reproducibility", "config", "hardware", "git", "lock_sha256",
        "data_sha256", "versions", "command", "exit_code",
    }  # fmt: skip
    assert (record["world_size"], record["lanes"], record["exit_code"]) == (1, 8, 0)
    assert (record["micro_batch"], record["accumulation"]) == (16, 8)
    assert record["reproducibility"] == "lockstep"
    assert record["hardware"]["threads"] == 1
    assert re.fullmatch("[0-9a-f]{64}", record["lock_sha256"])
    assert record["versions"]["torch"] == torch.__version__.split("+")[0]


def test_the_same_again_is_the_same_bits(finished, cli, tmp_path) -> None:
    """The resolved config of one run starts the other."""
    done = cli("fit", "--config", finished / "config.yaml", "--run", tmp_path / "again")
    assert done.code == 0
    assert result(tmp_path / "again")["weights_sha256"] == result(finished)["weights_sha256"]
    trace = [
        [(line["step"], line["loss"], line.get("grad_norm")) for line in lines(run)]
        for run in (finished, tmp_path / "again")
    ]
    assert trace[0] == trace[1]
    assert len(trace[0]) == 22


@pytest.mark.slow
def test_another_seed_is_another_result(finished, cli, tmp_path) -> None:
    config = finished / "config.yaml"
    assert cli("fit", "--config", config, "--run", tmp_path / "b", "--seed", 1).code == 0
    assert result(tmp_path / "b")["weights_sha256"] != result(finished)["weights_sha256"]


def test_evaluate_gives_the_run_s_figures_again(finished, cli) -> None:
    by_run = json.loads(cli("evaluate", "--run", finished).out)
    by_checkpoint = json.loads(cli("evaluate", "--checkpoint", finished / "checkpoints/latest").out)
    figures = result(finished)["metrics"]
    for found in (by_run, by_checkpoint):
        assert {name: found[name] for name in figures} == figures
        assert found["step"] == 20
    middle = json.loads(cli("evaluate", "--checkpoint", finished / "checkpoints/step-00000010").out)
    [line] = [ln for ln in lines(finished) if (ln["kind"], ln["step"]) == ("eval", 10)]
    assert (middle["loss"], middle["top1"]) == (line["loss"], line["top1"])


def test_a_moved_checkpoint_can_still_be_evaluated(finished, cli, tmp_path) -> None:
    shutil.copytree(finished / "checkpoints/step-00000020", tmp_path / "elsewhere")
    done = cli("evaluate", "--checkpoint", tmp_path / "elsewhere")
    assert json.loads(done.out)["top1"] == result(finished)["metrics"]["top1"]


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, last: int) -> Iterator[None]:
    """Within, a run dies after the update of step `last`, before anything is saved of it."""
    real = journal.Journal.keep

    def keep(self, report, norm):
        if self.state.step == last:
            raise KeyboardInterrupt
        real(self, report, norm)

    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "keep", keep)
        yield


CASES = {
    "sgd, batch norm, augmentation": [],
    "adamw": ["--optim.name", "adamw", "--optim.lr", 0.002],
    "dropout": ["--model.name", "dropnet"],
    "clipping": ["--optim.clip", 0.5],
    "workers": ["--data.workers", 2],
    "deterministic": ["--reproducibility", "deterministic"],
}


QUICK = "dropout"


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param(knobs, id=name, marks=[pytest.mark.slow] * (name != QUICK))
        for name, knobs in CASES.items()
    ],
)
def test_stopped_and_continued_ends_in_the_same_bits(cli, tmp_path, monkeypatch, knobs) -> None:
    """A run that dies at step 7 goes on from the last checkpoint, that of step 6."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli("fit", *SHORT, *knobs, "--run", whole).code == 0

    with dying(monkeypatch, 7):
        assert cli("fit", *SHORT, *knobs, "--run", broken, "--resume").code == 130
    assert result(broken)["status"] == "failed"
    assert json.loads((broken / "run.json").read_text())["exit_code"] == 130
    done = cli("fit", *SHORT, *knobs, "--run", broken, "--resume")
    assert done.code == 0
    assert "going on after step 6" in done.out  # saved because it was the best so far
    assert result(broken)["weights_sha256"] == result(whole)["weights_sha256"]
    assert result(broken)["metrics"] == result(whole)["metrics"]
    assert result(broken)["best"] == result(whole)["best"]
    steps = [(line["kind"], line["step"]) for line in lines(broken)]
    assert len(steps) == len(set(steps)) == 14


@pytest.mark.slow
def test_resume_without_a_value_finds_the_newest_unfinished_run(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rundir, "RUNS", tmp_path)
    with dying(monkeypatch, 5):
        assert cli("fit", *SHORT).code == 130
    assert cli("fit", *SHORT, "--resume").code == 0
    [run] = (tmp_path / "digits").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", run.name)
    assert result(run)["status"] == "finished"
    # Another start is another directory, even within a second.
    assert cli("fit", *SHORT).code == 0
    assert cli("fit", *SHORT).code == 0
    assert len(list((tmp_path / "digits").iterdir())) == 3


def test_a_misspelt_run_that_is_to_go_on_has_a_hint(tmp_path, capsys) -> None:
    for name in ("pictures", "seed-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    for name in ("pictues", "seed-2", "other"):
        assert rundir.choose(Config(), tmp_path / name, resume=True) == tmp_path / name
    said = one_line(capsys.readouterr().err)
    assert said.endswith("pictues to continue; did you mean pictures? A new one begins")


def test_a_finished_run_is_left_as_it_is(finished, cli) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    config = finished / "config.yaml"
    refused = cli("fit", "--config", config, "--run", finished)
    assert refused.code == 2
    assert "already holds a finished run" in refused.err
    assert cli("fit", "--run", finished, "--resume").code == 0
    assert cli("fit", "--config", config, "--resume", finished).code == 0
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_a_run_begins_with_an_experiment_or_not_at_all(finished, tmp_path, cli) -> None:
    (tmp_path / "early").mkdir()  # as a kill in the first second leaves it
    for name in ("early", finished.name + "x"):
        done = cli(
            "fit",
            "--run",
            (tmp_path if name == "early" else finished.parent) / name,
            "--resume",
            "--optim.lr",
            0.1,
        )
        assert done.code == 2
        assert "holds no run to go on with" in one_line(done.err)
        assert "its experiment: CONFIG=FILE" in done.err
        assert (f"did you mean {finished}?" in done.err) is (name != "early")


def test_knobs_that_do_not_decide_the_result_may_change_on_resume(finished, cli) -> None:
    config = finished / "config.yaml"
    free = cli("fit", "--config", config, "--run", finished, "--resume", "--data.workers", 2)
    assert free.code == 0
    other = cli("fit", "--config", config, "--run", finished, "--resume", "--optim.lr", 0.2)
    assert other.code == 2
    assert "was started with optim.lr 0.1, and not 0.2" in other.err
    assert (
        "go on with --optim.lr 0.1, or with RUN= and --resume alone, or start a new run"
        in one_line(other.err)
    )
    other = cli("fit", "--config", "configs/cifar10.yaml", "--run", finished, "--resume")
    assert "go on with RUN= and --resume alone, which take its own knobs" in one_line(other.err)
    assert re.search(r"; and [1-9]\d* more → ", other.err)
    assert cli("fit", "--run", finished, "--resume").code == 0


@pytest.mark.parametrize("edited", ["config.yaml", "run.json", "both"])
def test_an_edited_experiment_is_not_believed_on_resume(finished, cli, tmp_path, edited) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "result.json").unlink()
    text = (run / "config.yaml").read_text()
    manifest = json.loads((run / "run.json").read_text())
    if edited != "run.json":
        (run / "config.yaml").write_text(text.replace("seed: 0", "seed: 3"))
    if edited != "config.yaml":
        manifest["config"]["seed"] = 3
        (run / "run.json").write_text(json.dumps(manifest))
    done = cli("fit", "--run", run, "--resume")
    assert done.code == 2
    who = "the last checkpoint of" if edited == "both" else ""
    was, now = ("3", "0") if edited == "run.json" else ("0", "3")
    assert f"with seed {was}, and not {now}" in one_line(done.err)
    assert who in done.err


def test_a_damaged_checkpoint_is_skipped_on_resume(finished, cli, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    (run / "result.json").unlink()
    path = run / "checkpoints/step-00000020/optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = cli("fit", "--run", run, "--resume")
    assert done.code == 0
    assert "step-00000020/optimizer.safetensors is damaged" in done.out
    assert "going on after step 15" in done.out
    assert result(run)["weights_sha256"] == result(finished)["weights_sha256"]


def test_other_data_than_the_run_s_is_refused_on_resume(cli, folder, tmp_path) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    words = ["fit", *SHORT, "--data.source", "folder", "--data.root", data, "--run", tmp_path / "r"]
    words += ["--batch_size", 8]
    assert cli(*words).code == 0
    (tmp_path / "r/result.json").unlink()
    shutil.copy(data / "train/dark/0.png", data / "train/dark/1.png")
    done = cli(*words, "--resume")
    assert done.code == 3
    assert "not what" in done.err
    warned = cli("evaluate", "--run", tmp_path / "r")
    assert warned.code == 0
    assert "warning: the data is not what" in warned.err


def test_data_that_moved_is_found_by_root(cli, folder, tmp_path) -> None:
    run, moved = tmp_path / "r", tmp_path / "moved"
    shutil.copytree(folder, tmp_path / "here")
    words = ["--data.source", "folder", "--data.root", tmp_path / "here", "--batch_size", 8]
    assert cli("fit", *SHORT, *words, "--run", run).code == 0
    (tmp_path / "here").rename(moved)
    assert cli("evaluate", "--run", run).code == 3
    done = cli("evaluate", "--run", run, "--data.root", moved)
    assert json.loads(done.out)["top1"] == result(run)["metrics"]["top1"]


@pytest.mark.slow
def test_it_learns_from_a_folder_of_colour_pictures_with_a_torchvision_model(cli, tmp_path) -> None:
    """The CIFAR-10 recipe on a handful of pictures, and a short last batch with empty lanes."""
    from conftest import picture

    for split, count in (("train", 11), ("test", 3)):
        for name, value in (("dark", 50), ("light", 210)):
            for number in range(count):
                picture(tmp_path / "data" / split / name / f"{number}.png", value, (32, 32), "RGB")
    done = cli(
        "fit", "--config", "configs/cifar10.yaml", "--run", tmp_path / "run", "--data.source",
        "folder", "--data.root", tmp_path / "data", "--batch_size", 8, "--epochs", 1.2,
        "--optim.lr", 0.02, "--optim.warmup", 0,
    )  # fmt: skip
    assert done.code == 0
    assert result(tmp_path / "run")["samples"] == 26
    assert read(tmp_path / "run/checkpoints/latest").model["fc.weight"].shape == (2, 512)


class Sinks(nn.Module):
    """A net whose outputs are no numbers from the third training step on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = models.OURS["mlp"](10, (1, 8, 8))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += self.training
        return self.inner(x) * torch.where(self.steps > 2, float("nan"), 1.0)


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_last_good_one(
    cli, tmp_path, monkeypatch
) -> None:
    monkeypatch.setitem(models.OURS, "sinks", lambda *_: Sinks())
    done = cli(
        "fit", *DIGITS, "--model.name", "sinks", "--run", tmp_path / "r", "--checkpoint.every", 1,
        "--log.every", 50, "--max_steps", 9,
    )  # fmt: skip
    assert done.code == 5
    assert "not finite at step 3" in done.err
    kept = sorted(p.name for p in (tmp_path / "r/checkpoints").glob("step-*"))
    assert kept == ["step-00000001", "step-00000002"]
    read(tmp_path / "r/checkpoints/latest")
    assert result(tmp_path / "r")["status"] == "failed"
    assert json.loads((tmp_path / "r/run.json").read_text())["exit_code"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("level", ["fast", "deterministic", "lockstep"])
def test_every_level_trains(cli, tmp_path, level) -> None:
    run = tmp_path / level
    words = ["--reproducibility", level, "--numerics", "native", "--run", run]
    assert cli("fit", *SHORT, *words).code == 0
    assert lines(run)[0]["loss"] == pytest.approx(2.30, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        ["--model.channels_last", "true"],
        ["--optim.schedule", "step"],
        ["--optim.schedule", "linear", "--optim.warmup", 3],
        ["--augment.cutout", 2, "--augment.flip", "true"],
        ["--epochs", 0.1, "--max_steps", "null"],
    ],
    ids=lambda k: k[0],
)
def test_knobs_train(cli, tmp_path, knobs) -> None:
    assert cli("fit", *SHORT, *knobs, "--run", tmp_path / "r").code == 0


def launched(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """As Accelerate's launcher would start this process, on the CPU."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.mark.slow
def test_precision_stays_that_of_the_training(cli, tmp_path, monkeypatch) -> None:
    """A resume in another is refused; an evaluation takes the recorded one by itself."""
    run, native = tmp_path / "r", ["--numerics", "native", "--batch_size", 32]
    launched(monkeypatch, "bf16")
    with dying(monkeypatch, 7):
        assert cli("fit", *SHORT, *native, "--run", run).code == 130
    launched(monkeypatch, "no")
    refused = cli("fit", *SHORT, *native, "--run", run, "--resume")
    assert refused.code == 2
    assert "started with mixed precision bf16, and this is no → use PRECISION=bf16" in refused.err
    launched(monkeypatch, "bf16")
    assert cli("fit", *SHORT, *native, "--run", run, "--resume").code == 0
    launched(monkeypatch, "no")
    found = json.loads(cli("evaluate", "--run", run).out)
    figures = result(run)["metrics"]
    assert {name: found[name] for name in figures} == figures


def test_an_evaluation_in_another_precision_is_refused(finished, cli, monkeypatch) -> None:
    monkeypatch.setenv("PRECISION", "bf16")
    done = cli("evaluate", "--run", finished)
    assert done.code == 2
    assert "PRECISION=bf16, and weights are measured as they were trained: no" in one_line(done.err)


def test_an_fp16_run_is_measured_on_a_cpu_with_a_warning(finished, cli, tmp_path) -> None:
    """Its checkpoint says fp16; the bytes are those of an FP32 run, there being no GPU here."""
    found = read(finished / "checkpoints/latest")
    path = write(tmp_path, 20, found.model, found.parts, {**found.state, "mixed_precision": "fp16"})
    done = cli("evaluate", "--checkpoint", path)
    assert done.code == 0
    assert "warning: trained in FP16, which needs a GPU" in done.err
    assert json.loads(done.out)["top1"] == result(finished)["metrics"]["top1"]


def test_data_of_other_classes_or_sizes_cannot_be_evaluated_on(cli, folder, tmp_path) -> None:
    from conftest import picture

    data, run = tmp_path / "data", tmp_path / "r"
    shutil.copytree(folder, data)
    words = ["--data.source", "folder", "--data.root", data, "--batch_size", 8]
    assert cli("fit", *SHORT, *words, "--run", run).code == 0
    for split in ("train", "validation"):
        picture(data / split / "third" / "0.png", 130)
    done = cli("evaluate", "--run", run)
    assert done.code == 3
    assert "it has third as well" in one_line(done.err)
    for split in ("train", "validation"):
        shutil.rmtree(data / split / "dark")
        (data / split / "third").rename(data / split / "dim")
    assert "it has no dark and has dim as well" in one_line(cli("evaluate", "--run", run).err)
    (run / "result.json").unlink()
    done = cli("fit", *SHORT, *words, "--run", run, "--resume")
    assert done.code == 3
    assert "started on: it has no dark and has dim as well" in one_line(done.err)


@pytest.mark.slow
def test_weights_that_are_not_the_run_s_last_ones_are_told(finished, cli, tmp_path) -> None:
    run = tmp_path / "r"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "checkpoints" / rundir.name_of(20))
    for verb in ("evaluate", "export"):
        done = cli(verb, "--run", run)
        assert done.code == 0
        said = "came to step 20, and its newest checkpoint is that of step 15"
        assert said in done.err
    shutil.rmtree(run / "checkpoints")
    done = cli("evaluate", "--run", run)
    assert done.code == 2
    assert f"make reproduce RUN={run} trains this one again" in one_line(done.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small"),
    [("vgg11", False), ("densenet121", True), ("timm:vit_tiny_patch16_224", False)],
)
def test_a_smaller_stem_is_advised_where_there_is_one(cli, tmp_path, name, small) -> None:
    words = ["--numerics", "native", "--model.name", name, "--run", tmp_path / "r"]
    done = cli("fit", *DIGITS, *words)
    assert done.code == 2
    assert ("--model.stem small" in one_line(done.err)) == small
    if small:
        again = cli("fit", *DIGITS, *words, "--model.stem", "small", "--max_steps", 1)
        assert again.code == 0


def test_a_part_of_other_pictures_is_measured_and_told(cli, folder, tmp_path) -> None:
    """Class folders without a split: as in the training, a share of them is held out."""
    from conftest import picture

    words = ["--data.source", "folder", "--data.root", folder / "train", "--data.holdout", 0.25]
    run = tmp_path / "r"
    assert cli("fit", *SHORT, *words, "--batch_size", 8, "--run", run).code == 0
    assert cli("evaluate", "--run", run).err.count("warning") == 0
    shutil.copytree(folder / "train", tmp_path / "other")
    done = cli("evaluate", "--run", run, "--data.root", tmp_path / "other")
    assert done.code == 0, done.err
    assert "warning" not in done.err  # the same pictures, elsewhere
    picture(tmp_path / "other" / "dark" / "more.png", 60)
    done = cli("evaluate", "--run", run, "--data.root", tmp_path / "other")
    assert "a share of the pictures is held out, and only that is measured: 6 of 25" in done.err
    other = ["--data.root", tmp_path / "other"]
    done = cli("evaluate", "--run", run, *other, "--all")
    assert "on 25 images" in done.err
    assert "held out" not in done.err
    assert sum(map(sum, json.loads(done.out)["confusion"])) == 25
    # Where it would do nothing, or measure what was trained on, it is refused.
    for words in ([], ["--data.root", folder / "train"]):
        assert "were trained on" in one_line(cli("evaluate", "--run", run, *words, "--all").err)
    said = one_line(cli("evaluate", "--run", run, "--data.root", folder, "--all").err)
    assert "the data has a validation split of its own" in said
    shutil.copytree(folder, tmp_path / "both")
    picture(tmp_path / "both" / "validation" / "dark" / "more.png", 60)
    done = cli("evaluate", "--run", run, "--data.root", tmp_path / "both")
    assert (done.code, "held out" in done.err) == (0, False)


@pytest.mark.slow
def test_a_warm_up_that_takes_the_whole_run_is_warned_of(cli, tmp_path) -> None:
    for warmup, warned in ((6, True), (5, False)):
        words = ["--optim.warmup", warmup, "--max_steps", 5, "--run", tmp_path / str(warmup)]
        done = cli("fit", *DIGITS, *words)
        assert done.code == 0
        assert ("warning: the warm-up takes 6 steps, and the run has 5" in done.out) is warned
        assert ("set --optim.warmup 1 (about a tenth of the run)" in done.out) is warned
    words = ["--optim.warmup", 0, "--optim.warmup_epochs", 1, "--max_steps", 5]
    done = cli("fit", *DIGITS, *words, "--run", tmp_path / "epochs")
    assert "set --optim.warmup 1 and --optim.warmup_epochs 0 (about a tenth" in done.out


@pytest.mark.slow
@pytest.mark.parametrize(("every", "warned"), [(2, True), (1, False)])
def test_patience_that_ends_nothing_is_warned_of(cli, tmp_path, every, warned) -> None:
    words = ["--eval.patience", 2, "--eval.every", every, "--max_steps", 4, "--run", tmp_path / "r"]
    done = cli("fit", *DIGITS, *words)
    assert done.code == 0
    said = "eval.patience 2 ends nothing: an evaluation comes every 2 steps, and the run has 4"
    assert (said in done.out) is warned


@pytest.mark.slow
def test_steps_that_the_epochs_do_not_reach_are_warned_of(cli, tmp_path) -> None:
    for asked, warned in ((12, True), (11, False)):
        words = ["--epochs", 0.98, "--max_steps", asked, "--run", tmp_path / str(asked)]
        done = cli("fit", *DIGITS, *words)
        said = (
            "max_steps is 12, and the run ends after epochs: 0.98, which are 11 steps; --epochs 2"
        )
        assert (said in done.out) is warned, done.out


@pytest.mark.parametrize(
    ("batch", "lanes", "world", "wanted"),
    [(128, 8, 1, 2), (256, 8, 1, None), (128, 8, 4, None), (64, 4, 1, 1), (32, 2, 1, None)],
)
def test_larger_lanes_are_named_for_a_gpu(batch, lanes, world, wanted) -> None:
    assert larger_lanes(Config(batch_size=batch, lanes=lanes), world) == wanted


def test_code_that_changed_between_earlier_starts_is_told_at_each_later_one(tmp_path) -> None:
    told = []
    for step, digest in enumerate(("1", "2", "2", "2")):
        of = {"command": ["fit"], "world_size": 1, "code": {"train.loop": digest}}
        told.append(manifest.start(Config(), of, tmp_path, step))
    assert [one.changed for one in told] == [[], ["code train.loop: 1 recorded, 2 now"], [], []]
    said = ["code train.loop was 1, and 2 later"]
    assert [one.mixed for one in told] == [[], [], said, said]


def test_code_that_trained_no_step_is_none_of_a_run_s(tmp_path) -> None:
    between, first = ((0, "1"), (5, "2"), (5, "1"), (9, "1")), ((0, "1"), (0, "2"), (7, "2"))
    for name, starts in (("between", between), ("first", first)):
        (tmp_path / name).mkdir()
        for step, digest in starts:
            of = {"command": ["fit"], "world_size": 1, "code": {"train.loop": digest}}
            found = manifest.start(Config(), of, tmp_path / name, step)
        assert found.mixed == []


def test_what_a_model_ends_in() -> None:
    inner = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)))
    assert isinstance(ends_in(inner), nn.Softmax)
    assert isinstance(ends_in(nn.Sequential(inner, nn.Linear(2, 2))), nn.Linear)
    assert isinstance(ends_in(resnet18()), nn.Linear)
    assert ends_in(nn.Linear(2, 2)) is None
