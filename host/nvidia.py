"""What nvidia-smi says: the driver, each GPU, who computes there, and which of them CUDA sees.

Fields and their values: `nvidia-smi --help-query-gpu`. A driver that does not know a field refuses
the whole question, so it is asked again without that field.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Sequence, Tuple

from host.machine import Answer, Machine

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
_APPS = ("gpu_uuid", "pid", "process_name", "used_memory")

SLOWED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Bits of clocks_throttle_reasons.active, from nvml.h; the other ones are harmless."""

Capability = Tuple[int, int]


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
        value = self.text(field)
        return float(value) if value and re.fullmatch(r"-?[\d.]+", value) else None

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
        found = re.fullmatch(r"(\d+)\.(\d+)", self.text("compute_cap") or "")
        return (int(found.group(1)), int(found.group(2))) if found else None


@dataclass(frozen=True)
class App:
    """A program that computes on a GPU."""

    uuid: str
    pid: str
    name: str
    memory: str


def ask(machine: Machine) -> tuple[Answer, list[Gpu]]:
    """The last answer, and the GPUs in it; none where the driver does not work."""
    fields = list(_FIELDS)
    while True:
        query = f"--query-gpu={','.join(fields)}"
        answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits", seconds=60)
        unknown = re.search(r'Field "([^"]+)" is not a valid field', answer.said)
        if unknown is None or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines()]
    found = [Gpu(dict(zip(fields, row))) for row in rows if len(row) == len(fields)]
    return answer, found if answer.code == 0 else []


def seen(machine: Machine) -> list[Gpu]:
    """The GPUs that CUDA sees: those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    _, gpus = ask(machine)
    return visible(gpus, machine.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], chosen: str | None) -> list[Gpu]:
    """The GPUs that CUDA sees where CUDA_VISIBLE_DEVICES is `chosen` (None: not set).

    CUDA's rule, from the CUDA programming guide (environment variables) and, where that is silent,
    from how torch counts without starting CUDA (torch/cuda/__init__.py): a list of numbers, or of
    beginnings of UUIDs that fit one GPU each. It ends at the first entry that names none; what
    stands behind that is not seen. The first entry decides which of the two kinds it is, and one
    GPU named twice leaves none. Of MIG's instances, which the driver does not list, one is seen.
    """
    if chosen is None or not gpus:
        return list(gpus)
    if chosen.startswith("MIG-"):
        name = chosen.split(",")[0]
        return [Gpu({"index": name, "uuid": name, "name": name})]
    named = _by_uuid(gpus, chosen) if chosen.startswith("GPU-") else _by_number(gpus, chosen)
    return named if len({gpu.uuid for gpu in named}) == len(named) else []


def _by_uuid(gpus: Sequence[Gpu], chosen: str) -> list[Gpu]:
    words = list(itertools.takewhile(lambda word: word.startswith("GPU-"), chosen.split(",")))
    if len(set(words)) < len(words):
        return []
    found = []
    for word in words:
        fits = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
        if len(fits) != 1:
            break
        found.append(fits[0])
    return found


def _by_number(gpus: Sequence[Gpu], chosen: str) -> list[Gpu]:
    # As strtoul reads them: "1st" is 1.
    read = (re.match(r"\+?(\d+)", word.strip()) for word in chosen.split(","))
    numbers = [int(one.group(1)) for one in itertools.takewhile(bool, read) if one]
    if len(set(numbers)) < len(numbers):
        return []
    return [gpus[n] for n in itertools.takewhile(lambda n: n < len(gpus), numbers)]


def apps(machine: Machine) -> list[App]:
    """Programs that compute on GPUs."""
    query = f"--query-compute-apps={','.join(_APPS)}"
    answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines() if answer.code == 0]
    return [App(*row) for row in rows if len(row) == len(_APPS)]
