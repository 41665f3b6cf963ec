"""What each GPU should reach: NVIDIA's datasheets, dense, no sparsity.

Matrix rates are those of BF16 (FP16 where there is no BF16) with sums in FP32, which GeForce does
at half rate. The longest name that a GPU's name begins with counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A model's limits: GB/s of its memory, 10¹² operations a second of its matrix units."""

    memory: float
    matrix: float


_SHEETS = {
    "Tesla V100-SXM2": Sheet(900, 125),
    "Tesla V100-PCIE": Sheet(900, 112),
    "Tesla T4": Sheet(320, 65),
    "NVIDIA A100-SXM4-40GB": Sheet(1555, 312),
    "NVIDIA A100-SXM4-80GB": Sheet(2039, 312),
    "NVIDIA A100-PCIE-40GB": Sheet(1555, 312),
    "NVIDIA A100 80GB PCIe": Sheet(1935, 312),
    "NVIDIA A10": Sheet(600, 125),
    "NVIDIA A10G": Sheet(600, 70),
    "NVIDIA A30": Sheet(933, 165),
    "NVIDIA A40": Sheet(696, 149.7),
    "NVIDIA L4": Sheet(300, 121),
    "NVIDIA L40": Sheet(864, 181),
    "NVIDIA L40S": Sheet(864, 362),
    "NVIDIA RTX A6000": Sheet(768, 154.8),
    "NVIDIA RTX 6000 Ada Generation": Sheet(960, 364),
    "NVIDIA GeForce RTX 2080 Ti": Sheet(616, 53.8),
    "NVIDIA GeForce RTX 3080": Sheet(760, 59.5),
    "NVIDIA GeForce RTX 3080 Ti": Sheet(912, 68),
    "NVIDIA GeForce RTX 3090": Sheet(936, 71),
    "NVIDIA GeForce RTX 4080": Sheet(717, 97.5),
    "NVIDIA GeForce RTX 4080 SUPER": Sheet(736, 104.4),
    "NVIDIA GeForce RTX 4090": Sheet(1008, 165.2),
    "NVIDIA GeForce RTX 5080": Sheet(960, 112.6),
    "NVIDIA GeForce RTX 5090": Sheet(1792, 209.5),
    "NVIDIA H100 80GB HBM3": Sheet(3350, 989),
    "NVIDIA H100 PCIe": Sheet(2000, 756),
    "NVIDIA H100 NVL": Sheet(3900, 835),
    "NVIDIA H200": Sheet(4800, 989),
    "NVIDIA B200": Sheet(7700, 2250),
}


def of(name: str) -> Sheet | None:
    """The datasheet of a GPU by the driver's name for it; None where we have none."""
    if " MIG " in name or "Laptop" in name:  # a part, or another chip by the same name
        return None
    # "NVIDIA A10" is no beginning of "NVIDIA A100": a whole word must end there.
    fits = [key for key in _SHEETS if f"{name} ".startswith((f"{key} ", f"{key}-"))]
    return _SHEETS[max(fits, key=len)] if fits else None
