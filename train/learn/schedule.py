"""The learning rate and the calendar, as pure functions of the step."""

import math
from collections.abc import Sequence

# Of the one-cycle policy: the share of the run that rises, and of the peak where it begins.
_RISE, _START = 0.3, 0.04


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
    power: float = 2.0,
) -> float:
    """Learning rate of the update that follows `step` completed updates.

    `warmup` counts steps of linear rise to `peak`. Then `cosine`, `linear` and `poly` (with
    `power`) fall to `final` × peak at `total`, `step` multiplies by `gamma` at each of
    `milestones` (fractions of `total`), `constant` stays. `onecycle` rises by a cosine from a
    25th of the peak, over `warmup` steps or 30 % of all, and falls by a cosine.
    """
    if kind == "onecycle" and not warmup:
        warmup = round(_RISE * total)
    if step < warmup and kind == "onecycle":
        rate = peak * (1 - (1 - _START) * _cosine(step / warmup))
    elif step < warmup:
        rate = peak * (step + 1) / warmup
    elif kind == "constant":
        rate = peak
    elif kind == "step":
        rate = peak * gamma ** sum(step >= fraction * total for fraction in milestones)
    else:
        progress = (step - warmup) / max(1, total - warmup)
        if kind == "poly":
            left = (1 - progress) ** power
        else:
            left = 1 - progress if kind == "linear" else _cosine(progress)
        rate = peak * (final + (1 - final) * left)
    # The C library's cosine may differ in its last bit between machines, and the rate enters
    # every weight: ten digits are more than any recipe needs and the same everywhere.
    return float(f"{rate:.10g}")


def _cosine(progress: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def size_at(step: int, total: int, sizes: Sequence[int], until: Sequence[float], last: int) -> int:
    """The size of images at the update that follows `step` of `total`: each of `sizes` until its
    share of the run, then `last`.
    """
    stages = zip(sizes, until, strict=True)
    return next((size for size, share in stages if step < share * total), last)


def is_due(step: int, every: int, total: int) -> bool:
    """Whether periodic work falls on `step` completed updates: each `every`, and at the end."""
    return step % every == 0 or step == total
