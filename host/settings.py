"""Variables for make, Compose and the doctor: the environment's, and else those of .env.

    python3 -m host.settings CONFIG

prints what .env says of one of make's variables, and nothing where it is silent.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from typing import Mapping

from host import HOME, dotenv, keys, nodes
from host.errors import LockstepError, UsageError

WHERE = ("GPUS", "CPUS", "ACCELERATE")
"""Each of them says where to train: one in the environment outweighs all of .env's."""
PASSED = (
    "GPUS",
    "CPUS",
    "SHARES",
    "STAGES",
    "PRECISION",
    "ACCELERATE",
    *nodes.OURS,
    "BASE_IMAGE",
    "APT_SNAPSHOT",
    "DATA",
    "CACHE",
    "CODE",
    "TENSORBOARD_PORT",
    "WANDB_API_KEY_FILE",
    "HF_TOKEN_FILE",
)
"""What a container is to know as well."""
# make itself reads the first four, Compose the others.
_OTHERS = ("CONFIG", "ENGINE", "CUDA", "DOCTOR", "SHM_SIZE", "READ_ONLY", "MEMLOCK", "CDI_GPU")
_READ = ("CUDA", "MEMLOCK")  # by us as well
_ONCE = ("RUN", "ARGS", "PYTHON")


# What PyTorch and its libraries read; places are the host's, and a key has a way of its own.
_LIBRARY = re.compile(
    "(NCCL|TORCH|TORCHINDUCTOR|PYTORCH|CUBLAS|CUDNN|GLOO|MKL|DNNL|ONEDNN|ATEN|TIMM|HF)_"
    "(?!NET$|.*(HOME|DIR|PATH|FILE|CACHE|TOKEN|KEY|OUT|TRACE|PLUGIN|ROOT)$)|NVIDIA_TF32_OVERRIDE$"
)


def libraries(environ: Mapping[str, str]) -> list[str]:
    """The variables that libraries read, and that a container would not know by itself."""
    return sorted(name for name in environ if _LIBRARY.match(name))


def read() -> dict[str, str]:
    """The environment, and what .env says of the same variables where that is silent.

    Raises:
        UsageError: .env cannot be read, or sets what would do nothing there.
    """
    filed = _filed()
    own = {n: v for n, v in filed.items() if n in (*PASSED, *_READ) and n not in os.environ}
    if any(os.environ.get(name) for name in WHERE):
        own.update({name: "" for name in (*WHERE, "SHARES") if name in own})
    return {**os.environ, **own}


def _filed() -> dict[str, str]:
    """All that .env says; a misspelt variable of make's would be ignored in silence."""
    path = HOME / ".env"
    filed = dotenv.read(path)
    known = (*PASSED, *_OTHERS)
    for name in filed:
        if name in _ONCE:
            raise UsageError(
                f"{path}: {name} does nothing there", f"write it behind make: {name}=…"
            )
        if name in (*known, *keys.NAMES):
            continue
        # Other names are for the trainer and libraries. 0.8: GPU and GPUS, but not CODE and MODE.
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
        if near:
            raise UsageError(
                f"{path}: make has no variable {name}; did you mean {near[0]}?",
                "rename it, or give your own another name",
            )
    return filed


def main(name: str) -> int:
    """Print what .env says of a variable."""
    try:
        print(_filed().get(name, ""))
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
