"""What stands in make's variables is text: nothing in it is run, and all of it arrives."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from host.errors import CheckpointError, UsageError
from train.record import rundir

pytestmark = pytest.mark.slow

# Each would leave a file named `ran` if make or a shell took it for anything but text.
HOSTILE = [
    "$(shell touch ran)", "$(eval $(shell touch ran))", "${shell touch ran}", "$$(touch ran)",
    "$(touch ran)", "`touch ran`", "; touch ran", "& touch ran", "&& touch ran", "|| touch ran",
    "| touch ran", "> ran", "2> ran", ">> ran", "< /dev/null touch ran", "'; touch ran; '",
    '"; touch ran; "', "'$(touch ran)'", '"$(touch ran)"', "\\'; touch ran #", "a' 'b; touch ran",
    "x) ; touch ran ; (", "{ touch ran; }", "(touch ran)", "!touch ran", "#; touch ran",
    "$(file >ran,x)", "$(file > ran)", "$(if 1,$(shell touch ran))", "@touch ran", "-touch ran",
    "%.ran: ; touch ran", "$(call quoted,$(shell touch ran))", "${IFS}touch${IFS}ran",
    "\ttouch ran", "--eval=$(shell touch ran)", "$(origin x)$(shell touch ran)", "\\; touch ran",
    "'\\''; touch ran; '\\''", "$(value $(shell touch ran))", "*; touch ran", "~; touch ran",
]  # fmt: skip
NAMES = [
    "a b", "a  b", " a", "a ", "it's", 'say "x"', "a\\b", "a\\ b", "$x", "$$x", "${x}", "$(x)",
    "a#b", "# a", "a;b", "a&b", "a|b", "a<b", "a>b", "a*b", "a?b", "[ab]", "{a,b}", "(a)",
    "~", "~a", "a!b", "a=b", "a:b", "a,b", "%", "a%b", "@a", "+a",
    "ä ö", "日本語", "🙂", "a\tb", "a\u00a0b", "`a`",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A checkout whose trainer writes down what it was told instead of training."""
    root = tmp_path_factory.mktemp("make") / "checkout"
    for name in ("host", "train", "requirements", "configs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "Dockerfile"):
        shutil.copy(ROOT / name, root)
    (root / ".venv" / "bin").mkdir(parents=True)
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >told\n')
    python.chmod(0o755)
    for path in (root / "requirements").glob("*.txt"):
        done = subprocess.run(["cksum", path], capture_output=True, text=True, check=True)
        (root / ".venv" / f".installed-{path.stem}-{done.stdout.split()[0]}").touch()
    return root


def make(place: Path, *words: str, **environ: str) -> tuple[int, str, list[str]]:
    (place / "told").unlink(missing_ok=True)
    own = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["make", *words, "ENGINE=local", "DOCTOR=0", f"PYTHON={sys.executable}"],
        cwd=place, env=own | environ, capture_output=True, check=False,
    )  # fmt: skip
    told = (place / "told").read_bytes().split(b"\0")[:-1] if (place / "told").exists() else []
    said = (done.stdout + done.stderr).decode(errors="replace")
    return done.returncode, said, [os.fsdecode(word) for word in told]


def left(place: Path) -> list[str]:
    return sorted(p.name for p in place.iterdir() if p.name in ("ran", "x", "touch"))


def test_the_doctor_is_told_of_an_experiment_and_of_a_run(place) -> None:
    said = make(place, "-n", "doctor", "CONFIG=configs/folder.yaml", "RUN=runs/it")[1]
    assert "doctor --verify 'configs/folder.yaml' --like 'runs/it'" in said
    assert "--verify" not in make(place, "-n", "doctor")[1]


@pytest.mark.parametrize("value", HOSTILE)
def test_nothing_in_a_value_is_run(place, value) -> None:
    """On the command line and in the environment, as what is passed on and as what is looked at."""
    for given in ({}, {"RUN": value, "CONFIG": value}):
        words = ["train"] if given else ["train", f"RUN={value}", f"CONFIG={value}"]
        code, said, told = make(place, *words, **given)
        assert (code, left(place)) == (0, []), said
        text = value.lstrip()  # as make does with what stands behind a =
        assert [word.lstrip() for word in told[2:]] == ["fit", "--config", text, "--run", text]
    make(place, "train", f"CPUS={value}", f"PRECISION={value}", f"ACCELERATE={value}")
    # Each of them stands in the commands that look at the machine, before one is refused.
    looked_at = ("GPUS", "CPUS", "PRECISION", "BASE_IMAGE", "DATA", "ACCELERATE")
    make(place, "train", *(f"{name}={value}" for name in looked_at))
    make(place, "train", **dict.fromkeys(looked_at, value))
    make(place, "help", f"CONFIG={value}", f"CUDA={value}")
    make(place, "train", f"CUDA={value}")
    make(place, "reproduce", f"RUN={value}")
    make(place, "train", f"ARGS={value}")
    make(place, "train", f"UNKNOWN={value}")
    assert left(place) == []
    code, said, told = make(place, "train", f"ARGS={shlex.quote(value)}")
    assert (code, told[-1]) == (0, value), said


