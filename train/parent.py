"""A trainer ends when its launcher is gone: nobody would restart it, stop it or read its exit code.

Otherwise a launcher that is killed leaves trainers behind that go on writing beside the run that
takes their place. Python offers nothing for this; on Linux the kernel does: prctl(2),
PR_SET_PDEATHSIG. Elsewhere a thread looks twice a second.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
# Seconds to save in. Alone, a process waits for nobody and may take as long as a launcher gives
# it; among others, one that is stuck must make room for the run's next start.
_ALONE, _AMONG = 30.0, 4.0


def signal_on_death(number: int) -> None:
    """Have the kernel send this process `number` when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def launched() -> bool:
    """Whether a launcher started this process: Accelerate's, or torchrun."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def end_with_launcher() -> None:
    """From now on: a request to stop when the launcher dies, and soon after it the end.

    Without a launcher, nothing: a run that was started with `nohup … &` outlives its shell.
    """
    if not launched():
        return
    parent = os.getppid()
    signal_on_death(signal.SIGTERM)
    seconds = _AMONG if int(os.environ.get("WORLD_SIZE", "1")) > 1 else _ALONE
    threading.Thread(target=_watch, args=(parent, seconds), daemon=True).start()


def _watch(parent: int, seconds: float) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(128 + signal.SIGKILL)
