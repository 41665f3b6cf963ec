"""Minutes of products whose every bit is known: does each device compute right when it is hot?

The matrices hold -1, 0 and 1, so that no sum on the way leaves the whole numbers that FP16, BF16,
TF32 and FP32 all hold exactly: whatever the order of adding, one result is right, and every other
is a fault. Copies of the left matrix fill most of the memory, and are read in turn.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

import pynvml
import torch
from torch import Tensor

from doctor.finding import Finding, fail, ok
from doctor.inside import devices
from doctor.inside.slowing import NAME, Seen, slowed
from host import kernel, limits, meminfo, nvidia

_SIZE = {"cuda": 4096, "cpu": 1024}  # rows and columns
_FILLED = {"cuda": 0.8, "cpu": 0.25}  # of the memory that is free
_EXACT = 256  # whole numbers up to here are exact in BF16
_ROUND = 0.5  # seconds of products between looks
_UNCORRECTED, _VOLATILE = 1, 0  # of NVML's errors: those since the driver was loaded


@dataclass
class _Part:
    """A device at work: `copies[kind][n] @ rights[kind]` is `expected[kind]`, for every n."""

    device: torch.device
    lefts: dict[torch.dtype, Tensor]
    copies: dict[torch.dtype, Tensor]
    rights: dict[torch.dtype, Tensor]
    expected: dict[torch.dtype, Tensor]
    products: int = 0
    seen: Seen = field(default_factory=Seen)
    rates: list[float] = field(default_factory=list)
    first: float | None = None  # seconds until a product was wrong

    def __post_init__(self) -> None:
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        self._outs = {kind: torch.empty_like(right) for kind, right in self.rights.items()}
        self._round = 1
        self._errors = self._uncorrected()

    @property
    def name(self) -> str:
        return f"GPU {self.device.index}" if self.device.type == "cuda" else "the CPU"

    def queue(self) -> None:
        """Start a round of products; a GPU goes on by itself."""
        kinds = list(self.copies)
        for _ in range(self._round):
            turn, number = divmod(self.products, len(kinds))
            kind = kinds[number]
            copies, out = self.copies[kind], self._outs[kind]
            torch.mm(copies[turn % len(copies)], self.rights[kind], out=out)
            self.wrong += (out != self.expected[kind]).any()
            self.products += 1

    def look(self, begun: float, started: float) -> None:
        """Wait for the round, and see how it went."""
        if int(self.wrong) and self.first is None:
            self.first = time.monotonic() - begun
        rate = self._round / max(time.monotonic() - started, 1e-6)
        self.rates.append(rate)
        self._round = max(1, int(rate * _ROUND))
        if self.device.type == "cuda":
            self._sample()

    def kept(self) -> bool:
        """Whether each copy still is what was written."""
        return all(
            torch.equal(copy, self.lefts[kind])
            for kind, copies in self.copies.items()
            for copy in copies  # one by one: a comparison of all would need half as much again
        )

    def errors(self) -> int:
        """Uncorrected memory errors since the beginning."""
        return self._uncorrected() - self._errors

    def _sample(self) -> None:
        gpu = devices.handle(self.device.index)
        with suppress(pynvml.NVMLError):  # not every card answers every question
            self.seen.heat = max(self.seen.heat, pynvml.nvmlDeviceGetTemperature(gpu, 0))
        with suppress(pynvml.NVMLError):
            power = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3
            self.seen.power = max(self.seen.power, power)
        with suppress(pynvml.NVMLError):
            running = len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu))
            self.seen.others = max(self.seen.others, running - 1)
        with suppress(pynvml.NVMLError):
            reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            self.seen.slowed |= reasons & sum(nvidia.SLOWED)

    def _uncorrected(self) -> int:
        if self.device.type != "cuda":
            return 0
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            gpu = devices.handle(self.device.index)
            return int(pynvml.nvmlDeviceGetTotalEccErrors(gpu, _UNCORRECTED, _VOLATILE))
        return 0


def stress(minutes: float) -> Finding:
    """Each GPU at once, or the CPU, for some minutes; the CPU where there is no GPU."""
    count = devices.count()
    names = [f"cuda:{n}" for n in range(count)] or ["cpu"]
    torch.set_num_threads(limits.cpus())
    parts = _parts([torch.device(name) for name in names])
    begun = time.monotonic()
    while time.monotonic() - begun < 60 * minutes:
        started = time.monotonic()
        for part in parts:
            part.queue()
        for part in parts:
            part.look(begun, started)
    return _judged(parts, minutes, kernel.gpu_error(time.monotonic() - begun) if count else None)


def _parts(found: list[torch.device]) -> list[_Part]:
    size = _SIZE[found[0].type]
    generator = torch.Generator().manual_seed(0)
    left, right = (_thirds(size, generator) for _ in range(2))
    exact = (left.double() @ right.double()).float()
    if int(exact.abs().max()) > _EXACT:
        raise ValueError("the product does not fit into BF16")
    parts = []
    for device in found:
        kinds = [torch.float32]
        if device.type == "cuda":
            newer = torch.cuda.get_device_capability(device) >= (8, 0)
            kinds.append(torch.bfloat16 if newer else torch.float16)
        room = _FILLED[device.type] * _free(device) / len(kinds)
        lefts = {kind: left.to(device, kind) for kind in kinds}
        copies = {
            kind: there.expand(max(1, int(room / there.nbytes)), size, size).clone()
            for kind, there in lefts.items()
        }
        rights = {kind: right.to(device, kind) for kind in kinds}
        expected = {kind: exact.to(device, kind) for kind in kinds}
        parts.append(_Part(device, lefts, copies, rights, expected))
    return parts


def _thirds(size: int, generator: torch.Generator) -> Tensor:
    """A square of -1, 0, 0 and 1: half of it is 0, so that sums of 4,096 stay below 256."""
    signs = torch.randint(-1, 3, (size, size), generator=generator)
    return torch.where(signs == 2, 0, signs).float()


def _free(device: torch.device) -> int:
    """Bytes that nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = meminfo.free() or 0
    limit, used = limits.memory(), limits.memory_used()
    return free if limit is None or used is None else max(0, min(free, limit - used))


