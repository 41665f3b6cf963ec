"""Record the digests of the base images in the Dockerfile's table, so that each build uses them.

make pin-images
"""

from __future__ import annotations

import re
import subprocess
import sys

from host import HOME
from host import lines as table
from host.errors import HostError, LockstepError


def digest(image: str) -> str:
    """The digest that the registry has for a tag today.

    Raises:
        HostError: the registry does not tell.
    """
    words = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HostError("there is no Docker on this machine", "install Docker Engine") from error
    found = re.search(r"sha256:[0-9a-f]{64}", done.stdout)
    if done.returncode != 0 or found is None:
        raise HostError(
            f"the registry does not tell the digest of {image}",
            "check the network and Docker's proxy",
        )
    return found.group(0)


def main() -> int:
    """Pin all lines; the Dockerfile changes when all are known."""
    path = HOME / "Dockerfile"
    text = path.read_text(encoding="utf-8")
    try:
        for line in table.lines():
            tag = line.image.split("@")[0]
            pinned = f"{tag}@{digest(tag)}"
            text = text.replace(f":-{line.image}}}", f":-{pinned}}}")
            print(f"{line.name}: {pinned}")
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
