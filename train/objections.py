"""What speaks against a run's bits coming out again, before anything is trained."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from host import dotted
from host.errors import DataError, LockstepError, UsageError
from train.config import Config
from train.data import ImageData
from train.data import load as load_data
from train.experiment import differences, parse, read_yaml, settled
from train.learn import pretrained
from train.record import checkpoint, codes, comparison, provenance, rundir

ANYWAY = "restore it, or add --anyway to train and compare all the same"


def before(run: Path, manifest: dict[str, Any], config: Config, count: int) -> list[LockstepError]:
    """What speaks against the same bits before anything is trained.

    Raises:
        LockstepError: what is needed to train is not here.
    """
    found: list[LockstepError] = []
    mixed = comparison.few(codes.mixed(manifest))
    if mixed:
        found.append(
            UsageError(
                f"{run} was trained by more than one code, and none of them alone gives its bits:"
                f" {'; '.join(mixed)}",
                "--anyway trains with what is here, and compares all the same",
            )
        )
    recorded, now = manifest["code"], provenance.code()
    changed = [name for name in sorted({*recorded, *now}) if recorded.get(name) != now.get(name)]
    if changed:
        commit, fix, hint = manifest["git"]["commit"], ANYWAY, ""
        if commit and manifest["git"].get("diff_sha256"):
            hint = f" ({run} ran commit {commit[:12]} with changes that were not committed: only"
            hint += " their digest is kept)"
        elif commit:
            hint = f" ({run} ran commit {commit[:12]})"
            fix = ANYWAY.replace("it", f"it (git checkout {commit[:12]})", 1)
        found.append(UsageError(f"the code changed since: {_few(changed)}{hint}", fix))
    dotted.check_there(config.own_code.values())  # without it, nothing can be trained
    own = dotted.changed(manifest.get("own_code", {}))
    if own:
        found.append(UsageError(f"your own code changed since: {_few(own)}", ANYWAY))
    first = manifest.get("first_weights_sha256")
    if first is not None and first != pretrained.sha256(config.model):
        weights = config.model.weights
        found.append(UsageError(f"{weights} holds other weights than {run} began with", ANYWAY))
    # A large data set that was trained on at `fast` was not hashed.
    if manifest["data_sha256"] is not None:
        data = load_data(config.data, config.augment, config.eval)
        if data.sha256 != manifest["data_sha256"]:
            where = f" in {config.data.root}" if config.data.root else ""
            problem = f"the data{where} is not what {run} was trained on"
            found.append(DataError(problem + _counted(manifest.get("data"), data), ANYWAY))
    level, world = config.reproducibility, manifest["world_size"]
    if level != "lockstep" and count != world:
        found.append(
            UsageError(
                f"{run} ran on {world} process{'es' * (world > 1)}, and at `{level}` another number"
                " gives other bits",
                f"use {world}, or add --anyway to train and compare all the same",
            )
        )
    return found


def _counted(before: Any, data: ImageData) -> str:
    """How many pictures there were, and are, where that is another number."""
    now = {"training": len(data.train), "validation": len(data.validation)}
    was = {name: before.get(name) for name in now} if isinstance(before, dict) else now
    if was == now:
        return ""
    said = [f"{was[name]} pictures of {name} then and {now[name]} now" for name in now]
    return f": {', '.join(said)}"


def _few(names: list[str]) -> str:
    """The first of them, and how many more."""
    more = (
        f" and {len(names) - comparison.SHOWN} more files" if len(names) > comparison.SHOWN else ""
    )
    return ", ".join(names[: comparison.SHOWN]) + more


def contradictions(
    run: Path, manifest: dict[str, Any], result: dict[str, Any], config: Config
) -> list[str]:
    """Where run.json says other than the run's other files: somebody changed one of them."""
    found = []
    others: dict[str, Config] = {}
    if (run / "config.yaml").exists():
        path = run / "config.yaml"
        others[path.name] = settled(parse(read_yaml(path), str(path)))
    last = None
    with suppress(LockstepError):  # checkpoints may be gone: the record must do without
        last = checkpoint.read(rundir.final_checkpoint(run))
    if last is not None and last.state["step"] == result["steps"]:
        others["its checkpoint"] = settled(parse(last.facts.config, str(last.path)))
        if checkpoint.tensors_sha256(last.model) != result["weights_sha256"]:
            found.append("result.json gives another weights_sha256 than its checkpoint has")
        averaged = checkpoint.tensors_sha256(last.measured().model) if last.averaged else None
        if averaged != result.get("ema_sha256"):
            found.append("result.json gives another ema_sha256 than its checkpoint has")
    for name, other in others.items():
        for knob, one, two in differences(config, other):
            found.append(f"{knob} is {one} in run.json and {two} in {name}")
    if manifest["seed"] != config.seed:
        found.append(f"seed is {manifest['seed']}, and {config.seed} in its config")
    return found