def _judged(parts: list[_Part], minutes: float, logged: str | None) -> Finding:
    hide = "until then hide it with CUDA_VISIBLE_DEVICES"
    for part in parts:
        on_gpu = part.device.type == "cuda"
        seen = _figures(part)
        mend = (
            f"check power plugs, cooling and overclocking; have it replaced; {hide}"
            if on_gpu
            else "BIOS: take back overclocking and memory profiles (XMP, EXPO); run memtest86+"
        )
        if part.first is not None:
            wrong = f"{int(part.wrong)} of them wrong, the first after {part.first:.0f} s"
            return fail(NAME, f"{seen}; {wrong}", "it computes wrong weights without a word", mend)
        if not part.kept():
            changed = "numbers in its memory changed by themselves"
            return fail(NAME, f"{seen}; {changed}", "weights change there without a word", mend)
        if part.errors() > 0:
            found = f"{part.errors()} uncorrected errors in its memory"
            return fail(NAME, f"{seen}; {found}", "programs on it end, or compute wrongly", mend)
    if logged is not None:
        return fail(
            NAME,
            f"the kernel's log has {logged}",
            "a training would have ended there",
            "sudo dmesg | grep -iE 'nvrm|xid'; docs/machine.md says what the numbers mean",
        )
    for part in parts:
        # A CPU is shared: any other program may make its products slow.
        on_gpu = part.device.type == "cuda"
        slow = slowed(part.seen, part.rates, _figures(part)) if on_gpu else None
        if slow is not None:
            return slow
    figures = "; ".join(_figures(part) for part in parts)
    return ok(NAME, f"{minutes:g} min: {figures}, none wrong")


def _figures(part: _Part) -> str:
    taken = sum(copies.nbytes for copies in part.copies.values())
    seen = f"{part.name}: {part.products:,} products through {taken / 2**30:.1f} GiB"
    if part.seen.heat:
        seen += f", {part.seen.heat} °C and {part.seen.power:.0f} W at most"
    return seen
