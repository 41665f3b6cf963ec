"""One writer where locks do not reach other machines: its sign of life keeps the others away."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DIGITS, ROOT, stated_hash

from host.errors import HostError, UsageError
from train.__main__ import main
from train.record import files, lock, sign

# A machine of its own: its locks reach nobody, and it knows nobody's processes.
MACHINE = """
import fcntl, sys, time
from pathlib import Path
from train.record import alive, lock, sign
alive.BEAT, alive.QUIET = 0.2, float(sys.argv[5])
sign.far = lambda folder: sys.argv[1] != "origin"
sign.kernel = lambda: sys.argv[1]
fcntl.lockf = lambda *_: None
with lock.hold(Path(sys.argv[2]), float(sys.argv[3])):
    print("held", flush=True)
    time.sleep(float(sys.argv[4]))
"""


def machine(
    name: str, run: Path, patience: float = 0, seconds: float = 60, quiet: float = 2
) -> subprocess.Popen:
    words = [sys.executable, "-c", MACHINE, name, run, patience, seconds, quiet]
    return subprocess.Popen(
        list(map(str, words)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def holds(child: subprocess.Popen) -> None:
    assert child.stdout.readline() == "held\n", child.communicate()[1]


@pytest.fixture
def first(tmp_path) -> Iterator[subprocess.Popen]:
    with machine("first", tmp_path) as child:
        holds(child)
        yield child
        child.kill()


@pytest.mark.parametrize("names", [("first", "second"), ("origin", "far"), ("far", "origin")])
def test_a_second_machine_is_told_who_writes(tmp_path, names) -> None:
    """Be it one that has the disk, whose file system is local, and one that mounts it."""
    with machine(names[0], tmp_path) as first:
        holds(first)
        with machine(names[1], tmp_path, seconds=0, quiet=10) as second:
            _, said = second.communicate(timeout=60)
        assert f"is being written by process {first.pid} on {os.uname().nodename} since 20" in said
        assert first.poll() is None
        assert json.loads((tmp_path / sign.NAME).read_text())["pid"] == first.pid
        first.kill()


def test_one_that_ends_is_waited_for(tmp_path) -> None:
    with machine("first", tmp_path, seconds=3) as child:
        holds(child)
        with machine("second", tmp_path, patience=20, seconds=0) as second:
            holds(second)
            assert second.wait(10) == 0
    assert not list(tmp_path.iterdir())


def test_a_dead_machine_is_found_to_be_dead(tmp_path, first) -> None:
    first.kill()
    with machine("second", tmp_path, seconds=0) as second:
        holds(second)
        _, said = second.communicate(timeout=30)
    assert "looking for 2 s whether it is still" in said
    assert second.returncode == 0


def test_on_a_local_disk_the_lock_says_enough(tmp_path) -> None:
    """So a container that was killed, another one on the same disk, is not waited for."""
    with machine("origin", tmp_path) as first:
        holds(first)
        first.kill()
    text = (tmp_path / sign.NAME).read_text()
    (tmp_path / sign.NAME).write_text(text.replace('"kernel": "origin"', '"kernel": "another"'))
    with machine("origin", tmp_path, seconds=0) as second:
        _, said = second.communicate(timeout=30)
    assert (second.returncode, said) == (0, "")


def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path, first) -> None:
    first.kill()
    first.wait()
    with machine("first", tmp_path, seconds=0) as second:
        _, said = second.communicate(timeout=30)
    assert said == ""
    assert second.returncode == 0


def test_a_machine_that_was_paused_ends_before_it_writes(tmp_path, first) -> None:
    first.send_signal(signal.SIGSTOP)
    with machine("second", tmp_path) as second:
        holds(second)
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=30)
        assert first.returncode == HostError.code
        assert f"is no longer this process's: process {second.pid} on " in said
        assert second.poll() is None
        assert json.loads((tmp_path / sign.NAME).read_text())["pid"] == second.pid
        second.kill()


def test_two_that_begin_at_once_do_not_both_go_on(tmp_path) -> None:
    with machine("first", tmp_path) as one, machine("second", tmp_path) as two:
        deadline = time.monotonic() + 30
        while one.poll() is None and two.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        codes = [one.poll(), two.poll()]
        one.kill()
        two.kill()
    assert None in codes
    assert {HostError.code, 1} & set(codes)  # 1: Python's own, of an error that nobody prints here


def test_a_file_that_somebody_removes_is_written_again(tmp_path, first) -> None:
    (tmp_path / sign.NAME).unlink()
    deadline = time.monotonic() + 30
    while not (tmp_path / sign.NAME).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert first.poll() is None


def test_one_that_was_paused_while_another_came_and_went_ends(tmp_path, first) -> None:
    first.send_signal(signal.SIGSTOP)
    with machine("second", tmp_path, seconds=0) as second:
        assert second.wait(60) == 0
    time.sleep(1)
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=30)
    assert first.returncode == HostError.code
    assert f"{tmp_path / sign.NAME} was removed meanwhile" in said


@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_who_lost_it_ends_though_nobody_reads_what_it_says(tmp_path, stderr) -> None:
    words = [sys.executable, "-c", MACHINE, "first", tmp_path, 0, 60, 2]
    with (
        Path("/dev/full" if stderr == "full" else os.devnull).open("w") as file,
        subprocess.Popen(
            list(map(str, words)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=file if stderr == "full" else subprocess.PIPE,
            text=True,
        ) as child,
    ):
        assert child.stdout.readline() == "held\n"
        if stderr == "closed":
            child.stderr.close()
            child.stderr = None
        other = json.dumps({"token": "another", "pid": 1, "host": "b", "since": "now"})
        (tmp_path / sign.NAME).write_text(other)
        assert child.wait(30) == HostError.code
    assert json.loads((tmp_path / sign.NAME).read_text())["token"] == "another"


def test_it_is_looked_at_before_a_checkpoint_is_written(tmp_path) -> None:
    """Whoever was paused does not wait for its thread to notice."""
    script = MACHINE.replace("time.sleep(float(sys.argv[4]))", "sys.stdin.read(1); alive.check(x)")
    script = script.replace("alive.BEAT,", "x = Path(sys.argv[2]); alive.BEAT,")
    script = script.replace("0.2, float", "50.0, float")
    words = [sys.executable, "-c", script, "first", tmp_path, 0, 60, 2]
    with subprocess.Popen(
        list(map(str, words)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        holds(child)
        (tmp_path / sign.NAME).write_text('{"token": "another"}')
        _, said = child.communicate("x", timeout=30)
    assert child.returncode == HostError.code
    assert "another process writes it" in said


def test_what_cannot_be_shown_is_an_error_where_a_lock_is_not_enough(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", refuse)
    with lock.hold(tmp_path, 0):  # a local disk
        time.sleep(0.1)
    monkeypatch.setattr(sign, "far", lambda _: True)
    with (
        pytest.raises(HostError, match=r"cannot write .*\.alive: No space left"),
        lock.hold(tmp_path, 0),
    ):
        pass


def test_what_is_no_sign_of_life_is_not_waited_for_for_long(tmp_path) -> None:
    texts = [b"", b"[]", b"{", b"\xff", b'{"pid": "1"}', b"x" * 3000]
    children = []
    for number, text in enumerate(texts):
        run = tmp_path / str(number)
        run.mkdir()
        (run / sign.NAME).write_bytes(text)
        children.append(machine("second", run, seconds=0))
    for child in children:
        out, said = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, "held\n"), said


Mount = namedtuple("Mount", "mountpoint fstype")


@pytest.mark.parametrize(
    ("kind", "far"),
    [
        *((kind, False) for kind in ("ext4", "xfs", "zfs", "overlay", "tmpfs")),
        *((kind, True) for kind in ("nfs4", "nfs", "cifs", "fuse.sshfs", "9p", "lustre", "gpfs")),
    ],
)
def test_file_systems_of_one_machine_need_none(tmp_path, monkeypatch, kind, far) -> None:
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), "nfs4"), Mount(str(tmp_path), kind)]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    assert sign.far(tmp_path / "run") == far
    assert not sign.far(tmp_path.with_name("beside"))


def test_of_a_run_without_locks_it_is_seen_that_it_runs(tmp_path, first, monkeypatch) -> None:
    monkeypatch.setattr("fcntl.lockf", lambda *_: None)
    assert lock.is_held(tmp_path)
    (tmp_path / lock.NAME).unlink()  # as after it went from one writer to the next
    assert lock.is_held(tmp_path)
    first.kill()
    first.wait()
    old = time.time() - 60
    os.utime(tmp_path / sign.NAME, (old, old))
    assert not lock.is_held(tmp_path)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("symlink_to", "make a symbolic link and replace it"),
        ("replace", "replace a file"),
        ("rename", "rename a directory"),
        ("mkdir", "rename a directory"),
    ],
)
def test_what_a_file_system_cannot_do_is_said_before_it_is_needed(
    tmp_path, monkeypatch, capfd, call, what
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(Path, call, refuse)
    assert main(["fit", *DIGITS, "--run", str(tmp_path / "run")]) == HostError.code
    said = f"cannot {what} (Operation not permitted), as a run does"
    assert said in capfd.readouterr().err
    assert not list((tmp_path / "run").glob(".try-*"))


def test_a_full_disk_is_for_others_to_say(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    files.try_out(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bindfs") is None, reason="needs root and bindfs"
)
@pytest.mark.parametrize("names", [("here", "there"), ("disk", "here")])
def test_two_mounts_of_one_folder(tmp_path, names) -> None:
    """A real file system on which both get the lock; killed, and gone on with on the other."""
    places = [tmp_path / "here", tmp_path / "there"]
    (tmp_path / "disk").mkdir()
    for place in places:
        place.mkdir()
        subprocess.run(["bindfs", tmp_path / "disk", place], check=True)
    here, there = (tmp_path / name / "run" for name in names)
    line = [*DIGITS, "--log.report", "false", "--run"]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "train", "fit", *line, str(here)], stdout=subprocess.DEVNULL
        ) as child:
            deadline = time.monotonic() + 120
            while not (here / "checkpoints/latest").exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            with pytest.raises(UsageError, match=f"written by process {child.pid} on "):
                lock.hold(there, 0).__enter__()
            child.kill()
        assert main(["fit", *line, str(there), "--resume"]) == 0
        result = json.loads((there / "result.json").read_text())
        assert result["weights_sha256"] == stated_hash()
        assert not list((tmp_path / "disk/run").glob(".[a-z]*"))
    finally:
        for place in places:
            subprocess.run(["umount", "--lazy", place], check=False)
