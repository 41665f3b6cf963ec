"""What each GPU should reach, and its memory: NVIDIA's datasheets, dense, no sparsity.

Matrix rates are those of BF16 (FP16 where there is no BF16) with sums in FP32, which GeForce does
at half rate. The longest name that a GPU's name begins with counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A model's limits: GB/s of its memory, 10¹² operations a second of its matrix units, and GB of
    memory.
    """

    memory: float
    matrix: float
    size: int


_SHEETS = {
    "Tesla V100-SXM2": Sheet(900, 125, 16),
    "Tesla V100-PCIE": Sheet(900, 112, 16),
    "Tesla T4": Sheet(320, 65, 16),
    "NVIDIA A100-SXM4-40GB": Sheet(1555, 312, 40),
    "NVIDIA A100-SXM4-80GB": Sheet(2039, 312, 80),
    "NVIDIA A100-PCIE-40GB": Sheet(1555, 312, 40),
    "NVIDIA A100 80GB PCIe": Sheet(1935, 312, 80),
    "NVIDIA A10": Sheet(600, 125, 24),
    "NVIDIA A10G": Sheet(600, 70, 24),
    "NVIDIA A30": Sheet(933, 165, 24),
    "NVIDIA A40": Sheet(696, 149.7, 48),
    "NVIDIA L4": Sheet(300, 121, 24),
    "NVIDIA L40": Sheet(864, 181, 48),
    "NVIDIA L40S": Sheet(864, 362, 48),
    "NVIDIA RTX A6000": Sheet(768, 154.8, 48),
    "NVIDIA RTX 6000 Ada Generation": Sheet(960, 364, 48),
    "NVIDIA GeForce RTX 2080 Ti": Sheet(616, 53.8, 11),
    "NVIDIA GeForce RTX 3080": Sheet(760, 59.5, 10),
    "NVIDIA GeForce RTX 3080 Ti": Sheet(912, 68, 12),
    "NVIDIA GeForce RTX 3090": Sheet(936, 71, 24),
    "NVIDIA GeForce RTX 4080": Sheet(717, 97.5, 16),
    "NVIDIA GeForce RTX 4080 SUPER": Sheet(736, 104.4, 16),
    "NVIDIA GeForce RTX 4090": Sheet(1008, 165.2, 24),
    "NVIDIA GeForce RTX 5080": Sheet(960, 112.6, 16),
    "NVIDIA GeForce RTX 5090": Sheet(1792, 209.5, 32),
    "NVIDIA H100 80GB HBM3": Sheet(3350, 989, 80),
    "NVIDIA H100 PCIe": Sheet(2000, 756, 80),
    "NVIDIA H100 NVL": Sheet(3900, 835, 94),
    "NVIDIA H200": Sheet(4800, 989, 141),
    "NVIDIA B200": Sheet(7700, 2250, 180),
}


def of(name: str) -> Sheet | None:
    """The datasheet of a GPU by the driver's name for it; None where we have none."""
    if " MIG " in name or "Laptop" in name:  # a part, or another chip by the same name
        return None
    # "NVIDIA A10" is no beginning of "NVIDIA A100": a whole word must end there.
    fits = [key for key in _SHEETS if f"{name} ".startswith((f"{key} ", f"{key}-"))]
    return _SHEETS[max(fits, key=len)] if fits else None


def named(words: str) -> dict[str, Sheet]:
    """The cards that somebody may mean: "RTX 3090", "a100"; the one of just that name first."""
    told = re.split(r"[ -]+", re.sub(r"^(rtx|gtx) ?(?=\d)", r"\1 ", words.lower().strip()))
    found = {
        key: sheet
        for key, sheet in _SHEETS.items()
        if all(word in re.split(r"[ -]", key.lower()) for word in told)
    }
    exact = [key for key in found if re.split(r"[ -]", _plain(key)) == told]
    return {key: found[key] for key in exact} if exact else found


def names() -> list[str]:
    """All cards that have a sheet, as people call them."""
    return [_plain(key) for key in _SHEETS]


def _plain(key: str) -> str:
    return re.sub(r"^(nvidia|tesla) |geforce ", "", re.sub("^nvidia geforce ", "", key.lower()))
