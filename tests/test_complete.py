"""Tab after make: what is offered, and what the shells make of it."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from host import complete, plan
from train.config import knobs

COMPLETE = ROOT / "host" / "complete.py"
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"source {ROOT}/completion/make.bash"),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"autoload -U compinit; compinit -u -D; source {ROOT}/completion/make.zsh",
    ),
}


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """What of a checkout is looked at, with a run, in the working directory."""
    for name in ("configs", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "train" / "verbs").mkdir(parents=True)
    for run in ("runs/digits/20260101-000000-abc", "runs/mine/20260102-000000-def"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.yaml").touch()
    for name in ("odd/fine", "odd/a b", "odd/x;touch ran", "odd/shut"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(line: str) -> list[str]:
    return [text for text, _ in complete.candidates(line)[1]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("make tr", ["train"]),
        ("make train CONF", ["CONFIG="]),
        ("make train CONFIG=configs/d", ["CONFIG=configs/digits.yaml"]),
        ("make eval RUN=", ["RUN=runs/digits/", "RUN=runs/mine/"]),
        ("make eval RUN=runs/mine/", ["RUN=runs/mine/20260102-000000-def"]),
        ("make train ENGINE=d", ["ENGINE=docker"]),
        (
            "make train ACCELERATE=multi_",
            ["ACCELERATE=multi_cpu", "ACCELERATE=multi_gpu", "ACCELERATE=multi_node"],
        ),
        ("make train CUDA=", ["CUDA=auto", "CUDA=cuda12", "CUDA=cuda13"]),
        ('make train ARGS="--optim.n', ["ARGS=--optim.name=", "ARGS=--optim.nesterov="]),
        ("make train ARGS='--epochs 3 --see", ["ARGS=--epochs 3 --seed="]),
        (
            "make train ARGS='--optim.name ",
            [f"ARGS=--optim.name {name}" for name in ("sgd", "adamw", "lamb", "muon")],
        ),
        ("make train ARGS=--augment.flip=t", ["ARGS=--augment.flip=true"]),
        ("make train ARGS=--re", ["ARGS=--resume", "ARGS=--reproducibility="]),
        ("make eval ARGS=--", ["ARGS=--checkpoint=", "ARGS=--data.root="]),
        (
            "make data ARGS=--c",
            [
                "ARGS=--cached",
                "ARGS=--clear",
                "ARGS=--checkpoint.every=",
                "ARGS=--checkpoint.keep=",
                "ARGS=--checkpoint.background=",
            ],
        ),
        (
            "make tune ARGS='--what ",
            [f"ARGS=--what {w}" for w in ("batch", "workers", "speed", "lr")],
        ),
        ("make tune ARGS=--what=s", ["ARGS=--what=speed"]),
        ("make train ARGS=--optim.lr=", []),
        ("make train ARGS='--epochs ", []),
        ("make train DATA=od", ["DATA=odd/"]),
        ("make train DATA=odd/", ["DATA=odd/fine/", "DATA=odd/shut/"]),
        ("make train DATA=~nobody/", []),
        ('make train ARGS="--data.root ru', ["ARGS=--data.root runs/"]),
        ("make train ARGS=--data.root=ru", ["ARGS=--data.root=runs/"]),
        ("make train 'CONFIG=configs/di", ["CONFIG=configs/digits.yaml"]),
        ("make train GPUS=8", []),
        ("make train NOTHING=", []),
        ("make train CONFIG=/nowhere/", []),
    ],
)
def test_what_is_offered(checkout, line, expected):
    assert offered(line) == expected


def test_all_that_make_help_lists_and_every_knob(checkout):
    listed = subprocess.run(["make", "help"], capture_output=True, text=True, check=True).stdout
    targets = [
        line.split()[0] for line in listed.split("variables:")[0].splitlines() if line[:2] == "  "
    ]
    variables = {
        line.split("=")[0].strip()
        for line in listed.split("variables:")[1].splitlines()
        if "=" in line
    }
    found = complete.candidates("make ")[1]
    assert {text for text, about in found if not text.endswith("=")} == set(targets)
    assert all(about for text, about in found if not text.endswith("="))
    assert variables <= {text[:-1] for text, about in found if about}
    assert offered("make train ARGS=--")[1:] == [f"ARGS=--{name}=" for name, _ in knobs()]
    assert offered("make train PRECISION=") == [f"PRECISION={name}" for name in plan.PRECISIONS]


def test_a_folder_that_cannot_be_looked_into_hides_no_other(checkout) -> None:
    (checkout / "odd/shut/config.yaml").symlink_to("x" * 300)  # an error also for root
    with pytest.raises(OSError, match="too long"):
        (checkout / "odd/shut/config.yaml").stat()
    assert offered("make train DATA=odd/") == ["DATA=odd/fine/", "DATA=odd/shut/"]


def test_a_shell_hears_nothing_where_there_is_no_checkout(tmp_path):
    done = subprocess.run(
        [sys.executable, COMPLETE, "make tr", "tr"], cwd=tmp_path, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_pressing_tab_runs_nothing_of_the_folder_one_stands_in(checkout):
    for name in ("json.py", "host/__init__.py", "host/complete.py", "pathlib.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("open('ran', 'w')\n")
    (checkout / "Makefile").write_text("$(shell touch ran)\n" + (ROOT / "Makefile").read_text())
    assert typed("bash", "make tr\t", checkout) == "make train "
    assert not (checkout / "ran").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("make tr\t", "make train "),
        ("make train CONF\tconfigs/d\t", "make train CONFIG=configs/digits.yaml "),
        ("make train ENG\tl\tCP\t", "make train ENGINE=local CPUS="),
        ("make eval RUN=runs/m\t\t", "make eval RUN=runs/mine/20260102-000000-def "),
        ("make train ARGS=--optim.nam\ts\t", "make train ARGS=--optim.name=sgd "),
        ("make train ARGS=--optim.nest\t\t", "make train ARGS=--optim.nesterov="),
    ],
)  # fmt: skip
def test_a_shell_completes(checkout, shell, keys, line):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    assert typed(shell, keys, checkout) == line


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ('make data "ARGS=--optim.name a\t--se\t7', 'make data "ARGS=--optim.name adamw --seed=7'),
        ('make train ARGS="--res\t--see\t7', 'make train ARGS="--resume --seed=7'),
        ('make tune ARGS="--wh\tspeed', 'make tune ARGS="--what=speed'),
        ('make train "CONFIG=configs/d\t', 'make train "CONFIG=configs/digits.yaml" '),
    ],
)  # fmt: skip
def test_a_quote_stays_open_where_more_may_follow(checkout, keys, line):
    assert typed("bash", keys, checkout) == line


def test_elsewhere_make_completes_as_before(tmp_path):
    (tmp_path / "Makefile").touch()
    before = "_mine() { COMPREPLY=(theirs); }; complete -F _mine make"
    assert typed("bash", "make th\t", tmp_path, before) == "make theirs "
    assert typed("bash", "make Mak\t", tmp_path) == "make Makefile "
    # bash-completion's way: what completes a command is loaded when it is asked for first.
    lazy = '_lazy() { _mine() { COMPREPLY=(theirs); }; complete -F _mine "$1"; return 124; }'
    source = START["bash"][1]
    before = f"{lazy}; complete -D -F _lazy; {source}"
    assert typed("bash", "make th\t", tmp_path, before) == "make theirs "


def typed(shell: str, keys: str, folder: Path, before: str = ":") -> str:
    """The line as it stands after these keys, typed into a shell in a terminal."""
    command, source = START[shell]
    line = folder / "line"
    line.unlink(missing_ok=True)
    kept = f">{line}.new; mv {line}.new {line};"
    show = {
        "bash": f"""show() {{ printf %s "$READLINE_LINE" {kept} }}; bind -x '"\\C-g": show'""",
        "zsh": f"show() {{ printf %s $BUFFER {kept} }}; zle -N show; bindkey '^G' show",
    }[shell]
    (folder / "rc").write_text(f"{before}\n{source}\n{show}\necho READY\n")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "PS1": "$ "})
    try:
        os.write(terminal, f"source {folder}/rc\n".encode())
        seen = b""
        until = time.monotonic() + 30
        while b"READY" not in seen and time.monotonic() < until:
            seen += output(terminal)
        os.write(terminal, keys.encode() + b"\x07")
        while not line.exists() and time.monotonic() < until:
            seen += output(terminal)
        assert line.exists(), seen.decode(errors="replace")
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)
    return line.read_text()


def output(terminal: int) -> bytes:
    """What a terminal shows next; nothing where that takes long."""
    ready, _, _ = select.select([terminal], [], [], 0.1)
    return os.read(terminal, 65536) if ready else b""
