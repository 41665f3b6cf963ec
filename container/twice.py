"""Build the image twice from nothing, and name each file that is not the same in both.

    make image-twice

Compares path, kind, mode, owner, date and content of all files; needs room for two images. Exit 1
where something differs.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from typing import IO, Dict, Tuple

from container import compose
from host import docker
from host.errors import LockstepError

# Made by the engine for each container, and with them the dates of the folders they are in.
_ENGINES = (
    ".dockerenv",
    "dev/",
    "etc/hostname",
    "etc/hosts",
    "etc/mtab",
    "etc/resolv.conf",
    "proc/",
    "sys/",
)

Tree = Dict[str, Tuple[object, ...]]


def tree(image: str) -> Tree:
    """Each path in an image, with all that is to be the same: kind, mode, owner, date, content."""
    made = subprocess.run(["docker", "create", image], capture_output=True, text=True, check=True)
    name = made.stdout.strip()
    with subprocess.Popen(["docker", "export", name], stdout=subprocess.PIPE) as export:
        found = _read(export.stdout)
    subprocess.run(["docker", "rm", name], capture_output=True, check=False)
    return found


def _read(stream: IO[bytes] | None) -> Tree:
    found: Tree = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.name.startswith(_ENGINES):
                continue
            date = 0 if member.name in ("dev", "etc") else member.mtime
            digest = hashlib.sha256()
            content = archive.extractfile(member) if member.isfile() else None
            while content and (block := content.read(1 << 20)):
                digest.update(block)
            found[member.name] = (
                member.type,
                oct(member.mode & 0o7777),
                member.uid,
                member.gid,
                date,
                member.linkname,
                digest.hexdigest(),
            )
    return found


def differences(one: Tree, other: Tree) -> list[str]:
    """A line for each path that is not the same in both."""
    kinds = ("kind", "mode", "user", "group", "date", "link", "content")
    found = []
    for path in sorted(one.keys() | other.keys()):
        if path not in one or path not in other:
            found.append(f"{path}: only in the {'second' if path not in one else 'first'}")
        elif one[path] != other[path]:
            what = [k for k, a, b in zip(kinds, one[path], other[path]) if a != b]
            found.append(f"{path}: {', '.join(what)}")
    return found


def main() -> int:
    """Build, compare, say."""
    trees = []
    try:
        docker.answers()
        for _ in range(2):
            compose.run(["build", "--no-cache", "train"])
            trees.append(tree(compose.tag()))
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    found = differences(*trees)
    for line in found[:100]:
        print(line)
    print(f"{len(trees[0])} files, {len(found)} of them differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
