"""That a checkpoint holds what was written: each file's digest, and none missing or added.

Loading libraries do not notice a flipped bit. The list of digests is therefore rebuilt from the
files and compared byte by byte, which also covers the list itself.
"""

import hashlib
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from host import limits, meminfo, regular
from host.errors import CheckpointError, nearest
from train.record import documents, rundir

SUMS = "SHA256SUMS"
SUFFIX = ".safetensors"
MODEL = "model"
"""The name that the weights stand by; no other part may have it."""
AVERAGE = "ema"
"""That of the weights' average."""
_FILE = re.compile(r"(?P<what>.+?)(\.(?P<part>\d+)of\d+)?\.safetensors", re.DOTALL)
FIX = "use another checkpoint of the run, such as an older step-*"


def average_of(weights: Path) -> Path | None:
    """The file beside a checkpoint's weights that holds their average, which was measured."""
    beside = weights.with_name(f"{AVERAGE}{SUFFIX}")
    return beside if weights.name == f"{MODEL}{SUFFIX}" and beside.is_file() else None


def verified(path: Path) -> tuple[bytes, dict[str, list[Path]]]:
    """What a checkpoint says, and its files of tensors by what they hold, in the order of parts,
    once all of them agree with its list of digests.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    if not path.is_dir():
        beside = [each.name for each in path.parent.glob("*")]
        raise CheckpointError(
            f"there is no checkpoint {path}{nearest(path.name, beside)}",
            f"name best, latest, or a step-* directory of {path.parent}",
        )
    try:
        present = sorted(path.iterdir())
        _check_size(path, present)
        content = {file.name: _digest(file) for file in present}
        recorded, state = (_said(path / name, content) for name in (SUMS, rundir.STATE))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or path}: {error.strerror}", FIX
        ) from error
    named = [
        line.split()[-1].decode(errors="replace") for line in recorded.splitlines() if line.strip()
    ]
    held = files_of(present)
    wanted = [] if MODEL in held else [f"{MODEL}{SUFFIX}"]
    for name in (*wanted, rundir.STATE, SUMS, *named):
        if name not in content:
            raise CheckpointError(f"{path / name} is missing", FIX)
    del content[SUMS]
    content[rundir.STATE] = hashlib.sha256(state).hexdigest()  # of what is returned
    found = listed(content)
    if recorded != found:
        stated = set(recorded.splitlines())
        bad = [line.split()[-1].decode() for line in found.splitlines() if line not in stated]
        raise CheckpointError(
            f"{path / (bad[0] if bad else SUMS)} is damaged: its SHA-256 is not the recorded one",
            FIX,
        )
    return state, held


def files_of(present: Iterable[Path]) -> dict[str, list[Path]]:
    """Files of tensors by what they hold; of several parts, in their order."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in present:
        name = _FILE.fullmatch(path.name)
        if name is not None:
            found.setdefault(name["what"], []).append((int(name["part"] or 0), path))
    return {what: [path for _, path in sorted(parts)] for what, parts in found.items()}


def file_of(what: str, part: int = 0, parts: int = 1) -> str:
    """The name of the file that holds so much of it."""
    return f"{what}{f'.{part}of{parts}' * (parts > 1)}{SUFFIX}"


def _digest(path: Path) -> str:
    """A file's SHA-256; it is not kept in memory."""
    file: Any = regular.opened(path)  # with readinto, of which BinaryIO says nothing
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _said(path: Path, there: Container[str]) -> bytes:
    return regular.read(path, documents.MOST) if path.name in there else b""


def _check_size(path: Path, found: list[Path]) -> None:
    """Refuse what would not fit into memory before any of it is read."""
    size = sum(file.stat().st_size for file in found)
    memory = limits.memory() or meminfo.total()
    if memory is not None and size > memory:
        raise CheckpointError(
            f"{path} holds {size / 2**30:.1f} GiB, and there are {memory / 2**30:.1f} of memory",
            FIX,
        )


def listed(digests: Mapping[str, str]) -> bytes:
    """The list that `sha256sum` would print of files with these digests."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()
