"""One writer: the lock names its holder, and goes when the holder does."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from host import INSIDE
from host.errors import HostError, UsageError
from train.process import parent
from train.record import lock

HOLD = """
import sys, time
from pathlib import Path
from train.record import lock
with lock.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(run: Path, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLD, str(run), str(seconds)]
    child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_writer_is_told_who_the_first_is(tmp_path) -> None:
    with holder(tmp_path, 30) as child:
        with pytest.raises(UsageError) as refused, lock.hold(tmp_path, patience=0):
            pass
        child.kill()
    node = os.uname().nodename
    # A process of a container is nobody's to find outside of it.
    who = f"the container {node}" if INSIDE.exists() else f"process {child.pid}"
    assert f"is being written by {who} on {node} since 20" in str(refused.value)
    # Nothing of the dead holder is in the way; its file says who it was, and is taken over.
    assert (tmp_path / lock.NAME).exists()
    with lock.hold(tmp_path, patience=0):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    assert not (tmp_path / lock.NAME).exists()


def test_a_writer_in_a_container_is_told_by_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(lock.CONTAINER, "lockstep-train-1")
    with holder(tmp_path, 30) as child:
        with (
            pytest.raises(UsageError, match=r"by the container lockstep-train-1 on ") as said,
            lock.hold(tmp_path, patience=0),
        ):
            pass
        child.kill()
    assert "docker stop lockstep-train-1, and it saves" in said.value.fix


@pytest.mark.parametrize("text", [b"[]", b"{", b"\xff", b"null", b'{"pid": 1}', b"x" * 99999])
def test_a_holder_that_cannot_be_read_is_another_process(tmp_path, text) -> None:
    with holder(tmp_path, 30) as child:
        (tmp_path / lock.NAME).write_bytes(text)
        with pytest.raises(UsageError, match="by another process"), lock.hold(tmp_path, patience=0):
            pass
        child.kill()


def test_one_that_is_about_to_go_is_waited_for(tmp_path) -> None:
    with holder(tmp_path, 1), lock.hold(tmp_path, patience=20):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()


def test_a_disk_that_fails_under_it_does_not_hide_the_error(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    # An error of its own would stand before the one that says what happened.
    with lock.hold(tmp_path):
        monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.undo()
    with lock.hold(tmp_path, patience=0):  # the lock itself has gone
        pass


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(HostError, match=r"without locks \(No locks available\)"):
        lock.hold(tmp_path).__enter__()


def test_a_directory_that_is_gone_is_an_error(tmp_path) -> None:
    with pytest.raises(HostError, match="cannot write"), lock.hold(tmp_path / "none"):
        pass


ORPHAN = """
import os, subprocess, sys, time
os.environ["ACCELERATE_DYNAMO_MODE"] = "default"
code = '''
import signal, sys, time
from train.process import parent
parent._GRACE = 1.0
parent.end_with_launcher()
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
'''
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["deaf", "hearing"])
def test_a_trainer_ends_when_its_launcher_dies(kind) -> None:
    """By the signal; and where that does not help, without being asked."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, kind], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_a_launcher_a_trainer_outlives_its_shell(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not parent.launched()
