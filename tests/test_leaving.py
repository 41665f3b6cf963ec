"""A trainer of several ends past the end of Python, and leaves nothing undone."""

import subprocess
import sys

from conftest import ROOT

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
