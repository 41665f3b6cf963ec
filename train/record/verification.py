"""That a checkpoint holds what was written: each file's digest, and none missing or added.

Loading libraries do not notice a flipped bit. The list of digests is therefore rebuilt from the
files and compared byte by byte, which also covers the list itself.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from host import limits, regular
from host.errors import CheckpointError
from train.record import documents, rundir

SUMS = "SHA256SUMS"
SUFFIX = ".safetensors"
MODEL = "model"
"""The name that the weights stand by; no other part may have it."""
AVERAGE = "ema"
"""That of the weights' average."""
FIX = "use another checkpoint of the run, such as an older step-*"


def verified(path: Path) -> dict[str, bytes]:
    """A checkpoint's files by name, once all of them agree with its list of digests."""
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}", "name a step-* directory")
    try:
        present = sorted(path.iterdir())
        _check_size(path, present)
        content = {file.name: regular.read(file, _most(file.name)) for file in present}
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or path}: {error.strerror}", FIX
        ) from error
    named = [
        line.split()[-1].decode(errors="replace")
        for line in content.get(SUMS, b"").splitlines()
        if line.strip()
    ]
    for name in (f"{MODEL}{SUFFIX}", rundir.STATE, SUMS, *named):
        if name not in content:
            raise CheckpointError(f"{path / name} is missing", FIX)
    recorded = content.pop(SUMS)
    found = listed({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})
    if recorded != found:
        stated = set(recorded.splitlines())
        bad = [line.split()[-1].decode() for line in found.splitlines() if line not in stated]
        raise CheckpointError(
            f"{path / (bad[0] if bad else SUMS)} is damaged: its SHA-256 is not the recorded one",
            FIX,
        )
    return content


def _check_size(path: Path, found: list[Path]) -> None:
    """Refuse what would not fit into memory before any of it is read."""
    size = sum(file.stat().st_size for file in found)
    memory = limits.memory() or limits.memory_total()
    if memory is not None and size > memory:
        raise CheckpointError(
            f"{path} holds {size / 2**30:.1f} GiB, and there are {memory / 2**30:.1f} of memory",
            FIX,
        )


def _most(name: str) -> int | None:
    """Bytes that a file of a checkpoint may have, but for tensors."""
    return None if name.endswith(SUFFIX) else documents.MOST


def listed(digests: Mapping[str, str]) -> bytes:
    """The list that `sha256sum` would print of files with these digests."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()
