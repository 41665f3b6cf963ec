"""A PyTorch whose import ends with an error: what hinders it, by the last line of what it says."""

from __future__ import annotations

import re

from doctor import importing
from host.machine import Answer

_OURS = "make train has a PyTorch of its own"
_CRASHES = {-6: 6, 134: 6, -11: 11, 139: 11}
# What whoever starts it says; why; what helps.
_UNSTARTED = (
    (
        r"error while loading shared libraries: libpython\S+: cannot open shared object file",
        "the Python that its environment was made with is a module's, or is gone",
        "module load that Python again, as when it was made; or make the environment anew",
    ),
    (
        r"cannot execute binary file: Exec format error|Exec format error",
        "its environment was made on a machine with another processor",
        "make it anew on a machine of this kind (uname -m)",
    ),
    (
        r"\bpython[\d.]*: Transport endpoint is not connected",
        "it lies on a file system whose program has ended",
        "mount that anew (cvmfs_config wipecache, or its service), or take another machine",
    ),
)
_ABSENT = re.compile(r"No module named '?torch'?$")


def of_interpreter(answer: Answer) -> tuple[str, str, str] | None:
    """What keeps python itself from starting: what is seen, why, and what helps."""
    if answer.code not in (1, 126, 127):
        return None
    for sign, why, fix in _UNSTARTED:
        found = re.search(sign, answer.err)
        if found:
            return f"does not start: {found.group()}"[:160], why, fix
    return None


def of(answer: Answer) -> tuple[str, str, str] | None:
    """What is seen, why, and what helps; None where there is no PyTorch, or it does start."""
    return of_interpreter(answer) or _of_torch(answer)


def _of_torch(answer: Answer) -> tuple[str, str, str] | None:
    """The same of its import alone."""
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    if answer.code == -4 or "Illegal instruction" in answer.err:
        return (
            "does not start: Illegal instruction",
            "it, or its NumPy, has instructions that this processor lacks",
            (
                "take a build for this processor, or a newer processor; on a Jetson first: export"
                f" OPENBLAS_CORETYPE=ARMV8; {_OURS}"
            ),
        )
    if answer.code in _CRASHES:
        return (
            f"does not start: it crashes (signal {_CRASHES[answer.code]})",
            "a library of another PyTorch, or of another C++, may be loaded in place of its own",
            "unset LD_LIBRARY_PATH LD_PRELOAD; else install it anew, in an environment of its own",
        )
    last = next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), ""
    )
    # A Python 2 does not even read what it is asked.
    if answer.code == 0 or not last or _ABSENT.search(last) or last.startswith("SyntaxError"):
        return None
    bare = re.sub(r"/\S*/(?=[^/\s]+)", "", last.partition(": ")[2] or last)  # says less of folders
    seen = f"does not start: {bare}"[:160]
    apart = re.search(r"/(lib64/python[\d.]+/site-packages)/torch/", answer.err)
    if apart and re.search(r"lib(?:cu|nv|nccl)\S*: cannot open", last):
        here = apart.group(1)
        return (
            seen,
            "it is in lib64, and the nvidia- packages that belong to it may be in lib",
            (
                "pip install --force-reinstall torch; or, in its environment: test -L lib64 || ln"
                f" -s ../../../{here.replace('lib64', 'lib', 1)}/nvidia {here}/nvidia"
            ),
        )
    for sign, why, fix in importing.CAUSES:
        found = re.search(sign, last)
        if found:
            groups = [(each or "").strip("'`\"()") for each in found.groups()]
            return seen, why.format(*groups), fix.format(*groups)
    return seen, "programs that use it end at once", "install it anew, in an environment of its own"
