"""How trainers end: one of several past the end of Python, one that is killed with a line, and one
whose reader leaves not at all.
"""

import subprocess
import sys

import pytest
from conftest import ROOT, one_line

SCRIPT = """
import atexit, sys, threading, time
from train.process.leaving import leave

class Last:
    def __del__(self):
        print("taken down")

last = Last()
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.3), print("a thread"))).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("said", end=" ")
leave(7)
"""


def test_it_waits_does_what_is_registered_and_skips_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "said a thread\nregistered\n", "")


def test_who_is_killed_has_a_line() -> None:
    code = "import sys; from train.process.supervisor import supervise;"
    code += "sys.exit(supervise(['sh', '-c', 'kill -9 $$'], alone=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 137
    assert one_line(done.stderr).startswith("error: signal 9 (Killed) ended the process → start it")


def test_a_log_has_lines_and_warnings_in_their_order() -> None:
    code = "import sys; from host import text; text.prepare_output();"
    code += "print('fetching'); print('Downloading', file=sys.stderr); print('fetched')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.stdout == "fetching\nDownloading\nfetched\n"


@pytest.mark.parametrize("both", [False, True])
def test_it_outlives_its_reader_and_says_so_once(tmp_path, both) -> None:
    """Where errors go the same way, nobody hears of it, and it goes on all the same."""
    code = "import sys; from host import text; text.prepare_output('it goes on');"
    code += "[print(n) for n in range(100_000)]; print('done', file=sys.stderr);"
    code += f"open({str(tmp_path / 'done')!r}, 'w')"
    pipe = f'"$0" -c "$1" {"2>&1 " * both}| head -n 1; exit ${{PIPESTATUS[0]}}'
    line = ["bash", "-c", pipe, sys.executable, code]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    said = "" if both else "it goes on\ndone\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", said)
    assert (tmp_path / "done").exists()
