"""Whether a GPU under load was slowed down, and by what."""

from __future__ import annotations

from dataclasses import dataclass

from doctor.finding import Finding, warn
from host import nvidia

NAME = "stress"
"""The row of the table."""
_SLOWER = 0.8  # of the first rate; boost clocks give way to heat by less


@dataclass
class Seen:
    """What a GPU's driver said meanwhile; nothing for a CPU."""

    heat: int = 0  # °C, at most
    power: float = 0.0  # W, at most
    slowed: int = 0  # bits of nvidia.SLOWED
    others: int = 0  # programs that computed on it besides this one, at most


def slowed(seen: Seen, rates: list[float], figures: str) -> Finding | None:
    """That a GPU was slowed down: by its driver, or by what else computed on it.

    Args:
        rates: products a second, of each round.
        figures: what is said of the GPU first.
    """
    reasons = [word for bit, word in nvidia.SLOWED.items() if seen.slowed & bit]
    quarter = max(1, len(rates) // 4)
    early, late = _middle(rates[1 : quarter + 1]), _middle(rates[-quarter:])
    slower = len(rates) > 4 and late < _SLOWER * early
    if not (reasons or slower):
        return None
    rate = f"; the last products took {early / late:.1f} times as long" if slower else ""
    if seen.others and not reasons:
        count = "another program" if seen.others == 1 else f"{seen.others} other programs"
        return warn(
            NAME,
            f"{figures}{rate}; {count} computed on it too",
            "so nothing can be said of heat",
            "end them (sudo fuser -v /dev/nvidia*), and ask again",
        )
    held = f"; slowed by {', '.join(reasons)}" if reasons else ""
    return warn(
        NAME,
        f"{figures}{rate}{held}",
        "long trainings run slower than short ones, and all GPUs wait for the slowest",
        "check fans, dust, airflow and the power supply; nvidia-smi -q -d PERFORMANCE",
    )


def _middle(rates: list[float]) -> float:
    return sorted(rates)[len(rates) // 2] if rates else 0.0
