"""Variables for make, Compose and the doctor: the environment's, and else those of .env."""

from __future__ import annotations

import os

from host import HOME, dotenv

WHERE = ("GPUS", "CPUS", "ACCELERATE")
"""Each of them says where to train: one in the environment outweighs all of .env's."""
PASSED = (
    "GPUS",
    "CPUS",
    "PRECISION",
    "ACCELERATE",
    "BASE_IMAGE",
    "APT_SNAPSHOT",
    "CONFIG",
    "DATA",
    "CACHE",
    "CODE",
    "WANDB_API_KEY_FILE",
    "HF_TOKEN_FILE",
)
"""What a container is to know as well."""


def read() -> dict[str, str]:
    """The environment, and what .env says of the same variables where that is silent."""
    filed = dotenv.read(HOME / ".env")
    own = {n: v for n, v in filed.items() if n in (*PASSED, "CUDA") and n not in os.environ}
    if any(os.environ.get(name) for name in WHERE):
        own.update({name: "" for name in WHERE if name in own})
    return {**os.environ, **own}
