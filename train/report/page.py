"""The page: what a run's files say, put into `page.html`."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from host.errors import UsageError
from train.predictions import judged, table
from train.predictions.judged import Bin
from train.predictions.table import Said
from train.record import documents, rundir
from train.report import charts, course, matrix, templates
from train.report.course import Course
from train.runs import listed

FILE = "report.html"
_MISTAKES, _DOUBTFUL = 64, 16
_TOTALS = ("steps", "samples", "seconds", "samples_per_second")
_ATTEMPT = ("started", "from_step", "world_size", "ended", "exit_code", "changed")


@dataclass(frozen=True)
class Written:
    """What a run has written, and what is shown of it.

    Attributes:
        said: of each validation picture; None where nothing stands of them.
    """

    run: Path
    record: dict[str, Any]
    result: dict[str, Any]
    course: Course
    said: list[Said] | None
    mistakes: list[Said] = field(default_factory=list)
    doubtful: list[Said] = field(default_factory=list)

    @property
    def shown(self) -> list[Said]:
        """The validation pictures that the page shows."""
        return [*self.mistakes, *self.doubtful]

    @property
    def status(self) -> str:
        """How it stands now."""
        return listed.status_of(self.run, self.record, self.result)


def read(run: Path) -> Written:
    """What there is of a run.

    Raises:
        UsageError: there is no run.
        CheckpointError: its files are damaged.
    """
    record = documents.record(run)
    if record is None:
        raise UsageError(f"there is no run in {run}", rundir.name_one(run))
    result = documents.result(run) or {}
    # Another attempt is on its way: what the files say is of an earlier one.
    said = table.read(run) if result.get("status") == "finished" else None
    return Written(
        run,
        record,
        result,
        course.read(run),
        said,
        judged.mistakes(said or [], _MISTAKES),
        judged.doubtful(said or [], _DOUBTFUL),
    )


def render(it: Written, pictures: Mapping[int, str], inputs: str | None, lacking: str) -> str:
    """The page as text.

    Args:
        pictures: addresses of validation images, by number.
        inputs: address of a picture of what enters the model.
        lacking: why there are no pictures, where there are none.
    """
    metrics = it.result.get("metrics", {})
    bins, error = judged.calibration(it.said) if it.said else ([], None)
    attempts = it.record.get("attempts", [])
    resumed = [step for each in attempts if type(step := each.get("from_step")) is int and step]
    best, counts = it.result.get("best", {}), matrix.counted(it.result)
    return templates.page(
        Path(__file__).with_name("page.html"),
        {"share": _share, "number": _number},
        run=str(it.run),
        name=it.record.get("config", {}).get("name", "run"),
        started=it.record.get("started", ""),
        ended=it.record.get("ended"),
        failure=it.result.get("error") if it.status in ("stopped", "failed") else None,
        figures={"top1": None, "top5": None, "loss": None, "samples": None} | metrics
        if metrics
        else {},
        best={"top1": None, "step": None} | best,
        totals={name: it.result.get(name) for name in _TOTALS},
        status=it.status if it.status != "ended" else "ended without a word",
        warnings=it.course.warnings,
        proof=_proof(it),
        curves=_curves(it.course, resumed),
        time=_time(it.course),
        memory=_memory(it.course),
        energy=_energy(it),
        classes=matrix.classes(it.result, counts),
        confusion=matrix.confusion(it.result, counts),
        confused=matrix.confused(it.result, counts),
        mistakes=it.mistakes,
        doubtful=it.doubtful,
        told=it.said is not None,
        calibration=_calibration(bins),
        error=error,
        pictures=pictures,
        inputs=inputs,
        lacking=lacking,
        config=json.dumps(it.record.get("config", {}), indent=1, ensure_ascii=False),
        attempts=[[each.get(name) for name in _ATTEMPT] for each in attempts],
    )


def _proof(it: Written) -> list[tuple[str, str]]:
    """What is needed to check the result, in rows."""
    record, result = it.record, it.result
    hardware, image = record.get("hardware", {}), record.get("image")
    git = record.get("git", {})
    commit = git.get("commit")
    changed = ", with uncommitted changes" if git.get("diff_sha256") else ""
    world = record.get("world_size")
    processes = f"{world} process{'es' * (world != 1)}"
    precision = {"no": "FP32"}.get(said := str(hardware.get("mixed_precision")), said.upper())
    versions = record.get("versions", {})
    rows = [
        ("weights, SHA-256", result.get("weights_sha256")),
        ("their average, which was measured", result.get("ema_sha256")),
        ("train it again and compare", f"make reproduce RUN={shlex.quote(str(it.run))}"),
        (
            "reproducibility",
            f"{record.get('reproducibility')}, {record.get('numerics')}, seed {record.get('seed')}",
        ),
        (
            "machine",
            f"{processes} on {hardware.get('device')}, {precision}, {hardware.get('system')}",
        ),
        ("container", image.get("identity") if image else "none"),
        ("lock, SHA-256", record.get("lock_sha256")),
        ("PyTorch", f"{versions.get('torch')}, CUDA {versions.get('cuda') or 'none'}"),
        ("code", commit + changed if commit else "no git commit"),
        ("data, SHA-256", record.get("data_sha256")),
        ("command", shlex.join(map(str, record.get("command", [])))),
    ]
    return [(what, str(said)) for what, said in rows if said]


def _curves(run: Course, resumed: list[int]) -> list[tuple[str, Markup]]:
    """Charts with their captions."""
    if not run.train and not run.evaluations:
        return []
    drawn = [
        ("Loss", charts.lines([run.trained("loss"), run.measured("loss")], resumed)),
        (
            "Accuracy, %: of a batch, and top-1 of the validation set",
            charts.lines([run.trained("accuracy"), run.measured("top1")], resumed, scale=100),
        ),
        ("Learning rate", charts.lines([run.trained("lr")], resumed)),
        ("Norm of the gradient", charts.lines([run.trained("grad_norm")], resumed)),
        (
            "Samples per second",
            charts.lines([run.trained("samples_per_second")], resumed, from_zero=True),
        ),
    ]
    named = [("memory_allocated", "on the GPU"), ("rss", "of the main process")]
    memory = [series for name, said in named if (series := run.watched(name, said))]
    if memory:
        drawn.append(("Memory, GiB", charts.lines(memory, resumed, scale=2**-30, from_zero=True)))
    power = run.watched("gpu_power", "W")
    if power:
        drawn.append(("Power of the first GPU, W", charts.lines([power], resumed, from_zero=True)))
    return drawn


def _time(run: Course) -> list[tuple[str, float]]:
    """Shares of step time."""
    names = {"compute": "computing", "data": "waiting for data", "communication": "communication"}
    found = [(said, run.mean(f"{name}_share")) for name, said in names.items()]
    return [(said, share) for said, share in found if share is not None]


def _memory(run: Course) -> str | None:
    """The most that was taken, in words."""
    for name, where in (("memory_peak", "the first GPU"), ("rss", "the main process")):
        most = run.most(name)
        if most is not None:
            return f"{most / 2**30:.2f} GiB of memory of {where}"
    return None


def _energy(it: Written) -> float | None:
    """Kilowatt-hours of the first GPU in all of the training; None where it does not tell."""
    power, seconds = it.course.mean("gpu_power"), it.result.get("seconds")
    return power * seconds / 3.6e6 if power and seconds else None


def _calibration(bins: list[Bin]) -> Markup | None:
    return charts.reliability(bins) if bins else None


def _share(value: float | None, of: str = "") -> Markup:
    """Per cent, with the exact value for whoever reads the page by program."""
    if value is None:
        return Markup("–")
    return _exact(value, f"{100 * value:.2f} %", of)


def _number(value: float | None, digits: int = 0, of: str = "") -> Markup:
    return Markup("–") if value is None else _exact(value, f"{value:,.{digits}f}", of)


def _exact(value: float, text: str, of: str) -> Markup:
    where = Markup(' data-of="{}"').format(of) if of else ""
    return Markup('<data value="{}"{}>{}</data>').format(json.dumps(value), where, text)
