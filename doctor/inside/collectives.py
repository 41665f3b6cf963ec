"""Whether processes hear each other: all-reduce, broadcast, send and receive, with a limit.

NCCL between GPUs, gloo on the CPU. A broken path would otherwise show after half an hour of
silence. Where it fails, what people set for it is tried, and what helps is named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from doctor import nvlink
from doctor.finding import Finding, fail, ok, skip, warn
from doctor.inside import devices
from host import HOME, launcher
from host.machine import Machine

LIMIT = 20.0
"""Seconds that the processes have, from when all of them are ready."""
# Seconds until the first is ready, and from then on until the last one is. Imports from a cold disk
# are slow; so is NCCL, which starts CUDA on each GPU when it is first used.
_START, _LATE, _NCCL = 90.0, 30.0, 30.0
_WORDS = {"nccl": 64 << 20, "gloo": 1 << 20}  # float32 in a message: 256 and 4 MiB
# Of what a link gives each way, the least that an all-reduce should reach. Of such a message it
# reaches 0.7 or more over NVLink; over PCIe 0.8 where GPUs reach each other, and less than half of
# that through the host's memory, which several share.
_NVLINK, _PCIE = 0.4, 0.15

# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, the mildest first.
_TRIES = {
    "nccl": ("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_IB_DISABLE=1"),
    "gloo": ("GLOO_SOCKET_IFNAME=lo",),
}


def collectives(machine: Machine) -> Finding:
    """All GPUs talk to each other, and as fast as their links let them; or two on the CPU."""
    gpus = devices.count()
    if gpus == 1:
        return skip("collectives", "fewer than two GPUs")
    if not gpus:
        return check(2, "gloo", LIMIT)
    return check(gpus, "nccl", LIMIT + _NCCL, nvlink.between(machine))


def check(
    world: int, backend: str, limit: float, between: tuple[float, str] | None = None
) -> Finding:
    """As `collectives`.

    Args:
        world: processes.
        limit: seconds.
        between: GB/s each way between the GPUs, and over what, where that is known.
    """
    figures, said = talk(world, backend, limit, {})
    if figures is None:  # a cold start is slow once; what helped the second time must have helped
        figures, said = talk(world, backend, limit, {})
    if figures is not None:
        rates = ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in figures.items())
        seen = f"{world} processes over {backend}: {rates}"
        return slow(seen, figures["all-reduce"], between) or ok("collectives", seen)
    why = "training on several processes would hang for half an hour, and then end"
    for variable in _TRIES[backend]:
        name, value = variable.split("=")
        if talk(world, backend, limit, {name: value})[0] is not None:
            return fail("collectives", said, why, f"echo {variable} >> .env   # tried, and helps")
    most = {
        "nccl": "NCCL_DEBUG=INFO make doctor   # NCCL_SOCKET_IFNAME=eth0 where there are several"
        " networks; BIOS: IOMMU and ACS off",
        "gloo": "GLOO_SOCKET_IFNAME=eth0 make doctor   # or the name that `ip addr` shows",
    }
    return fail("collectives", said, why, most[backend])


def slow(seen: str, rate: float, between: tuple[float, str] | None) -> Finding | None:
    """What to say of an all-reduce that is slower than the links between the GPUs are."""
    if between is None:
        return None
    link, name = between
    if rate >= link * (_NVLINK if name == "NVLink" else _PCIE):
        return None
    return warn(
        "collectives",
        f"{seen}; {name} gives {link:.0f}",
        "at each step the GPUs wait for each other longer than they have to",
        "nvidia-smi topo -m; unset NCCL_P2P_DISABLE and its like (env | grep NCCL, and .env); BIOS:"
        " ACS and IOMMU off; NCCL_DEBUG=INFO make doctor says which way it takes",
    )


def talk(
    world: int, backend: str, limit: float, variables: dict[str, str]
) -> tuple[dict[str, float] | None, str]:
    """Let `world` processes talk; GB/s by operation, or None and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "doctor.inside.collectives", backend, folder, str(limit)]
        # The launcher's variables of this process are not theirs.
        known = {
            name: value for name, value in os.environ.items() if name not in launcher.VARIABLES
        }
        path = os.pathsep.join(filter(None, (str(HOME), known.get("PYTHONPATH"))))
        environ = {**known, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
        logs = [Path(folder) / f"log-{rank}" for rank in range(world)]
        started = []
        for rank, log in enumerate(logs):
            with log.open("wb") as out:
                started.append(
                    subprocess.Popen(
                        [*words, str(rank), str(world)], env=environ, stdout=out, stderr=out
                    )
                )
        try:
            said = _wait(started, Path(folder), limit)
        finally:
            for process in started:
                process.kill()
            for process in started:
                with suppress(subprocess.TimeoutExpired):  # one in the driver's hands may not die
                    process.wait(timeout=5)
        places = [_read(Path(folder) / f"rank-{rank}") for rank in range(world)]
        if said is None and all(process.returncode == 0 for process in started):
            return places[0]["figures"], ""
        stuck = [f"process {n} at {place.get('at', 'its start')}" for n, place in enumerate(places)]
        last = [_last(log) for log in logs]
        errors = [text for text in last if "Error" in text]
        return None, f"{said or 'failed'}: {errors[0] if errors else ', '.join(stuck)}"


def _wait(started: list[subprocess.Popen[bytes]], folder: Path, limit: float) -> str | None:
    """Wait for all; what is to be said where they did not come to an end, or one failed."""
    begun = time.monotonic()
    first: float | None = None  # when one was ready, and when all were
    every: float | None = None
    while any(process.poll() is None for process in started):
        now = time.monotonic()
        if any(process.poll() not in (None, 0) for process in started):
            return "failed"
        count = len(list(folder.glob("rank-*[0-9]")))
        first = first or (now if count else None)
        every = every or (now if count == len(started) else None)
        if first is None and now - begun > _START:
            return f"no start within {_START:g} s"
        if first is not None and every is None and now - first > _LATE:
            return f"no answer within {_LATE:g} s"
        if every is not None and now - every > limit:
            return f"no answer within {limit:g} s"
        time.sleep(0.05)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _last(log: Path) -> str:
    rows = [row.strip() for row in log.read_text(errors="replace").splitlines() if row.strip()]
    errors = [row for row in rows if "Error" in row]
    return (errors or rows or [""])[-1][:200]


def _member(backend: str, folder: Path, limit: float, rank: int, world: int) -> None:
    """One of the processes: says where it is, and at the end how fast it went."""
    note = folder / f"rank-{rank}"

    def at(place: str, figures: dict[str, float] | None = None) -> None:
        aside = note.with_suffix(".new")
        aside.write_text(json.dumps({"at": place, "figures": figures}))
        aside.replace(note)

    at("the meeting")
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=limit),
        device_id=device if backend == "nccl" else None,
    )
    data = torch.empty(_WORDS[backend], device=device)
    figures: dict[str, float] = {}

    def timed(name: str, share: float, expected: float) -> None:
        """Three rounds, the best of them; `share` of the message crosses the slowest link."""
        best = float("inf")
        for _ in range(3):
            data.fill_(rank + 1)
            dist.barrier()
            start = time.perf_counter()
            if name == "all-reduce":
                dist.all_reduce(data)
            elif name == "broadcast":
                dist.broadcast(data, src=world - 1)
            elif rank % 2 == 0 and rank + 1 < world:
                dist.send(data, rank + 1)
            elif rank % 2 == 1:
                dist.recv(data, rank - 1)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - start)
        if not bool((data == expected).all()):
            raise RuntimeError(f"Error: {name} brought wrong numbers")
        figures[name] = share * data.nbytes / best / 1e9

    for name, share, expected in (
        # Bus bandwidth as nccl-tests counts it.
        ("all-reduce", 2 * (world - 1) / world, world * (world + 1) / 2),
        ("broadcast", 1, world),
        ("send/recv", 1, rank if rank % 2 else rank + 1),
    ):
        at(name)
        timed(name, share, expected)
    at("the end", figures)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _member(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
