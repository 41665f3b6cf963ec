"""What this experiment can do on this machine, measured.

Batch and lanes decide the result, loader processes only the speed. What cannot change the bits
goes into the experiment that is written; what would is measured and named, and goes into it only
where `reproducibility` is `fast`, or where the training would not fit otherwise.
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from host import visible
from host.errors import HostError
from host.machine import Machine
from train import experiment
from train.config import Config, Data
from train.tuning import forecast, loaders, rates, sizes, variants
from train.tuning.trials import Trials


def tune(file: Path | None, config: Config, what: list[str]) -> Path:
    """Measure `what`, and write an experiment that may be used as it is; returns its path.

    Raises:
        LockstepError: the experiment cannot be trained here at all.
    """
    if config.data.cache_on == "gpu" and "workers" in what:
        print("no loader processes to measure, since data.cache_on is gpu")
        what = [name for name in what if name != "workers"]
    folder = _folder(config)
    trials = Trials(folder, len(visible.seen(Machine())))
    found: dict[str, Any] = {"experiment": str(file), "command": sys.argv[1:]}
    print("one training of seconds, to say how long this takes")
    print(forecast.told(config, trials, what))
    said: list[str] = []
    tuned = config
    if "batch" in what:
        print("the largest micro-batch:")
        found["batch"] = sizes.largest(config, trials, folder)
        tuned = sizes.lanes(tuned, found["batch"], said)
    if "workers" in what:
        print("loader processes:")
        found["workers"] = loaders.workers(tuned, trials)
        best = found["workers"]["best"]
        chosen = {"workers": best["workers"], "prefetch": best["prefetch"]}
        data = tuned.data.model_copy(update=chosen)
        if not data.workers:  # nobody works ahead
            data = data.model_copy(update={"prefetch": Data().prefetch})
        tuned = tuned.model_copy(update={"data": data})
        said.append(loaders.about(found["workers"]))
    variables = ""
    if "speed" in what:
        print("precision, memory format, compilation:")
        found["speed"] = variants.measured(tuned, trials)
        tuned, variables = variants.fastest(tuned, trials, found["speed"], said)
    if "lr" in what:
        print("learning rates:")
        found["lr"] = rates.tested(tuned, trials, folder)
        said.append(
            f"the loss falls fastest at lr {found['lr']['steepest']:.2g} (now {config.optim.lr:g});"
            " another rate is another result, so that is left to you"
        )
    path = folder / "experiment.yaml"
    head = "".join(f"# {line}\n" for line in ["Written by tune, from measurements:", *said])
    path.write_text(f"{head}\n{experiment.dump(tuned)}", encoding="utf-8")
    (folder / "tune.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(said))
    for picture in sorted(folder.glob("*.png")):
        print(f"a picture of it: {picture}")
    same = tuned == config and not variables
    print(
        f"{'the same experiment' if same else 'train with it'}: make train CONFIG={path}{variables}"
    )
    return path


def _folder(config: Config) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / config.name / f"tune-{stamp}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HostError(
            f"{folder} cannot be made: {error.strerror}", "mend the permissions of runs/"
        ) from error
    return folder
