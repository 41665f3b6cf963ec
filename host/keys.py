"""Keys of services, from files: what stands in a variable stands in `docker inspect` as well."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import MutableMapping

from host import regular
from host.errors import UsageError

NAMES = ("WANDB_API_KEY", "HF_TOKEN")
_MOST = 1 << 12  # bytes


def _is_null(file: Path) -> bool:
    """Whether it is the null device: a container's own is another file than the host's."""
    kind = file.stat()
    return stat.S_ISCHR(kind.st_mode) and kind.st_rdev == Path(os.devnull).stat().st_rdev


def load(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set each key that is not set from the file that its name with `_FILE` behind it names.

    Compose mounts such files (`secrets:`); without one there is an empty file in its place.

    Raises:
        UsageError: a file cannot be read, or is no key.
    """
    for name in NAMES:
        named = environ.get(f"{name}_FILE")
        if not named or environ.get(name):
            continue
        file = Path(named).expanduser()
        try:
            # Compose puts the null device where there is no key.
            key = b"" if _is_null(file) else regular.read(file, _MOST)
            text = key.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            said = getattr(error, "strerror", None) or "it is no key"
            raise UsageError(
                f"cannot read {name}_FILE={file}: {said}", "name a file that holds the key alone"
            ) from error
        if len(text.split()) > 1:
            raise UsageError(
                f"{name}_FILE={file} holds more than a key", "name a file that holds the key alone"
            )
        if text:
            environ[name] = text
