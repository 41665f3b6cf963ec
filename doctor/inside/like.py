"""Can this machine give the bits of that run? Asked before training, of probes and a first pass.

    python -m doctor.inside --like runs/digits/20261121-024305-55853448

What is looked at runs in a process of its own: `numerics: portable` must be there before torch is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from doctor.finding import Finding, fail, ok, warn
from host.errors import DataError, LockstepError, UsageError
from train.experiment import parse
from train.numerics import variables
from train.record import documents

_LIMIT = 300.0
_PROBES, _OTHERS = "bits", "else as recorded"


def examine(run: Path) -> list[Finding]:
    """Whether this machine computes as the run's did, and what else is not as recorded."""
    environ = {**variables.STARTED, **os.environ}
    try:
        recorded = _record(run)
        if recorded["hardware"]["type"] == "cpu":
            environ["ACCELERATE_USE_CPU"] = "true"
        # As many threads as each of that many processes would have here.
        environ["LOCAL_WORLD_SIZE"] = str(recorded["world_size"])
        words = [sys.executable, "-m", "doctor.inside.like", str(run)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT, env=environ, check=False
        )
    except LockstepError as error:
        return [fail("like", error.problem, "there is nothing to compare with", error.fix)]
    except subprocess.TimeoutExpired:
        fix = f"run it by hand: {' '.join(words)}"
        return [fail(_PROBES, f"no answer within {_LIMIT:g} s", "nothing is known of it", fix)]
    if done.returncode != 0:
        rows = [row for row in done.stderr.splitlines() if row.strip()] or ["no word"]
        seen, _, fix = rows[-1].removeprefix("error: ").partition(" → ")
        return [fail(_PROBES, seen[:200], f"{run} cannot be trained here", fix or "see above")]
    said = json.loads(done.stdout.splitlines()[-1])
    return [_bits(run, said), _others(run, said)]


def _bits(run: Path, said: dict[str, Any]) -> Finding:
    if said["bits"]:
        return fail(
            _PROBES,
            "; ".join(said["bits"]),
            f"training {run} here may end in other bits",
            f"make reproduce RUN={run} ARGS=--anyway   # says whether it does",
        )
    passed = said["first_pass"] or "and the model's first pass"
    return ok(_PROBES, f"{said['probes']} probes {passed} give the bits of {run}")


def _others(run: Path, said: dict[str, Any]) -> Finding:
    if not said["others"]:
        return ok(_OTHERS, "code, packages, variables")
    return warn(
        _OTHERS,
        "; ".join(said["others"]),
        "each of them may change the bits",
        f"make reproduce RUN={run} ARGS=--anyway   # says whether they did",
    )


def _record(run: Path) -> dict[str, Any]:
    recorded = documents.record(run)
    if recorded is None:
        raise UsageError(f"there is no record {run / 'run.json'}", "name a run directory")
    if not recorded.get("fingerprint"):
        raise UsageError(
            f"{run / 'run.json'} has no fingerprint: trained at fast, or by an older version",
            "train it again",
        )
    return recorded


def _look(run: Path) -> dict[str, Any]:
    recorded = _record(run)
    config = parse(recorded["config"], str(run / "run.json"))
    if config.portable:
        variables.hold()
    from train import learner
    from train.data import load
    from train.lanes import runtime as runtimes
    from train.record import comparison, provenance

    # How many processes there were is nothing that a machine is asked for.
    with runtimes.start(
        config, training=False, precision=recorded["hardware"]["mixed_precision"]
    ) as runtime:
        about, first, why = None, None, None
        try:
            data = load(config.data, config.augment, config.eval)
            about, first = data.described(), learner.first_pass(config, data, runtime)
        except DataError as error:
            why = f"(the model's first pass was not tried: {error.problem})"
        now = provenance.describe(config, runtime, about, first)
    now["world_size"] = recorded["world_size"]
    if about is None:
        now["data_sha256"] = recorded["data_sha256"]
    bits, others = comparison.compared(recorded, now)
    return {
        "bits": bits,
        "others": comparison.few(others),
        "probes": len(now["fingerprint"].keys() & recorded["fingerprint"].keys()),
        "first_pass": why,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(_look(Path(sys.argv[1]))))
    except LockstepError as raised:
        print(raised.line(), file=sys.stderr)
        sys.exit(raised.code)
