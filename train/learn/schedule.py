"""The learning rate and the calendar, as pure functions of the step."""

import math
from collections.abc import Sequence


def lr_at(
    step: int,
    total: int,
    *,
    peak: float,
    warmup: int = 0,
    kind: str = "cosine",
    final: float = 0.0,
    milestones: Sequence[float] = (),
    gamma: float = 0.1,
) -> float:
    """Learning rate of the update that follows `step` completed updates.

    `warmup` counts steps of linear rise to `peak`. Then `cosine` and `linear` fall to
    `final` × peak at `total`, `step` multiplies by `gamma` at each of `milestones`
    (fractions of `total`), `constant` stays.
    """
    if step < warmup:
        rate = peak * (step + 1) / warmup
    elif kind == "constant":
        rate = peak
    elif kind == "step":
        rate = peak * gamma ** sum(step >= fraction * total for fraction in milestones)
    else:
        progress = (step - warmup) / max(1, total - warmup)
        left = 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress
        rate = peak * (final + (1 - final) * left)
    # The C library's cosine may differ in its last bit between machines, and the rate enters
    # every weight: ten digits are more than any recipe needs and the same everywhere.
    return float(f"{rate:.10g}")


def is_due(step: int, every: int, total: int) -> bool:
    """Whether periodic work falls on `step` completed updates: each `every`, and at the end."""
    return step % every == 0 or step == total
