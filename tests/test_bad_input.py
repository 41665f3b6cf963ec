"""Bad input: one line that says what is wrong and how to mend it, the documented code, no traceback."""

import os
import re
import subprocess
import sys

import pytest
from conftest import DIGITS, ROOT, one_line

FIT = ["fit", *DIGITS, "--max_steps", "2"]
TABLE = {
    "unknown key": ([*FIT, "--optim.lrr", "1"], 2, "--optim.lrr; did you mean --optim.lr"),
    "unknown key in a file": (["fit", "--config", "{tmp}/unknown.yaml"], 2, "unknown key sead; did you mean seed"),
    "unknown section": (["fit", "--config", "{tmp}/section.yaml"], 2, "unknown key optm; did you mean optim"),
    "wrong type": ([*FIT, "--optim.lr", "fast"], 2, "optim.lr = 'fast': .*number"),
    "wrong word": ([*FIT, "--optim.name", "adam"], 2, "optim.name = 'adam': input should be 'sgd', 'adamw', 'lamb' or 'muon'"),
    "out of range": ([*FIT, "--optim.lr", "-1"], 2, "optim.lr = '-1': .*greater than 0"),
    "not a number": ([*FIT, "--optim.lr", "nan"], 2, "optim.lr = 'nan': .*finite"),
    "broken YAML": (["fit", "--config", "{tmp}/broken.yaml"], 2, "not valid YAML at line 2, column"),
    "a key twice": (["fit", "--config", "{tmp}/twice.yaml"], 2, "line 2.*the key seed stands twice"),
    "no mapping": (["fit", "--config", "{tmp}/list.yaml"], 2, "holds no mapping"),
    "no such file": (["fit", "--config", "configs/digit.yaml"], 2, "no config file.*did you mean configs/digits.yaml\\?"),
    "a name of a file": (["fit", "--config", "digits"], 2, "no config file digits; did you mean configs/digits.yaml\\?"),
    "a decimal comma": ([*FIT, "--optim.lr", "0,01"], 2, "optim.lr = '0,01': .* → write 0.01"),
    "a directory": (["fit", "--config", "configs"], 2, "cannot read configs: Is a directory"),
    "no verb": ([], 2, "required: VERB"),
    "no such verb": (["fitt"], 2, "no verb fitt; did you mean fit"),
    "no such model": ([*FIT, "--model.name", "resnet81"], 2, "no model resnet81; did you mean resnet18"),
    "images too small": ([*FIT, "--model.name", "alexnet"], 2, "cannot take 8×8 images.*stem small"),
    "list with blanks": ([*FIT, "--optim.betas", "0.9", "0.99"], 2, "0.99 → a list is one word in brackets"),
    "batch over data": ([*FIT, "--batch_size", "4096"], 2, "4096 is larger than the 1436 training"),
    "batch and lanes over data": ([*FIT, "--batch_size", "4096", "--lanes", "4096"], 2, "use --batch_size 512 --lanes 64$"),
    "repeats over data": ([*FIT, "--batch_size", "4096", "--augment.repeats", "1024", "--augment.flip", "true"], 2, "--augment.repeats 512 or less"),
    "lanes": ([*FIT, "--lanes", "12"], 2, "lanes: 8 would do"),
    "no such data": ([*FIT, "--data.source", "no/such"], 3, "cannot be reached.*work offline.*hf download"),
    "a path as source": ([*FIT, "--data.source", "./here"], 3, "--data.source folder --data.root ./here"),
    "no root": ([*FIT, "--data.source", "folder"], 3, "add --data.root DIR"),
    "a lane of one": ([*FIT, "--augment.mixup", "1", "--batch_size", "16", "--lanes", "16"], 2, "set --lanes 8 or fewer"),
    "colours of grey": ([*FIT, "--augment.hue", "0.1"], 2, "augment.hue does nothing with grey pictures"),
    "nesterov": ([*FIT, "--optim.nesterov", "true", "--optim.momentum", "0"], 2, "nesterov does nothing with optim.momentum: 0"),
    "two warm-ups": ([*FIT, "--optim.warmup_epochs", "1"], 2, "are both set → set one of them"),
    "a run that is not there": ([*FIT, "--model.weights", "runs/no-such"], 2, "there is no runs/no-such → name the weights of a run"),
    "means of bytes": ([*FIT, "--data.mean", "[128]", "--data.std", "[60]"], 2, "divide means and deviations of 0 to 255"),
    "two sides": ([*FIT, "--data.size", "32x32"], 2, "→ give one number, the pixels of the shorter side"),
    "no directory": ([*FIT, "--data.source", "folder", "--data.root", "{tmp}/no"], 3, "no directory"),
    "empty directory": ([*FIT, "--data.source", "folder", "--data.root", "{tmp}/empty"], 3, "holds no pictures in class folders.*lay pictures out"),
    "label outside": ([*FIT, "--data.source", "folder", "--data.root", "{tmp}/outside"], 3, "class of the validation split has no training picture: 7"),
    "unwritable run": ([*FIT, "--run", "{tmp}/file/run"], 6, "cannot be written: Not a directory"),
    "no name for a run": ([*FIT, "--run", ""], 2, "the directory . holds .* and no run → name a new or"),
    "a run in configs": ([*FIT, "--run", "configs"], 2, "configs holds accelerate and no run"),
    "a run at the root": ([*FIT, "--run", "/"], 2, "/ holds .* and no run"),
    "finished run": ([*FIT, "--run", "{finished}"], 2, "already holds a finished run"),
    "unfinished run": ([*FIT, "--run", "{tmp}/unfinished"], 2, "an unfinished run → add --resume"),
    "two directories": ([*FIT, "--run", "a", "--resume", "b"], 2, "--run a and --resume b differ"),
    "nothing to resume": ([*FIT, "--resume", "{tmp}/no"], 2, "no run in .* to continue"),
    "no unfinished run": ([*FIT, "--name", "never", "--resume"], 2, "no unfinished run in runs/never"),
    "no key": ([*FIT, "--wandb.mode", "online"], 2, "no WANDB_API_KEY"),
    "diverged": ([*FIT, "--optim.lr", "1e30", "--optim.warmup", "0", "--max_steps", "9"], 5, "not finite at step [2-9] .*or set --optim.clip 1$"),
    "diverged though clipped": ([*FIT, "--optim.lr", "1e30", "--optim.warmup", "0", "--max_steps", "9", "--optim.clip", "1"], 5, "at step [2-9] → lower --optim.lr, or warm up longer$"),
    "no run": (["evaluate", "--run", "{tmp}/no"], 2, "no run with checkpoints"),
    "no checkpoint": (["evaluate", "--checkpoint", "{tmp}/no"], 4, "no checkpoint .* name best, latest, or a step-"),
    "truncated": (["evaluate", "--checkpoint", "{tmp}/truncated"], 4, "model.safetensors is damaged"),
    "flipped": (["evaluate", "--checkpoint", "{tmp}/flipped"], 4, "state.json is damaged"),
    "missing": (["evaluate", "--checkpoint", "{tmp}/missing"], 4, "optimizer.safetensors is missing"),
    "all damaged": (["fit", "--run", "{tmp}/damaged", "--resume"], 4, "no checkpoint under .* is whole"),
    "neither": (["evaluate"], 2, "there is no run in"),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory, finished) -> dict[str, str]:
    """Broken files and directories of each kind."""
    import shutil

    from datasets import DatasetDict
    from test_data import table

    tmp = tmp_path_factory.mktemp("bad")
    for name, text in {
        "unknown": "sead: 1", "section": "optm: {lr: 1}", "broken": "a: [1\nb: 2",
        "twice": "seed: 1\nseed: 2", "list": "- 1",
    }.items():  # fmt: skip
        (tmp / f"{name}.yaml").write_text(text)
    (tmp / "file").write_text("")
    (tmp / "empty").mkdir()
    DatasetDict(train=table([0, 1, 2]), test=table([0, 7])).save_to_disk(str(tmp / "outside"))
    last = finished / "checkpoints/step-00000020"
    for name in ("truncated", "flipped", "missing"):
        shutil.copytree(last, tmp / name)
    weights = tmp / "truncated/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    state = bytearray((tmp / "flipped/state.json").read_bytes())
    state[10] ^= 4
    (tmp / "flipped/state.json").write_bytes(state)
    (tmp / "missing/optimizer.safetensors").unlink()
    for name in ("unfinished", "damaged"):
        shutil.copytree(finished, tmp / name, symlinks=True)
        (tmp / name / "result.json").unlink()
    for path in (tmp / "damaged/checkpoints").glob("step-*/model.safetensors"):
        path.write_bytes(b"")
    return {"tmp": str(tmp), "finished": str(finished)}


