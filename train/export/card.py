"""What stands beside exported weights: config.json as timm writes it, and a model card."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from host.text import printable
from train.config import Config
from train.experiment import dump
from train.export.deployed import Preprocessing
from train.record import documents
from train.record.checkpoint import Checkpoint
from train.record.facts import Facts

_FIGURES = ("top1", "top5", "loss", "samples")


def about(
    run: Path, config: Config, found: Checkpoint, steps: Preprocessing, sha256: str
) -> dict[str, Any]:
    """What whoever uses the weights must know; it goes into each file that has a place for it.

    Args:
        sha256: of the weights that are exported.
    """
    facts, result = found.facts, documents.result(run) or {}
    # Figures are those of the last step: another one's weights have others.
    last = result.get("status") == "finished" and result.get("steps") == found.state["step"]
    figures = result.get("metrics", {}) if last else {}
    return {
        "classes": facts.classes,
        "preprocessing": steps.written(),
        "model": config.model.name,
        "step": found.state["step"],
        "averaged": found.averaged,
        "weights_sha256": sha256,
        "data_sha256": facts.data_sha256,
        "run": printable(run.name),
        "metrics": {name: figures[name] for name in _FIGURES if name in figures},
    }


def config_json(config: Config, facts: Facts, steps: Preprocessing) -> dict[str, Any]:
    """As timm's hub files have it, so that its `create_model` takes a model of its own from here.

    A model of another library has the same file; `library` says which.
    """
    timm = config.model.in_timm
    name = timm.partition(".")[0] if timm else config.model.name
    shorter = steps.shorter_side or min(steps.height, steps.width)
    cut = {
        "num_classes": len(facts.classes),
        "input_size": [steps.channels, steps.height, steps.width],
        "interpolation": "bilinear",
        "crop_pct": _share(min(steps.height, steps.width), shorter),
        "crop_mode": "center",
        "mean": steps.mean,
        "std": steps.std,
    }
    options: dict[str, Any] = {}
    if timm:
        import timm as library

        cfg = library.get_pretrained_cfg(name, allow_unregistered=True)
        if cfg is not None:
            cut |= {"first_conv": cfg.first_conv, "classifier": cfg.classifier}
        if cfg is not None and cfg.fixed_input_size:
            options["img_size"] = list(facts.shape[1:])
    return {
        "architecture": name,
        "num_classes": len(facts.classes),
        "label_names": facts.classes,
        "library": _library(config),
        **({"model_args": {"in_chans": steps.channels, **options}} if timm else {}),
        "pretrained_cfg": cut,
        # Not timm's: what the shorter side is scaled to before that, where it is longer.
        **({"prepare": steps.prepared} if steps.prepared else {}),
    }


def _share(side: int, shorter: int) -> float:
    """The share of the shorter side that is kept. timm divides by it, and rounds down."""
    share = side / shorter
    return share if math.floor(side / share) == shorter else math.nextafter(share, 0)


def _library(config: Config) -> str:
    from host import dotted
    from train.learn.nets import OURS

    if config.model.in_timm:
        return "timm"
    if dotted.is_path(config.model.name):
        return config.model.name
    return "lockstep" if config.model.name in OURS else "torchvision"


def card(
    config: Config, said: Mapping[str, Any], files: list[str], licence: str, library: str
) -> str:
    """The model card: README.md as the hub shows it.

    Args:
        config: what the weights were trained with.
        said: what `about` says.
        files: that stand beside it.
    """
    rooms = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (it is Markdown)
    )  # fmt: skip
    rooms.filters["shown"] = printable
    return rooms.get_template("card.md").render(
        **{name: said[name] for name in ("model", "step", "averaged", "classes")},
        **{name: said[name] for name in ("weights_sha256", "data_sha256", "run")},
        steps=said["preprocessing"],
        metrics=said["metrics"],
        source=config.data.source,
        seed=config.seed,
        reproducibility=config.reproducibility,
        files=files,
        licence=licence,
        library=library,
        recipe=dump(config),
    )
