"""A checkpoint for machines that do not see the run directory: the main process sends its files.

What arrives is verified by its digests, as each checkpoint is that is read.
"""

import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from host.errors import HostError
from train.lanes.runtime import Runtime
from train.record.verification import SUMS

_CHUNK = 1 << 26  # bytes of a file that are sent at a time


@contextmanager
def everywhere(path: Path, runtime: Runtime) -> Iterator[Path]:
    """Where each process finds the checkpoint that the main one has at `path`.

    All processes call this together.

    Raises:
        HostError: a machine has no room for its copy.
    """
    if runtime.control is None:
        yield path
        return
    sums = runtime.from_main(_sums(path))
    own = platform.node(), _sums(path) == sums
    without = sorted({host for host, held in runtime.gathered(own) if not held})
    if not without:
        yield path
        return
    if runtime.main:
        print(f"sending {path.name} to {', '.join(without)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Each process of a machine keeps one of its own: which share a disk, none of them knows.
        copy = None if own[1] else Path(folder) / path.name
        _send(path, copy, runtime)
        yield copy or path
        runtime.any(flag=False)  # nobody leaves while others read


def _sums(path: Path) -> str | None:
    """What tells a checkpoint from another one of the same step."""
    try:
        return (path / SUMS).read_text()
    except OSError:
        return None


def _send(path: Path, copy: Path | None, runtime: Runtime) -> None:
    files = sorted(path.iterdir()) if runtime.main else []
    for name, size in runtime.from_main([(file.name, file.stat().st_size) for file in files]):
        with runtime.together():
            try:
                if copy is not None:
                    copy.mkdir(exist_ok=True)
                    (copy / name).write_bytes(b"")
            except OSError as error:
                raise _no_room(copy, error) from error
        for start in range(0, size, _CHUNK):
            chunk = torch.empty(min(_CHUNK, size - start), dtype=torch.uint8)
            if runtime.main:
                with (path / name).open("rb") as held:
                    held.seek(start)
                    chunk = torch.frombuffer(bytearray(held.read(_CHUNK)), dtype=torch.uint8)
            dist.broadcast(chunk, src=0, group=runtime.control)
            with runtime.together():
                try:
                    if copy is not None:
                        with (copy / name).open("ab") as file:
                            file.write(chunk.numpy().tobytes())
                except OSError as error:
                    raise _no_room(copy, error) from error


def _no_room(copy: Path | None, error: OSError) -> HostError:
    return HostError(
        f"{platform.node()} cannot keep a copy of the checkpoint in {copy}: {error.strerror}",
        "make room in TMPDIR there, or have all machines see the run directory",
        one_rank=True,
    )
