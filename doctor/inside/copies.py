"""Copies from GPU to GPU, in a process of their own: where they go wrong they may hang as well.

https://github.com/pytorch/pytorch/issues/84803: zeros, with an IOMMU between them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import torch

from host import HOME

_NUMBERS = 1 << 20
_LIMIT = 120  # seconds: torch is loaded, and each GPU is opened
_SHOWN = 4  # ways


def wrong(count: int) -> str | None:
    """What is wrong with the copies between the first `count` GPUs; None: they are right."""
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    started = subprocess.Popen(
        [sys.executable, "-m", "doctor.inside.copies", str(count)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        said, _ = started.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        started.kill()
        with suppress(subprocess.TimeoutExpired):  # one in the driver's hands may not die
            started.wait(timeout=5)
        return f"a copy from GPU to GPU does not come back within {_LIMIT} s"
    ways = said.split()
    if not ways or started.returncode:
        return None  # what CUDA says is said elsewhere
    changed = [way.replace(">", " to ") for way in ways if way != "end"]
    if not changed:
        return None
    shown = ", ".join(changed[:_SHOWN]) + ", …" * (len(changed) > _SHOWN)
    return f"what is copied from GPU {shown} arrives changed ({len(changed)} ways)"


def arrives(source: torch.device, target: torch.device) -> bool:
    """Whether a copy from device to device holds what was copied."""
    sent = torch.arange(1, _NUMBERS + 1, dtype=torch.int32, device=source)
    return torch.equal(sent.to(target).cpu(), sent.cpu())


def main(count: int) -> None:
    """Print the ways on which a copy arrives changed, such as 0>1, and that this is the end."""
    devices = [torch.device("cuda", n) for n in range(count)]
    ways = [(a, b) for a in range(count) for b in range(count) if a != b]
    print(*(f"{a}>{b}" for a, b in ways if not arrives(devices[a], devices[b])), "end")


if __name__ == "__main__":
    main(int(sys.argv[1]))
