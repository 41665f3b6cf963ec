"""A run's report, written."""

from pathlib import Path

from host import dotted
from host.errors import DataError, LockstepError
from train import trained
from train.config import Config
from train.data import ImageData, load
from train.experiment import moved
from train.record import documents
from train.report import page, pictures
from train.report.page import Written


def finished(run: Path, config: Config, data: ImageData) -> Path:
    """Write the report of a run that was just finished, with the data that it has.

    Returns:
        The file.

    Raises:
        CheckpointError: it cannot be written.
    """
    return _write(page.read(run), config, data, "")[0]


def again(run: Path, root: str | None) -> tuple[Path, str]:
    """Write the report of a run, from its files.

    Args:
        root: where its data is now; None: where it was.

    Returns:
        The file, and why it has no pictures, where it has none: it is of use without them.

    Raises:
        UsageError: there is no run.
        CheckpointError: its files are damaged, or the report cannot be written.
    """
    it = page.read(run)
    config = moved(documents.experiment(run, it.record), root)
    data, lacking = None, ""
    try:
        dotted.load_all(config.own_code)
        trained.check_code(run)
        data = load(config.data, config.augment, config.eval)
        if data.sha256 != it.record.get("data_sha256"):
            data, lacking = None, "the data is not what the run was trained on"
    except LockstepError as error:
        lacking = str(error)
    return _write(it, config, data, lacking)


def _write(it: Written, config: Config, data: ImageData | None, lacking: str) -> tuple[Path, str]:
    shown: dict[int, str] = {}
    inputs = None
    if data is not None:
        try:
            shown = pictures.thumbnails(data, it.shown)
            inputs = pictures.inputs(config, data)
        except DataError as error:
            shown, lacking = {}, str(error)
    path = it.run / page.FILE
    documents.write(path, page.render(it, shown, inputs, lacking), "make room or mend the disk")
    return path, lacking
