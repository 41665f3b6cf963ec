"""The ground floor: what is asked of a machine is asked here, once, for all who want to know.

Standard library only, and Python 3.8, so that it runs before anything is installed. It may decide
bits (how many threads there are to use), so run.json holds its files' hashes as well.
"""

from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
"""The checkout."""

INSIDE = Path("/etc/lockstep-image.json")
"""What an image of ours is made of; there is no such file outside of one."""

TOLD = "LOCKSTEP_TOLD"
"""A variable: what make was told of engine, data and hardware, as words of a shell."""

CONTAINER = "LOCKSTEP_CONTAINER"
"""A variable: a container's name, where make started it; Compose alone says nothing."""
