"""Whether machines would train the same, as far as it shows before their trainers start.

What needs the data or the model (their bytes, the probes, the first pass) trainers compare.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from host.errors import HostError, UsageError
from train.config import Config
from train.experiment import parse
from train.record import comparison, environment, provenance


def manifest(config: Config) -> dict[str, Any]:
    """What a run's record would say of this machine."""
    return {
        "config": config.model_dump(mode="json"),
        "reproducibility": config.reproducibility,
        "numerics": config.numerics,
        "lock_sha256": provenance.lock_sha256(),
        "code": provenance.code(),
        "image": provenance.image(),
        "versions": provenance.versions(),
        "environment": environment.recorded(os.environ),
        "hardware": {"cpu_capability": torch.backends.cpu.get_cpu_capability()},
    }


def check(first: Mapping[str, Any], other: Mapping[str, Any], who: str) -> None:
    """See that two machines would train the same: `who` names them.

    Raises:
        UsageError: they have other knobs.
        HostError: they have another lock, or what changes bits where those matter.
    """
    knobs = comparison.other_knobs(parse(first["config"], "node 0"), parse(other["config"], who))
    if knobs:
        raise UsageError(f"{who}: {knobs}", "give all nodes the same command, but for NODE_RANK")
    found = []
    if first["lock_sha256"] != other["lock_sha256"]:
        found.append("the lock is another")
    rest = comparison.unlike(first, other)
    if first["reproducibility"] == "fast":  # which promises no bits
        rest = [each for each in rest if each[0].startswith("code ")]
    found += [f"{name} is {theirs} there, and {ours} on node 0" for name, ours, theirs in rest]
    if found:
        more = len(found) - comparison.SHOWN
        said = "; ".join(found[: comparison.SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise HostError(
            f"{who}: {said}", "have all nodes alike: the same checkout, lock and kind of machine"
        )
