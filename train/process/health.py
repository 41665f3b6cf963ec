"""How the machine fares while it trains, and what to say when it does not fare well.

Sampled once a second in a thread of its own: the loop pays for reading two clocks, and no more.
"""

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import psutil
import pynvml
import torch

from host import limits, nvidia
from train.config import Config

_PERIOD = 1.0  # seconds between samples
# Shares from which on something is said.
_STARVED, _FULL = 0.3, 0.95


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    def take(self) -> float:
        mean = self.total / max(1, self.count)
        self.total, self.count = 0.0, 0
        return mean


@dataclass
class Health:
    """Samples of this process and its device. Use it in a `with`."""

    device: torch.device
    _means: dict[str, _Mean] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Health":
        self._process = psutil.Process()
        self._gpu = _handle(self.device)
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(timeout=5)  # NVML may hang on a GPU that is lost

    def take(self, seconds: float, steps: int, spans: Mapping[str, float]) -> dict[str, float]:
        """Figures since the last call.

        Args:
            seconds, steps: of training in that time.
            spans: seconds of it in `data` and `communication`.

        Returns:
            Seconds, shares from 0 to 1, bytes, bytes per second, W and °C; those of a GPU where
            there is one.
        """
        with self._lock:
            figures = {name: mean.take() for name, mean in self._means.items() if mean.count}
        shares = {
            f"{name}_share": min(1.0, spans.get(name, 0.0) / max(seconds, 1e-9))
            for name in ("data", "communication")
        }
        shares["compute_share"] = max(0.0, 1.0 - sum(shares.values()))
        if self.device.type == "cuda":
            figures |= {
                "memory_allocated": torch.cuda.memory_allocated(self.device),
                "memory_reserved": torch.cuda.memory_reserved(self.device),
                # What torch keeps for later it gives back at need: no sign of want.
                "memory_peak": torch.cuda.max_memory_allocated(self.device),
                "memory_total": torch.cuda.get_device_properties(self.device).total_memory,
            }
        return {"step_seconds": seconds / max(steps, 1), **shares, **figures}

    def _watch(self) -> None:
        while not self._over.wait(_PERIOD):
            # A GPU that is lost must not take the training's record with it.
            with suppress(pynvml.NVMLError, psutil.Error, OSError):
                self._sample()

    def _sample(self) -> None:
        self._add("rss", self._process.memory_info().rss)
        self._add("load", os.getloadavg()[0])
        limit, used = limits.memory(), limits.memory_used()
        if limit and used is not None:
            self._add("memory_used_share", used / limit)
        if self._gpu is None:
            return
        gpu = self._gpu
        # Laptops, vGPUs and MIG do not answer every question.
        questions: dict[str, Callable[[], float]] = {
            "gpu_utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "gpu_power": lambda: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "gpu_temperature": lambda: pynvml.nvmlDeviceGetTemperature(gpu, 0),
            "gpu_throttled": lambda: float(
                bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & sum(nvidia.SLOWED))
            ),
            # KB/s, over 20 ms.
            "pcie_sent": lambda: pynvml.nvmlDeviceGetPcieThroughput(gpu, 0) * 1e3,
            "pcie_received": lambda: pynvml.nvmlDeviceGetPcieThroughput(gpu, 1) * 1e3,
        }
        for name, ask in questions.items():
            with suppress(pynvml.NVMLError):
                self._add(name, ask())

    def _add(self, name: str, value: float) -> None:
        with self._lock:
            self._means.setdefault(name, _Mean()).add(value)


def complaints(figures: Mapping[str, float], config: Config, workers: int) -> dict[str, str]:
    """What is wrong by kind: starved, throttled, full.

    Args:
        figures: as `Health.take` returns them.
        workers: loader processes that there is room for beside each trainer.
    """
    found: dict[str, str] = {}
    share = figures["data_share"]
    if share > _STARVED:
        found["starved"] = (
            f"{100 * share:.0f} % of step time waits for data: {_more(share, config, workers)}"
        )
    if figures.get("gpu_throttled", 0) > 0.5:
        found["throttled"] = (
            f"heat or power slows the GPU down ({figures.get('gpu_temperature', 0):.0f} °C,"
            f" {figures.get('gpu_power', 0):.0f} W): check fans, airflow and power; make doctor"
        )
    memory = figures.get("memory_peak", 0) / figures.get("memory_total", 1)
    where = "GPU memory"
    if figures.get("memory_used_share", 0) > memory:
        memory, where = figures["memory_used_share"], "the cgroup's memory limit"
    if memory > _FULL:
        found["full"] = f"{100 * memory:.0f} % of {where} are taken: raise lanes, or PRECISION=bf16"
    return found


def _more(share: float, config: Config, workers: int) -> str:
    """How many loader processes would keep up with the steps, or what else helps."""
    now = config.data.workers
    # A step's data took share / (1 - share) of its computing; so many at once keep pace with it.
    busy = share / max(1 - share, 0.01)
    wanted = math.ceil(now * (1 + busy)) if now else max(1, math.ceil(busy))
    cache = "or cache: data.cache (GiB) keeps images decoded"
    if now >= workers:
        return f"all {workers} CPUs' worth of data.workers are in use; {cache[3:]}"
    return f"raise data.workers to {min(wanted, workers)}, {cache}"


def _handle(device: torch.device) -> Any:
    """NVML's handle of the device; None on the CPU, or where NVML does not work."""
    if device.type != "cuda":
        return None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return None
