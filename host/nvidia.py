"""What nvidia-smi says: the driver, each GPU, who computes there, and which of them CUDA sees.

Fields and their values: `nvidia-smi --help-query-gpu`. A driver that does not know a field refuses
the whole question, so it is asked again without that field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence, Tuple

from host.machine import Answer, Machine
from host.text import number, whole

_FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "compute_cap",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
    "temperature.gpu",
    "power.limit",
    "power.default_limit",
    "persistence_mode",
    "display_active",
    "clocks.max.sm",
    "clocks_throttle_reasons.active",
)
# What only a look at everything asks for: drivers lack some of them, and each costs a question.
_HEALTH = (
    "index",
    "pci.bus_id",
    "compute_mode",
    "mig.mode.pending",
    "display_mode",
    "vbios_version",
    "ecc.errors.corrected.volatile.total",
    "retired_pages.pending",
    "fabric.state",
    "fabric.status",
    "gpu_recovery_action",
    "pstate",
    "utilization.gpu",
    "power.draw",
    "enforced.power.limit",
    "clocks.sm",
    "clocks_event_reasons.active",  # the same as clocks_throttle_reasons.active, since 535
)
_REMAPPED = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")


SLOWED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Bits of clocks_throttle_reasons.active, from nvml.h; the other ones are harmless."""

CAPPED = 0x4
"""The bit of one whose driver holds it to its power limit, as any under load."""

CONSUMER = re.compile("GeForce|TITAN|Quadro|NVIDIA RTX")
"""Names of cards for desks, which drive screens as well."""

_BOARD = re.compile(r"SXM|HBM3|\b(H|B|GB)[0-9]00\b|\bH20\b")  # cards may have them as well
SLOTTED = re.compile("NVL|PCIe")
"""Names of cards, which a bridge joins, or nothing."""
_COMPATIBLE = re.compile(r"RTX (A6000|A5500|A5000|6000|8000)\b(?!.*Laptop)|Server Edition")


def is_of_board(name: str) -> bool:
    """Whether a GPU is on a board of several that NVLink joins."""
    return _BOARD.search(name) is not None and SLOTTED.search(name) is None


Capability = Tuple[int, int]
_ROW = re.compile(r"[0-9]+, *[^,]*,.*,")
# Chips before Maxwell, by name: their drivers do not know the question.
_KEPLER = re.compile(
    r"Tesla (K|[CS][0-9]|M20[5-9]0)|GRID K|Quadro (K|[2-7]000\b)|NVS [345]"
    r"|(GTX?|GTS) (4|5|6)[0-9]{2}\b|GTX? 7(?!45|50)[0-9]{2}\b|TITAN( Black| Z)?$"
)


# Maxwell and Pascal, whose drivers may be as old, and the later chips of Kepler.
_BEFORE_VOLTA = (
    (r"Tesla K80", (3, 7)),
    (r"Tesla K[24]0|GTX 780|TITAN( Black| Z)?$|Quadro K(5200|6000)", (3, 5)),
    (r"GTX (745|750)\b|Tesla M10\b|NVS 810|Quadro K(620|1200|2200)\b", (5, 0)),
    (r"GTX 9[5-8]0\b|TITAN X\b|Quadro M\d|Tesla M(4|6|40|60)\b", (5, 2)),
    (r"Tesla P100|GP100", (6, 0)),
    (r"GTX? 10[1-8]0\b|TITAN Xp|Quadro P\d|Tesla P(4|6|40)\b|\bP10[246]-", (6, 1)),
)


