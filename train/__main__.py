"""`python -m train VERB`: the command line, and the one place that turns errors into exit codes."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from train import cli, experiment, interrupt, outcome, parent
from train.errors import Lost, TrainError, translated

# Idle threads of a busy machine must sleep, not spin; OpenMP reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_RANK = int(os.environ.get("RANK", "0"))


def main(argv: list[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    # torchrun takes --run for the beginning of its own --run-path, unless a -- stands before it.
    words = [word for word in words if word != "--"]
    # Before anything reads HF_HOME or WANDB_API_KEY; what the environment sets already stays.
    load_dotenv(Path(".env"))
    try:
        options, knobs = cli.parse(words)
        if options.verb == "doctor":
            from doctor import inside

            return inside.main(options.json, options.verify)
        _run(options, knobs)
    except TrainError as error:
        if "--debug" in words:
            traceback.print_exc()
        _report(error, f"{error.label}: {error}")
        return error.code
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        lost = translated(error, _RANK)
        if lost is None:
            raise
        _report(lost, f"{lost.label}: {lost}")
        return lost.code
    return 0


def _run(options: Any, knobs: dict[str, Any]) -> None:
    parent.end_with_launcher()
    # Imported late: `--help` and a mistyped flag should not wait for torch.
    if options.verb == "evaluate":
        from train.score import score

        score(options.run, options.checkpoint, options.root)
    elif options.verb == "reproduce":
        from train.reproduce import reproduce

        reproduce(
            options.run, cpus=options.cpus, gpus=options.gpus, root=options.root,
            anyway=options.anyway,
        )  # fmt: skip
    elif options.verb == "tune":
        from train.tune import tune

        tune(options.config, experiment.load(options.config, knobs), options.what)
    else:
        _fit(options, knobs)


def _fit(options: Any, knobs: dict[str, Any]) -> None:
    with interrupt.listen() as stop:
        config = experiment.load(_file(options), knobs)
        if config.reproducibility == "deterministic":
            # DDP warns that it looks for unused parameters, which is what keeps its sums in one
            # order (see runtime). Read when torch is loaded.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from train.run import fit

        fit(config, options.run, options.resume, stop)


def _file(options: Any) -> Path | None:
    """The experiment's file: --config, or what a run that is continued was started with."""
    given: Path | None = options.config
    if given is not None or not options.resume:
        return given
    run = options.resume if isinstance(options.resume, str) else options.run
    own = Path(run) / "config.yaml" if run is not None else None
    return own if own is not None and own.exists() else None


def _report(error: TrainError, text: str) -> None:
    if _RANK == 0 or error.one_rank:
        print(text, file=sys.stderr)
    if os.environ.get("LOCAL_RANK", "0") == "0" or error.one_rank:
        outcome.ended(error.code, text, bystander=isinstance(error, Lost))


if __name__ == "__main__":
    sys.exit(main())
