"""How fast each GPU is, beside what it should be: its link, its memory, its matrix units."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable

import pynvml
import torch

from doctor.finding import Finding, ok, skip, warn
from doctor.inside import datasheet, devices
from host import pci
from host.machine import Machine

# What is well: shares of what the link and the datasheet give.
_LINK, _MEMORY, _MATRIX = 0.7, 0.7, 0.5


def links(_machine: Machine) -> Finding:
    """Copies between pinned memory and each GPU, against what its link gives."""
    if not devices.count():
        return skip("host to GPU", "no GPU")
    said = []
    for n in range(devices.count()):
        host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=f"cuda:{n}")
        to = _rate(lambda: there.copy_(host, non_blocking=True), n, host.nbytes)  # noqa: B023
        link = _link(n)  # at once: when idle it slows down
        back = _rate(lambda: host.copy_(there, non_blocking=True), n, host.nbytes)  # noqa: B023
        seen = f"GPU {n}: {to:.1f} GB/s to it, {back:.1f} back"
        if link and not is_well(min(to, back), link.rate, _LINK):
            return warn(
                "host to GPU",
                f"{seen}; {link} gives {link.rate:.0f}",
                "batches arrive slowly, and sharding or offload would crawl",
                "close what else uses the bus; BIOS: PCIe speed; numactl to the GPU's socket",
            )
        said.append(f"{seen} ({link})" if link else seen)
    return ok("host to GPU", "; ".join(said))


def memory(_machine: Machine) -> Finding:
    """Copies within each GPU's memory, against its datasheet."""
    if not devices.count():
        return skip("GPU memory", "no GPU")
    said = []
    for n in range(devices.count()):
        one = torch.empty(512 << 20, dtype=torch.uint8, device=f"cuda:{n}")
        other = torch.empty_like(one)
        # Read once and written once.
        rate = _rate(lambda: other.copy_(one), n, 2 * one.nbytes)  # noqa: B023
        sheet = datasheet.of(torch.cuda.get_device_name(n))
        beside = f" of {sheet.memory:.0f}" if sheet else ""
        seen = f"GPU {n}: {rate:.0f}{beside} GB/s"
        if sheet and not is_well(rate, sheet.memory, _MEMORY):
            return _slow("GPU memory", seen)
        said.append(seen)
    return ok("GPU memory", "; ".join(said))


def matrix(_machine: Machine) -> Finding:
    """Products of matrices in BF16, or FP16 where there is none, against the datasheet."""
    if not devices.count():
        return skip("matrix rate", "no GPU")
    said = []
    for n in range(devices.count()):
        half = torch.bfloat16 if torch.cuda.get_device_capability(n) >= (8, 0) else torch.float16
        size = 8192
        one = torch.randn(size, size, dtype=half, device=f"cuda:{n}")
        # 2·n³ operations; _rate counts in 10⁹.
        rate = _rate(lambda: one @ one, n, 2 * size**3) / 1e3  # noqa: B023
        sheet = datasheet.of(torch.cuda.get_device_name(n))
        beside = f" of {sheet.matrix:.0f}" if sheet else ""
        seen = f"GPU {n}: {rate:.0f}{beside} TFLOP/s in {str(half).split('.')[1]}"
        if sheet and not is_well(rate, sheet.matrix, _MATRIX):
            return _slow("matrix rate", seen)
        said.append(seen)
    return ok("matrix rate", "; ".join(said))


def is_well(measured: float, expected: float, share: float) -> bool:
    """Whether a figure is near enough to what it should be."""
    return measured >= share * expected


def _slow(name: str, seen: str) -> Finding:
    return warn(
        name,
        seen,
        "it trains slower than it should: heat, a power limit, or somebody else on it",
        "nvidia-smi -q -d PERFORMANCE,POWER,CLOCK",
    )


def _rate(work: Callable[[], object], device: int, amount: float) -> float:
    """10⁹ of `amount` per second: the best of several rounds, by the device's own clock."""
    with torch.cuda.device(device):
        best = float("inf")
        for _ in range(3):
            work()
        for _ in range(5):
            start: Any = torch.cuda.Event(enable_timing=True)
            end: Any = torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(5):
                work()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) / 5)
    return amount / (best * 1e-3) / 1e9


def _link(device: int) -> pci.Link | None:
    """The link as it is now, under load."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = devices.handle(device)
        generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        width = pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
        speeds = {number: speed for speed, number in pci.GENERATIONS.items()}
        if generation in speeds:
            return pci.Link(speeds[generation], width)
    return None
