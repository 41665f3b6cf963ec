"""Remove what Docker holds of this checkout: its containers, networks and images, and no others.

python3 -m container.clean
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from host import HOME, docker
from host.errors import HostError


def folders() -> set[str]:
    """This checkout's paths: Compose names the folder as it was reached, by a link perhaps."""
    reached = os.environ.get("PWD", "")
    # `make -C` may leave the caller's folder there, whose containers are not ours.
    return {str(HOME), reached} if reached and Path(reached).resolve() == HOME else {str(HOME)}


def _listed(*words: str) -> list[str]:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    return done.stdout.split()


def clean() -> None:
    """Remove them. An image that a container still uses stays, whosever it is."""
    projects = set()
    ours = [f"label=com.docker.compose.project.working_dir={folder}" for folder in folders()]
    for name in [name for own in ours for name in _listed("ps", "-aq", "--filter", own)]:
        label = '{{index .Config.Labels "com.docker.compose.project"}}'
        projects.update(_listed("inspect", "--format", label, name))
        # A run may save first.
        for words in (["stop", "--time", "120"], ["rm", "--force"]):
            subprocess.run(["docker", *words, name], capture_output=True, check=False)
    for project in projects | {docker.project()}:
        own = f"label=com.docker.compose.project={project}"
        for network in _listed("network", "ls", "--quiet", "--filter", own):
            # Refused while another's container is on it.
            subprocess.run(["docker", "network", "rm", network], capture_output=True, check=False)
    built = f"label=dev.lockstep.checkout={docker.project()}"
    for image in set(_listed("images", "--quiet", "--filter", built)):
        subprocess.run(["docker", "rmi", image], capture_output=True, check=False)


def main() -> int:
    """Clean, where an engine answers."""
    try:
        docker.answers()
    except HostError:
        return 0
    clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
