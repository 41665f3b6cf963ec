"""What a devcontainer has to know of this host, as .devcontainer/host.yml.

python3 -m container.devcontainer       (devcontainer.json does so at each start)
"""

from __future__ import annotations

import os
import sys

from container import overlay
from host import HOME, cuda, docker
from host.errors import LockstepError


def settings() -> tuple[str, str]:
    """The Compose file, and what is to be said ("" mostly).

    Raises:
        HostError: no CUDA line fits this host.
    """
    host = cuda.look()
    line = cuda.fitting_line(os.environ, host)
    # Editors want a user by name, whose UID becomes the caller's; root keeps root's files.
    text = f"""services:
  dev:
    image: lockstep-dev:{line.name}
    user: {"root" if os.getuid() == 0 or docker.rootless() else "ubuntu"}
    build:
      args:
        CUDA: {line.name}
"""
    # All GPUs: an editor passes no variables on by which some could be chosen.
    files, _, said = overlay.choose({}, host, docker.handover() if host else None)
    if files:
        text += f"    extends:\n      file: {HOME / files[0]}\n      service: dev\n"
    return text, said


def main() -> int:
    """Write the file."""
    try:
        text, said = settings()
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    if said:
        print(said, file=sys.stderr)
    (HOME / ".devcontainer" / "host.yml").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