def takes_newer_cuda(name: str) -> bool:
    """Whether a card may run a newer CUDA under an older driver, by its compat libraries: those of
    data centres, and of workstations a few.

    https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    return CONSUMER.search(name) is None or _COMPATIBLE.search(name) is not None


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it."""

    row: dict[str, str]

    def text(self, field: str) -> str | None:
        """A field's value; None for [N/A] and its like."""
        value = self.row.get(field, "")
        return None if not value or value.startswith("[") or value == "N/A" else value

    def number(self, field: str) -> float | None:
        """A field's value as a number (MiB, W, °C, MHz)."""
        return number(self.text(field))

    def bits(self, field: str) -> int:
        """A field's value as a mask; 0 where there is none."""
        found = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", self.text(field) or "")
        return int(found.group(1), 16) if found else 0

    @property
    def place(self) -> str:
        """Its address on the bus as the kernel writes it: 0000:01:00.0."""
        domain, _, rest = self.row.get("pci.bus_id", "").lower().partition(":")
        return f"{domain[-4:]}:{rest}"

    @property
    def index(self) -> str:
        """Its number, by place on the bus; CUDA may count otherwise, the fastest first."""
        return self.row["index"]

    @property
    def uuid(self) -> str:
        """Its name for ever."""
        return self.row["uuid"]

    @property
    def name(self) -> str:
        """Its model."""
        return self.row["name"]

    @property
    def label(self) -> str:
        """How people call it."""
        return f"GPU {self.index}"

    @property
    def capability(self) -> Capability | None:
        """Compute capability, 8.6 as (8, 6); None where the driver is too old to tell."""
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", self.text("compute_cap") or "")
        if found is None:
            older = (c for sign, c in _BEFORE_VOLTA if re.search(sign, self.name))
            return next(older, (3, 0) if _KEPLER.search(self.name) else None)
        return int(found.group(1)), int(found.group(2))

    @property
    def is_integrated(self) -> bool:
        """Whether it is a part of the processor, with the machine's memory for its own."""
        return re.search(r"\b(GB10|Orin|Thor|Xavier|Tegra\S*|nvgpu)\b", self.name) is not None

    @property
    def is_coherent(self) -> bool:
        """Whether a Grace beside it shares one address space with it: GH200, GB200, GB300."""
        return re.search(r"\bG[BH][1-9]00\b", self.name) is not None

    @property
    def is_virtual(self) -> bool:
        """Whether it is a part of a card that the host gives out (vGPU)."""
        return re.search(r"-[0-9]+[QCAB][0-9]?$|^GRID [^K]", self.name) is not None


@lru_cache(maxsize=1)  # many checks ask, each of the same machine
def ask(machine: Machine) -> tuple[Answer, list[Gpu]]:
    """The last answer, and the GPUs in it; none where the driver does not work.

    Of eight GPUs one may be lost, or have something to complain of: nvidia-smi then says so beside
    the rows, and ends with 14, 15 or another code. The rows that can be read count.
    """
    return _asked(machine, _FIELDS)


@lru_cache(maxsize=1)
def health(machine: Machine) -> list[Gpu]:
    """The GPUs, by what else the driver knows of how they are; no uuid in these rows."""
    found = _asked(machine, _HEALTH)[1]
    query = f"--query-remapped-rows={','.join(_REMAPPED)}"
    answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines()]
    rows = [row for row in rows if len(row) == len(_REMAPPED)]
    by_place = {row[0].lower(): row for row in rows}
    for gpu in found:
        row = by_place.get(gpu.row["pci.bus_id"].lower())
        gpu.row.update(zip(_REMAPPED[1:], row[1:] if row else ()))
    return found


def complaints(machine: Machine) -> list[str]:
    """The lines of the answer that are no GPU's row."""
    answer, _ = ask(machine)
    lines = [line.strip() for line in answer.said.splitlines()]
    return [line for line in lines if line and not _ROW.match(line)]


def devices(machine: Machine) -> list[str]:
    """The device files of GPUs: nvidia0 of /dev/nvidia0."""
    return [name for name in machine.names("/dev") if re.fullmatch(r"nvidia[0-9]+", name)]


def loaded(machine: Machine) -> str | None:
    """The version of the module that is loaded."""
    version = machine.read("/sys/module/nvidia/version")
    if version is None:
        text = machine.read("/proc/driver/nvidia/version") or ""
        found = re.search(r"Kernel Module.*? ([0-9]+\.[0-9.]+)", text)
        version = found.group(1) if found else None
    return version


def _asked(machine: Machine, wanted: Sequence[str]) -> tuple[Answer, list[Gpu]]:
    fields = list(wanted)
    while True:
        query = f"--query-gpu={','.join(fields)}"
        answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits", seconds=60)
        unknown = re.search(r'Field "([^"]+)" is not a valid field', answer.said)
        if unknown is None or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines()]
    return answer, [
        Gpu(dict(zip(fields, row)))
        for row in rows
        if len(row) == len(fields) and whole(row[0]) is not None
    ]


def on_disk(machine: Machine) -> str:
    """The version of the module that the next start would load; empty where nobody says."""
    for name in ("nvidia", "nvidia-current"):  # as Debian's is called
        version = machine.run("modinfo", "-F", "version", name).out.strip()
        if version:
            return version
    return ""