@pytest.mark.parametrize("case", TABLE)
def test_bad_input(case, places, cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("train.record.rundir.RUNS", tmp_path / "runs")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    if "runs/never" in TABLE[case][2]:
        monkeypatch.setattr("train.record.rundir.RUNS", __import__("pathlib").Path("runs"))
    words, code, says = TABLE[case]
    done = cli(*(word.format(**places) for word in words))
    line = one_line(done.err)
    assert done.code == code, line
    assert line.startswith("error: ")
    assert " → " in line
    assert not list(tmp_path.glob("runs/*")) or code == 5, "an empty run directory was left"
    assert re.search(says, line), line


def test_debug_adds_the_traceback(cli, tmp_path) -> None:
    done = cli("fit", "--debug", "--config", tmp_path / "none.yaml")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("error: there is no config file")


@pytest.mark.slow
def test_a_real_process_says_one_line_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "train", *FIT, "--batch_size", "4096"], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "4096 is larger" in one_line(done.stderr)
    assert done.stdout == ""


def test_help_does_not_load_torch() -> None:
    """That it comes in under a second is measured, not tested; this is why it does."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "train", "--help"], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in loaded
    assert not loaded & {"torch", "numpy", "datasets", "accelerate"}


def test_settings_come_from_a_dot_env_file_and_the_environment_wins(
    cli, tmp_path, monkeypatch
) -> None:
    (tmp_path / ".env").write_text("LOCKSTEP_TEST_ONE=file\nLOCKSTEP_TEST_TWO=file\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_TEST_TWO", "environment")
    cli("evaluate")
    assert os.environ["LOCKSTEP_TEST_ONE"] == "file"
    assert os.environ["LOCKSTEP_TEST_TWO"] == "environment"


@pytest.mark.parametrize("verb", ["evaluate", "reproduce"])
def test_another_place_for_data_that_has_none(tmp_path, cli, verb) -> None:
    run = tmp_path / "run"
    assert cli("fit", *DIGITS, "--max_steps", 2, "--run", run).code == 0
    done = cli(verb, *(["--run"] * (verb == "evaluate")), run, "--data.root", tmp_path)
    assert done.code == 2
    assert "--data.root does nothing with data.source: digits" in one_line(done.err)


def test_images_on_a_gpu_where_there_is_none(tmp_path, cli) -> None:
    done = cli("fit", *DIGITS, "--data.cache_on", "gpu", "--run", tmp_path / "run")
    assert done.code == 2
    assert "data.cache_on: gpu, and this training is on the CPU → --data.cache_on host" in one_line(
        done.err
    )
