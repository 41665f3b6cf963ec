"""What nvidia-smi says: the driver, and each GPU.

Fields and their values: `nvidia-smi --help-query-gpu`. A driver that does not know a field refuses
the whole question, so it is asked again without that field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from doctor.machine import Answer, Machine

_FIELDS = (
    "index", "uuid", "pci.bus_id", "name", "driver_version", "memory.total", "memory.used",
    "compute_cap", "ecc.errors.uncorrected.volatile.total", "mig.mode.current", "temperature.gpu",
    "power.limit", "power.default_limit", "persistence_mode", "display_active", "clocks.max.sm",
    "clocks_throttle_reasons.active",
)  # fmt: skip
_APPS = ("gpu_uuid", "pid", "process_name", "used_memory")


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it; None where it does not say."""

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
    def name(self) -> str:
        """Its model."""
        return self.row["name"]

    @property
    def label(self) -> str:
        """How people call it."""
        return f"GPU {self.row['index']}"


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


def chosen(machine: Machine) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
    _, gpus = ask(machine)
    names = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return gpus
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return [
        gpu
        for gpu in gpus
        if any(gpu.row["index"] == name or gpu.row["uuid"].startswith(name) for name in wanted)
    ]


def apps(machine: Machine) -> list[App]:
    """Programs that compute on GPUs."""
    query = f"--query-compute-apps={','.join(_APPS)}"
    answer = machine.run("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [re.split(", *", line.strip()) for line in answer.out.splitlines() if answer.code == 0]
    return [App(*row) for row in rows if len(row) == len(_APPS)]
