"""`--stress`: a sound machine passes, and numbers that change are found, wherever they change."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from doctor import finding
from doctor.inside import copies, slowing

_CODE = "from doctor import finding; from doctor.inside import stress; \
print(finding.to_json([stress.stress(0.15)]))"
_COPY = 4 << 20  # bytes


@contextmanager
def _begun() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", _CODE]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _end(process: subprocess.Popen[str]) -> finding.Finding:
    out, _ = process.communicate(timeout=300)
    return finding.from_json(out)[0]


def _largest(pid: int) -> range:
    """The addresses of a process's largest piece of memory that it may write."""
    places = [
        range(*(int(end, 16) for end in line.split()[0].split("-")))
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.split()[1].startswith("rw-p") and len(line.split()) == 5
    ]
    return max(places, key=len, default=range(0))  # nothing while the program is loaded


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _copies(pid: int) -> range:
    """Where the copies lie, once all of them are written."""
    sizes: list[int] = []
    while True:
        place = _largest(pid)
        sizes = [*sizes[-3:], _resident(pid)]
        full = len(place) > 64 * _COPY and sizes[-1] > len(place)
        if full and len(sizes) == 4 and max(sizes) - min(sizes) < _COPY:  # it grows no more
            return place
        time.sleep(0.4)


def _change(pid: int, places: Iterable[int]) -> None:
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for place in places:
            memory.seek(place)
            memory.write(b"\x42")  # the highest byte of a number: 0 becomes 32


@pytest.mark.slow
def test_a_sound_machine_passes() -> None:
    with _begun() as process:
        found = _end(process)
    assert found.status == "ok", found
    assert "none wrong" in found.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("all_of_them", "said"),
    [(False, "numbers in its memory changed by themselves"), (True, "of them wrong, the first")],
    ids=["one number", "a number of each copy"],
)
def test_numbers_that_change_are_found(all_of_them: bool, said: str) -> None:
    """A bit of the process's memory is changed from outside, as a cosmic ray would."""
    with _begun() as process:
        place = _copies(process.pid)
        last = place.stop - _COPY // 2 + 3  # it will hardly be read
        _change(process.pid, range(last, place.start, -_COPY) if all_of_them else [last])
        found = _end(process)
    assert found.status == "fail", found
    assert said in found.seen
    assert found.fix


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stress", "many"], "--stress many is no number of minutes up to 10080"),
        (["--stress", "-1"], "--stress -1 is no number of minutes"),
        (["--stress", "nan"], "--stress nan is no number of minutes"),
        (["--stress", "1", "--quick"], "--stress does nothing with --quick"),
        (
            ["--quick", "--verify", "configs/digits.yaml"],
            "--verify (make: CONFIG=) does nothing with --quick",
        ),
        (["--quick", "--like", "tests"], "--like (make: RUN=) does nothing"),
        (["--verify", "configs/digits.yaml", "--on", "8GB", "--quick"], "nothing with --quick"),
        (["--verify", "configs/digits.yaml", "--on", "8GB", "--stress", "1"], "--stress does no"),
        (["--verify", "configs/digits.yaml", "--on", "8GB", "--record", "f"], "--record does no"),
        (
            ["--verify", "configs/digits.yaml", "--on", "8GB", "--like", "tests"],
            "--like (make: RUN=) does no",
        ),
        (["--markdown", "--json"], "--json does nothing with --markdown"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "doctor", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_what_makes_a_gpu_slow_is_told_apart() -> None:
    # An H200 that eight trainings shared: 54 °C, 513 W of 700, and nothing that its driver named.
    rates = [400.0] * 20 + [53.0] * 60
    found = slowing.slowed(slowing.Seen(heat=54, power=513, others=8), rates, "GPU 0")
    assert found is not None
    assert found.seen == (
        "GPU 0; the last products took 7.5 times as long; 8 other programs computed on it too"
    )
    assert found.fix.startswith("end them")
    hot = slowing.slowed(slowing.Seen(heat=92, power=300, slowed=0x40, others=1), rates, "GPU 0")
    assert hot is not None
    assert hot.fix.startswith("check fans")
    assert slowing.slowed(slowing.Seen(others=8), [400.0] * 80, "GPU 0") is None


def test_a_copy_is_compared_with_what_was_sent() -> None:
    here = torch.device("cpu")
    assert copies.arrives(here, here)
    with pytest.raises(NotImplementedError):  # no memory at all
        copies.arrives(here, torch.device("meta"))
    assert copies.wrong(2) is None  # without a GPU it ends with an error, which is told elsewhere
