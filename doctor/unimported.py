"""A PyTorch whose import ends with an error: what hinders it, by the last line of what it says."""

from __future__ import annotations

import re

from host.machine import Answer

_OURS = "make train has a PyTorch of its own"
_TOOLKIT = (
    "libraries of another CUDA, or of another cuDNN or NCCL, are found before those it brings",
    (
        "unset LD_LIBRARY_PATH; else pip list | grep nvidia-, take out those of another CUDA, and"
        " pip install --force-reinstall torch"
    ),
)
# Sign; why; what helps. The first that fits counts.
_CAUSES = (
    (r"undefined symbol: (?:__)?(?:nvJitLink|cublas|cudnn|cusparse|nccl|cuda)", *_TOOLKIT),
    (r"libcud(?:nn|art)\S*: (?:undefined symbol|version)|version libcud\S+ not defined", *_TOOLKIT),
    (
        r"cuDNN version incompat|Could not load library libcud|libcudnn\S*: version mismatch",
        *_TOOLKIT,
    ),
    (
        r"lib(?:cu|nv|nccl)\S*: cannot open shared object file: No such file",
        "a library of CUDA that belongs to it is not installed",
        "pip install --force-reinstall torch   # brings its nvidia- packages",
    ),
    (
        r"undefined symbol: iJIT_",
        "conda's newer MKL does not fit it",
        "conda install 'mkl<2024.1'",
    ),
    (
        r"(\S+): cannot allocate memory in static TLS block",
        "that library is loaded too late",
        "export LD_PRELOAD={0}",
    ),
    (
        r"(\S+): version .(?:GLIBCXX|CXXABI)_[\d.]+. not found",
        "the C++ library that is found first, {0}, is older than it wants",
        (
            "in conda: conda install -c conda-forge libstdcxx-ng, and"
            " LD_LIBRARY_PATH=$CONDA_PREFIX/lib;"
            " else a newer system, or a container"
        ),
    ),
    (
        r"version .GLIBC_([\d.]+). not found",
        "the system's C library is older than {0}",
        "a newer system, or a container: make train ENGINE=docker",
    ),
    (
        r"(\S+): cannot enable executable stack",
        "the system's C library (2.41 or newer) does not load what asks for an executable stack",
        "take a newer PyTorch; or patchelf --clear-execstack on that file ({0})",
    ),
    (
        r"failed to map segment from shared object",
        "its folder is mounted noexec, or a limit of address space (ulimit -v) is too small",
        "install it on another file system; or ulimit -v unlimited",
    ),
    (
        r"getpwuid\(\): uid not found",
        "this user has no name in this container",
        "start it with -e USER=me -e TORCHINDUCTOR_CACHE_DIR=/tmp/inductor",
    ),
    (
        r"No usable temporary directory",
        "there is no folder for temporary files that may be written and has room",
        "make room in /tmp (sudo chmod 1777 /tmp), or export TMPDIR= a folder that may be written",
    ),
    (
        r"No module named '(_\w+)'",
        "this python was built without {0}",
        (
            "install the library's headers (liblzma-dev, libffi-dev, libbz2-dev), and"
            " build that python again; or take the system's"
        ),
    ),
    (
        (
            r"No module named 'torch\._C'|partially initialized module 'torch'"
            r"|module 'torch' has no attribute '(?:__version__|version|backends)'"
        ),
        "a folder or a file called torch is found before the installed one",
        "run python in another folder, or rename that one",
    ),
    (
        r"[Ii]nvalid ELF header|file too short|Input/output error|Bus error",
        "a file of it is damaged, or its disk cannot be read",
        "df -h; sudo dmesg | grep -i error; pip install --force-reinstall --no-cache-dir torch",
    ),
    (
        r"Permission denied",
        "a file of it may not be read by this user",
        "sudo chmod -R a+rX its folder; or install it again as this user",
    ),
)
_ABSENT = re.compile(r"No module named '?torch'?$")


def of(answer: Answer) -> tuple[str, str, str] | None:
    """What is seen, why, and what helps; None where there is no PyTorch, or it does start."""
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    if answer.code == -4 or "Illegal instruction" in answer.err:
        return (
            "does not start: Illegal instruction",
            "it has instructions that this processor lacks",
            f"take a build for this processor, or a newer processor; {_OURS}",
        )
    last = next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), ""
    )
    # A Python 2 does not even read what it is asked.
    if answer.code == 0 or not last or _ABSENT.search(last) or last.startswith("SyntaxError"):
        return None
    bare = re.sub(r"/\S*/(?=[^/\s]+)", "", last.partition(": ")[2] or last)  # says less of folders
    seen = f"does not start: {bare}"[:160]
    for sign, why, fix in _CAUSES:
        found = re.search(sign, last)
        if found:
            groups = [(each or "").strip("'`\"()") for each in found.groups()]
            return seen, why.format(*groups), fix.format(*groups)
    return seen, "programs that use it end at once", "install it anew, in an environment of its own"
