"""What a person sees while it trains, on a real terminal and elsewhere."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from conftest import DIGITS, ROOT
from hypothesis import given
from hypothesis import strategies as some

from train.record.sparkline import Curve

WORDS = [*DIGITS, "--max_steps", "24", "--log.every", "2", "--eval.every", "12"]


def on_a_terminal(run: Path, rows: int, columns: int) -> str:
    """All that a training writes to a terminal of that size."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-m", "train", "fit", *WORDS, "--run", str(run)]
    # pytest's workers are told a width, which would outweigh the terminal's.
    environ = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=its, stderr=its, stdin=its, start_new_session=True,
        env={**environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(its)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        written += piece
    os.close(ours)
    assert child.wait(60) == 0, written.decode()
    return written.decode()


@pytest.mark.slow
def test_a_terminal_shows_curves_above_the_bar(tmp_path) -> None:
    said = on_a_terminal(tmp_path / "run", 30, 100)
    assert "▁" in said
    assert "samples/s   memory" in said
    assert "best " in said
    assert "━" in said
    assert "24/24" in said
    assert "\x1b[?25h" in said  # the cursor is back
    assert "report in" in said.rsplit("\x1b[?25h", 1)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(30, 60), (10, 100)])
def test_a_small_terminal_shows_the_bar_alone(tmp_path, rows, columns) -> None:
    said = on_a_terminal(tmp_path / "run", rows, columns)
    assert "▁" not in said
    assert "24/24" in said


@pytest.mark.slow
def test_a_pipe_gets_lines_alone(cli, tmp_path) -> None:
    done = cli("fit", *WORDS, "--run", tmp_path / "run")
    assert done.code == 0
    assert "▁" not in done.out
    assert "\x1b" not in done.out
    assert "validation loss" in done.out


VALUES = some.lists(some.floats(-1e9, 1e9), max_size=3000)


@given(VALUES, some.integers(1, 200))
def test_a_curve_fits_and_has_its_ends(values, width) -> None:
    curve = Curve()
    for value in values:
        curve.add(value)
    drawn = curve.sparkline(width)
    assert len(drawn) <= width
    assert bool(drawn) == bool(values)
    assert set(drawn) <= set("▁▂▃▄▅▆▇█")


def test_a_curve_goes_up_where_figures_do() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(float(step))
    drawn = curve.sparkline(64)
    assert len(drawn) == 64
    assert list(drawn) == sorted(drawn)
    assert (drawn[0], drawn[-1]) == ("▁", "█")
    flat = Curve()
    for value in (1.0, float("nan"), 1.0):
        flat.add(value)
    assert flat.sparkline(10) == "▁▁"