@pytest.mark.parametrize("name", NAMES)
def test_a_path_arrives_as_it_is(place, name) -> None:
    path = f"runs/{name}/x"
    code, said, told = make(place, "train", f"RUN={path}", f"CONFIG={path}")
    assert code == 0, said
    assert told[2:] == ["fit", "--config", path, "--run", path]
    code, said, told = make(place, "train", RUN=path, CONFIG=path, ARGS=shlex.join(["--a", path]))
    assert told[2:] == ["fit", "--config", path, "--run", path, "--a", path], said


@pytest.mark.parametrize("name", ["a b", "it's", "$(x)"])
def test_a_run_that_goes_on_has_its_own_experiment(place, name) -> None:
    run = f"runs/{name}/resumed"
    words = ["train", f"RUN={run}", "ARGS=--resume"]
    assert make(place, *words)[2][2:] == ["fit", "--run", run, "--resume"]  # which refuses it
    (place / run).mkdir(parents=True)
    (place / run / "run.json").touch()
    assert make(place, *words)[2][2:] == ["fit", "--run", run, "--resume"]
    assert "--config" in make(place, *words, f"CONFIG={run}")[2]
    assert "--config" in make(place, *words[:2])[2]


def test_what_nobody_says_may_stand_in_the_env_file(place) -> None:
    digits = ["fit", "--config", "configs/digits.yaml"]
    text = "configs/a b$(touch ran)`touch ran`;touch ran.yaml"
    try:
        (place / ".env").write_text(f"CONFIG='{text}'\nTENSORBOARD_PORT=7007\nENGINE=locl\n")
        assert make(place, "train")[2][2:] == ["fit", "--config", text]
        assert make(place, "train", "CONFIG=configs/digits.yaml")[2][2:] == digits
        assert make(place, "train", CONFIG="configs/digits.yaml")[2][2:] == digits
        own = {n: value for n, value in os.environ.items() if n not in ("MAKEFLAGS", "ENGINE")}
        words = ["make", "--dry-run", f"PYTHON={sys.executable}"]
        for more, said in ((["ENGINE=local"], "--port '7007'"), ([], "ENGINE=locl is no engine")):
            done = subprocess.run(
                [*words, "tensorboard", *more],
                cwd=place, env=own, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert said in done.stdout + done.stderr
    finally:
        (place / ".env").unlink()
    assert left(place) == []
    assert make(place, "train")[2][2:] == digits


def test_who_goes_on_is_told_what_make_was_told(place, tmp_path, monkeypatch) -> None:
    """The line that a stopped run ends with: engine, hardware and places of data as they were."""
    (tmp_path / "show.mk").write_text("help: show\nshow:\n\t@printenv LOCKSTEP_TOLD\n")
    words = ["make", "-f", "Makefile", "-f", str(tmp_path / "show.mk"), "help"]
    odd = "a b'$(touch ran)`touch ran`;"
    given = ["ENGINE=local", "CPUS=2", f"DATA={odd}"]
    own = {n: value for n, value in os.environ.items() if n not in ("MAKEFLAGS", "PRECISION")}
    done = subprocess.run(
        [*words, *given, "CONFIG=a", "RUN=b", "ARGS=c"], cwd=place, env=own | {"PRECISION": "bf16"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = next(row for row in done.stdout.splitlines() if row.startswith("CPUS="))
    assert shlex.split(told) == ["CPUS=2", "ENGINE=local", f"DATA={odd}"]
    assert left(place) == []
    monkeypatch.setenv("LOCKSTEP_TOLD", told)
    full = CheckpointError("the disk is full", "make room, then add --resume; nothing is lost")
    assert "then add --resume (make: ARGS=--resume); nothing" in full.line()
    taken = UsageError("runs/a already holds a finished run", "choose another --run")
    assert taken.line().endswith("→ choose another --run (make: RUN=)")
    line = rundir.go_on(Path("runs/a b"))
    command = line.removeprefix("to go on: ").split(" (without make: ")[0]
    expected = ["CPUS=2", "ENGINE=local", f"DATA={odd}", "RUN=runs/a b", "ARGS=--resume"]
    assert shlex.split(command) == ["make", "train", *expected]


def test_a_line_break_is_refused(place) -> None:
    for name in ("RUN", "CONFIG", "ARGS", "GPUS", "DATA"):
        for given in ({}, {name: "a\ntouch ran"}):
            words = [] if given else [f"{name}=a\ntouch ran"]
            code, said, told = make(place, "train", *words, **given)
            assert (code, told, left(place)) == (2, [], [])
            assert f"{name} holds a line break" in said


def test_an_open_quote_is_refused(place) -> None:
    code, said, told = make(place, "train", "ARGS=--name 'a")
    assert (code, told) == (2, [])
    assert "error: ARGS=--name 'a: no closing quotation" in said


COMPOSE = (
    *("APT_SNAPSHOT", "BASE_IMAGE", "CACHE", "CODE", "DATA", "SHM_SIZE", "READ_ONLY", "MEMLOCK"),
    *("TENSORBOARD_PORT", "CDI_GPU", "WANDB_API_KEY_FILE", "HF_TOKEN_FILE"),
)


@pytest.mark.parametrize("name", COMPOSE)
def test_what_make_is_told_reaches_compose(place, tmp_path, name) -> None:
    (tmp_path / "show.mk").write_text("help: show\nshow:\n\t@env\n")
    words = ["make", "-f", "Makefile", "-f", str(tmp_path / "show.mk"), "help", "ENGINE=local"]
    env = {n: value for n, value in os.environ.items() if n not in (*COMPOSE, "MAKEFLAGS")}
    for value in ("/a b$(shell touch ran)", ""):
        given = [f"{name}={value}"] if value else []
        done = subprocess.run(
            [*words, *given], cwd=place, env=env, capture_output=True, text=True, check=True
        )
        shown = [line for line in done.stdout.splitlines() if line.split("=")[0] in COMPOSE]
        assert shown == given  # and what nobody said is for .env to say
    assert left(place) == []


@pytest.mark.parametrize("name", ["DATA", "CACHE", "BASE_IMAGE", "SHM_SIZE", "TENSORBOARD_PORT"])
def test_what_is_about_containers_does_nothing_without_one(place, name) -> None:
    code, said, told = make(place, "train", f"{name}=1")
    assert (code, told) == (2, [])
    assert f"{name} is about containers, and this is ENGINE=local" in said


def test_code_that_is_elsewhere_is_linked_without_a_container(place) -> None:
    (place / "mine").mkdir()
    code, said, told = make(place, "train", "CODE=mine")
    assert (code, told) == (2, [])
    assert "take it away; a package in this folder or a link to one (ln -s PACKAGE .)" in said


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("export", "PRECISION=bf16"),
        ("runs", "GPUS=2"),
        ("compare", "CPUS=2"),
        ("report", "ACCELERATE=fsdp"),
        ("train", "NODE_SILENCE=5"),
        ("tune", "RUN=runs/a"),
        ("data", "RUN=runs/a"),
    ],
)
def test_what_does_nothing_with_a_target_is_refused(place, target, word) -> None:
    code, said, told = make(place, target, word)
    assert (code, told) == (2, [])
    assert f"{word.split('=')[0]} does nothing" in said


def test_what_serves_all_jobs_of_a_cluster_may_be_there_for_one_machine(place) -> None:
    for given in ({"NODE_SILENCE": "5"}, {"SLURM_JOB_ID": "7"}, {"NODES": "2"}):
        words = [] if "NODE_SILENCE" in given else ["NODE_SILENCE=5"]
        _, said, _ = make(place, "train", *words, **given)
        assert "does nothing" not in said


def test_data_of_the_environment_is_not_left_out_without_a_word(place) -> None:
    """In `.env` for the containers, it would be forgotten where no engine answers."""
    _, said, _ = make(place, "train", DATA="/mnt/pictures")
    assert "warning: DATA=/mnt/pictures is about containers, and does nothing here" in said


def test_the_number_of_seeds_may_stand_before_make(place) -> None:
    cases = ((["N=4"], {"N": "5"}, "4"), ([], {"N": "5"}, "5"), ([], {"N": ""}, "3"), ([], {}, "3"))
    for words, given, wanted in cases:
        _, _, told = make(place, "seeds", *words, **given)
        assert told[told.index("--seeds") + 1] == wanted


@pytest.mark.parametrize("value", ["no", "false", "off", "2"])
def test_the_doctor_is_asked_or_not(place, value) -> None:
    words = ["make", "train", "ENGINE=local", f"DOCTOR={value}", f"PYTHON={sys.executable}"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"DOCTOR={value} is neither 0 nor 1 → DOCTOR=0 trains without" in done.stderr
