import fcntl
import io
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest
from conftest import DIGITS, ROOT
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from host.errors import UsageError
from train.config import Config
from train.record import silence, trace
from train.record.display import Display
from train.record.online import check_key, started
from train.record.recorder import Recorder


def record(run, steps, *, first=0, measured=0, **knobs) -> None:
    config = Config(batch_size=8, lanes=1, **knobs)
    display = Display(1, 100)
    place = {"step": first, "seconds": first * 0.5, "per_epoch": 80, "samples": 800}
    place["measured"] = measured
    with (
        started(run, "0123456789abcdef", config) as online,
        Recorder(run, config, display, online=online, **place) as recorder,
    ):
        for step in steps:
            recorder.train(step, step * 0.5, 0.1, [1 / step, 0.5], 2.0)
        recorder.trace(steps[0], [(1 / step, 2.0) for step in steps])
        recorder.evaluation(steps[-1], {"loss": 1.0, "top1": 0.9, "top5": 1.0}, best=True)


def lines(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_lines_hold_what_the_contract_names(tmp_path) -> None:
    record(tmp_path, [1, 2, 3])
    *train, last = lines(tmp_path)
    common = {"kind", "step", "epoch", "samples", "time"}
    for line in train:
        assert common | {"loss", "lr", "grad_norm", "samples_per_second"} <= set(line)
        assert line["kind"] == "train"
    for line in train:
        assert line["samples_per_second"] == pytest.approx(16)  # 8 samples in half a second
    assert (train[1]["samples"], train[1]["epoch"]) == (16, 0.2)
    assert last["kind"] == "eval"
    assert common | {"loss", "top1", "top5"} <= set(last)


def test_going_on_drops_later_lines_and_a_torn_one(tmp_path) -> None:
    record(tmp_path, [1, 2, 3, 4, 5])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    with (tmp_path / "trace.csv").open("a") as file:
        file.write("6,0x1.8")
    record(tmp_path, [4, 5, 6], first=3)
    steps = [line["step"] for line in lines(tmp_path) if line["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]
    found = trace.read(tmp_path)
    assert list(found) == steps
    assert [float.fromhex(loss) for loss, _ in found.values()] == [1 / step for step in steps]


def test_an_evaluation_that_no_checkpoint_knows_is_dropped(tmp_path) -> None:
    """It is done again, and must not stand there twice."""
    record(tmp_path, [1, 2])
    record(tmp_path, [3, 4], first=2, measured=2)
    record(tmp_path, [5], first=4, measured=2)
    evaluations = [line["step"] for line in lines(tmp_path) if line["kind"] == "eval"]
    assert evaluations == [2, 5]


def test_tensorboard_holds_the_same_points(tmp_path) -> None:
    record(tmp_path, [1, 2, 3])
    train, held = (
        EventAccumulator(str(tmp_path / "tensorboard" / name)).Reload()
        for name in ("train", "validation")
    )
    assert {"loss", "top1", "lr", "grad_norm"} <= set(train.Tags()["scalars"])
    assert {"loss", "top1", "top5"} == set(held.Tags()["scalars"])  # of one name: in one chart
    points = {p.step: p.value for p in train.Scalars("loss")}
    assert points == pytest.approx({1: 1.0, 2: 0.5, 3: 1 / 3})
    told = held.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    known = HParamsPluginData.FromString(told).session_start_info.hparams
    assert known["optim.lr"].number_value == pytest.approx(0.1)
    assert known["model.name"].string_value == "convnet"
    assert "data.workers" not in known  # decides nothing


def test_json_has_no_infinity(tmp_path) -> None:
    display = Display(1, 10)
    place = {"step": 0, "seconds": 0.0, "measured": 0, "per_epoch": 8, "samples": 80}
    with Recorder(tmp_path, Config(), display, online=None, **place) as recorder:
        recorder.train(1, 0.1, 0.1, [1.0, 0.5], math.inf)
    assert lines(tmp_path)[0]["grad_norm"] is None


@pytest.mark.slow
def test_wandb_offline_needs_neither_key_nor_network(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    run = tmp_path / "20261121-000000-abcdef01"
    run.mkdir()
    for first, steps in ((0, [1, 2]), (2, [3, 4])):
        record(run, steps, first=first, wandb={"mode": "offline"})
    kept = [path.name for path in (run / "wandb").glob("offline-run-*/run-*.wandb")]
    # One id, so that both parts end up in one curve.
    assert kept == ["run-0123456789abcdef.wandb"] * 2


@pytest.mark.slow
def test_pictures_and_the_report_go_where_figures_go(tmp_path, cli, monkeypatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    run = tmp_path / "run"
    knobs = ["--max_steps", 3, "--wandb.mode", "offline", "--log.report", "true"]
    assert cli("fit", *DIGITS, *knobs, "--run", run).code == 0
    for name, tag in (("train", "inputs"), ("validation", "confusion")):
        board = EventAccumulator(str(run / "tensorboard" / name)).Reload()
        assert board.Tags()["images"] == [tag]
        (shown,) = board.Images(tag)
        with Image.open(io.BytesIO(shown.encoded_image_string)) as picture:
            assert picture.width > 300
            if tag == "confusion":  # light where nothing is, ink on the diagonal of what is right
                assert picture.getextrema() != ((255, 255),) * 3
    (kept,) = (run / "wandb").glob("offline-run-*")
    media = {path.name.split("_")[0] for path in kept.glob("files/media/images/*.png")}
    assert media == {"inputs", "confusion"}
    identity = json.loads((run / "run.json").read_text())["id"]
    (log,) = kept.glob("*.wandb")
    assert f"report-{identity}".encode() in log.read_bytes()


def test_wandb_online_without_a_key_is_an_error(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="WANDB_API_KEY"):
        check_key(Config(wandb={"mode": "online"}))
    monkeypatch.setenv("WANDB_API_KEY", "from .env")
    check_key(Config(wandb={"mode": "online"}))


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "curves"), [(50, False), (80, True), (120, True)])
def test_the_bar_fits_the_terminal_and_moves_with_each_step(tmp_path, columns, curves) -> None:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    knobs = ["--max_steps", "20", "--log.every", "10"]
    words = [sys.executable, "-m", "train", "fit", *DIGITS, *knobs]
    env = {**os.environ, "TERM": "xterm-256color", "ACCELERATE_USE_CPU": "true"}
    env.pop("COLUMNS", None)
    said = b""
    with subprocess.Popen(
        [*words, "--run", str(tmp_path / "run")], stdin=terminal, stdout=terminal, stderr=terminal,
        env=env, cwd=ROOT,
    ) as process:  # fmt: skip
        os.close(terminal)
        with suppress(OSError):  # the terminal's other side is closed
            while part := os.read(screen, 1 << 16):
                said += part
    os.close(screen)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    bars = [line for line in re.split(r"[\r\n]+", text) if " left " in line]
    assert all(len(line) <= columns for line in bars)
    assert re.search(r"20/20 .*left 0:00:00", bars[-1])
    assert (re.search(r"^speed .*samples/s +memory", text, re.MULTILINE) is not None) == curves
    assert "…" not in bars[-1]
    # More places than the two that are logged.
    assert len({re.search(r"(\d+)/20", line)[1] for line in bars}) > 3


def test_what_takes_long_is_told_and_what_does_not_is_not(capsys, monkeypatch) -> None:
    monkeypatch.setattr(silence, "_AFTER", 0.05)
    with silence.told("counting", main=True):
        time.sleep(0.5)
    assert capsys.readouterr().out == "counting\n"
    with silence.told("counting", main=False):
        time.sleep(0.2)
    monkeypatch.setattr(silence, "_AFTER", 60)
    with silence.told("counting", main=True):
        pass
    assert not capsys.readouterr().out


def test_a_part_of_an_epoch_ends_where_it_says() -> None:
    display = Display(1024 / 1638, 2)
    assert display._where(1024 / 1638) == "epoch 0.63/0.63"
