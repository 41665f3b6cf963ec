"""The end of a trainer that is one of several, without the last part of Python's own.

A thread of gloo that still has a tensor of the last exchange takes Python's lock to give it back.
If Python is being taken down by then, it ends that thread, and C++ the process: "terminate called
without an active exception", SIGABRT, after a training that went well. It is rare, and comes where
the processors are busy.
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End with `code`, once threads and what was registered for the end are done."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
