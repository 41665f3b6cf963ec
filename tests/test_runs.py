"""`runs`: what there is, in each state that a run can be in."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, one_line

HELD = """
import sys, time
from pathlib import Path
from train.record import lock
with lock.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def runs(finished, tmp_path, monkeypatch) -> Path:
    """Runs that finished, were stopped, ended without a word and are damaged."""
    root = tmp_path / "runs"
    for number, name in enumerate(("a/finished", "a/stopped", "b/ended", "c/damaged")):
        shutil.copytree(finished, root / name, symlinks=True)
        changed(root / name / "run.json", started=f"2026-01-0{number + 1}T00:00:00+00:00")
    changed(
        root / "a/stopped/result.json", status="stopped", metrics={"top1": 0.125}, seconds=1234.5
    )
    (root / "b/ended/result.json").unlink()
    (root / "c/damaged/run.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    return root


def names(text: str) -> list[str]:
    return [json.loads(line)["run"] for line in text.splitlines()]


def test_each_is_listed_with_its_state(cli, runs, finished) -> None:
    done = cli("runs")
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head.split() == [
        "run", "status", "top-1", "best", "steps", "seconds", "processes", "seed", "weights", "age"
    ]  # fmt: skip
    result = json.loads((finished / "result.json").read_text())
    said = {line.split()[0]: line for line in lines}
    assert [line.split()[1] for line in lines] == ["damaged", "finished", "stopped", "ended"]
    assert f"{100 * result['metrics']['top1']:.2f} %" in said["runs/a/finished"]
    assert result["weights_sha256"][:8] in said["runs/a/finished"]
    assert "12.50 %" in said["runs/a/stopped"]
    assert "1,234" in said["runs/a/stopped"]
    # Of one that was killed: what it had written down.
    assert f"{100 * result['metrics']['top1']:.2f} %" in said["runs/b/ended"]
    assert f" {result['steps']} " in said["runs/b/ended"]


def test_one_that_was_stopped_shows_what_it_had_measured(cli, runs, finished) -> None:
    result = json.loads((finished / "result.json").read_text())
    changed(runs / "a/stopped/result.json", metrics={}, best={}, seconds=2, steps=15)
    row = next(line for line in cli("runs").out.splitlines() if " stopped " in line)
    assert f"{100 * result['metrics']['top1']:.2f} %" in row
    assert " 15 " in row
    done = cli("runs", "stopped", "ended")
    assert (done.code, done.out) == (2, "")
    assert "there is no such run with all of stopped, ended in runs; it has 4 others" in done.err


def test_lines_of_json_have_what_the_files_say(cli, runs, finished) -> None:
    result = json.loads((finished / "result.json").read_text())
    (line,) = cli("runs", "--json", "finished").out.splitlines()
    said = json.loads(line)
    assert said["run"] == "runs/a/finished"
    assert said["weights"] == result["weights_sha256"]
    assert said["top1"] == result["metrics"]["top1"]
    assert said["best"] == result["best"]["top1"]
    assert (said["steps"], said["seconds"]) == (20, result["seconds"])
    assert (said["processes"], said["seed"]) == (1, 0)


def test_they_are_filtered_and_sorted(cli, runs) -> None:
    assert names(cli("runs", "--json", "a/").out) == ["runs/a/finished", "runs/a/stopped"]
    assert names(cli("runs", "--json", "--status", "ended").out) == ["runs/b/ended"]
    by_accuracy = names(cli("runs", "--json", "--sort", "top1", "--status", "finished").out)
    assert by_accuracy == ["runs/a/finished"]
    assert names(cli("runs", "--json", "a/", "--sort", "seconds").out)[-1] == "runs/a/stopped"
    assert names(cli("runs", "--json", "a/", "--sort", "top1").out)[0] == "runs/a/stopped"


def test_one_that_is_written_now_is_running(cli, runs) -> None:
    command = [sys.executable, "-c", HELD, str(runs / "b/ended")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert names(cli("runs", "--json", "--status", "running").out) == ["runs/b/ended"]
        holder.kill()
    assert names(cli("runs", "--json", "--status", "ended").out) == ["runs/b/ended"]


def test_one_that_went_on_and_lost_power_is_not_what_it_was_before(cli, runs) -> None:
    changed(runs / "a/stopped/run.json", ended=None)
    assert names(cli("runs", "--json", "--status", "ended").out) == [
        "runs/a/stopped", "runs/b/ended"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nothing"], "there is no such run in runs; it has 4 others"),
        (["--status", "finishd"], "no status; did you mean finished?"),
        (["--sort", "top"], "no column; did you mean top1?"),
    ],
)
def test_what_is_not_there_is_refused(cli, runs, words, problem) -> None:
    done = cli("runs", *words)
    assert done.code == 2
    assert problem in one_line(done.err)


def test_without_runs_it_says_so(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no such run in runs" in one_line(cli("runs").err)
