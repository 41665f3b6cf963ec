"""show what an experiment trains on: splits, classes, what is damaged or left out, and a picture"""

import argparse
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.errors import DataError, UsageError
from host.text import in_line, printable
from train import experiment
from train.config import Data

if TYPE_CHECKING:
    from train.data import ImageData

LAUNCHED = False
KNOBS = True

_CLASSES = 40  # that are listed
_LEFT = 20  # that are listed of what is left out for one reason


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which experiment, and where to draw."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the experiment, a YAML file")
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="where the first samples are drawn, as the model gets them (default:"
        " runs/<name>-data.png)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--cached", action="store_true", help="list what is kept in data.cache_dir, and end"
    )
    what.add_argument(
        "--clear", action="store_true", help="remove what is kept in data.cache_dir, and end"
    )


def main(options: argparse.Namespace, knobs: dict[str, Any]) -> None:
    """Print it, and draw the picture.

    Raises:
        DataError: pictures cannot be used, and the experiment does not skip them.
    """
    config = experiment.load(options.config, knobs)
    from train import assemble
    from train.data import load, mosaic

    if options.cached or options.clear:
        _cache(config.data, clear=options.clear)
        return

    # All that is damaged is listed first, whatever the experiment does about it.
    images = load(config.data, config.augment, config.eval, listing=True)
    for line in _lines(images):
        print(printable(line))
    path = options.picture or Path("runs", f"{config.name}-data.png")
    drawn = mosaic.draw(config, images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.save(path)
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no format
        raise DataError(f"cannot draw {path}: {error}", "name another file: --picture") from error
    print(printable(f"the first samples, as the model gets them: {path}"))
    try:
        assemble.samples(config, images)
    except UsageError as error:
        print(f"warning: {error}; else make train refuses it")
    if images.skipped and config.data.on_bad == "error":
        count = len(images.skipped)
        raise DataError(
            f"{count:,} item{'s' * (count > 1)} cannot be used, as listed above",
            "mend or remove them, or leave them out: --data.on_bad skip",
        )


def _cache(config: Data, *, clear: bool) -> None:
    """List or remove what the cache holds."""
    from train.data import cache, store

    root = cache.folder(config)
    found = store.entries(root)  # with locks, which hold nothing
    for path, size, written in found:
        if clear:
            with suppress(OSError):  # somebody else's
                path.unlink()
        elif size:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))
            print(f"{size / 2**20:>10,.1f} MiB  {when}  {path.name}")
    left = [entry for entry in store.entries(root) if entry[1]]
    gone = f"; {sum(1 for entry in found if entry[1]) - len(left)} were removed" if clear else ""
    total = sum(size for _, size, _ in left) / 2**20
    print(printable(f"{len(left)} files, {total:,.1f} MiB in {root}{gone}"))


def _lines(images: "ImageData") -> list[str]:
    channels, height, width = images.train.shape
    colour = "grey" if channels == 1 else "colour"
    figures = f"mean {_list(images.mean)}, deviation {_list(images.std)}"
    lines = [
        f"training    {len(images.train):>9,} pictures",
        f"validation  {len(images.validation):>9,} pictures",
        f"{width}×{height} pixels{_measured(images)}, {colour}; {figures}",
        f"data {images.sha256}",
        f"{len(images.classes):,} classes (training + validation):",
    ]
    count = len(images.classes)
    trained = images.train.labels.bincount(minlength=count).tolist()
    held = images.validation.labels.bincount(minlength=count).tolist()
    rows = [*zip(images.classes, trained, held, strict=True)]
    lines += [f"  {in_line(name)}: {a:,} + {b:,}" for name, a, b in rows[:_CLASSES]]
    if count > _CLASSES:
        few, _, _ = min(rows, key=lambda row: row[1])
        lines.append(f"  … and {count - _CLASSES:,} more; the fewest has {few}, {min(trained):,}")
    if images.skipped:
        lines.append(f"cannot be used: {len(images.skipped):,}")
        lines += [f"  {in_line(name)}: {why}" for name, why in sorted(images.skipped.items())]
    if images.left_out:
        lines.append(f"left out: {len(images.left_out):,}")
        lines += _left_out(images.left_out)
    return lines + [f"warning: {doubt}" for doubt in images.doubts]


def _left_out(names: dict[str, str]) -> list[str]:
    """Some of each reason: thousands of pictures may be in no list."""
    lines = []
    for reason, count in Counter(names.values()).items():
        of_it = sorted(name for name, why in names.items() if why == reason)
        lines += [f"  {in_line(name)}: {reason}" for name in of_it[:_LEFT]]
        if count > _LEFT:
            lines.append(f"  … and {count - _LEFT:,} more: {reason}")
    return lines


def _measured(images: "ImageData") -> str:
    """The size of validation images, where they have one of their own."""
    shape = images.validation.shape
    return f" ({shape[2]}×{shape[1]} in validation)" if shape != images.train.shape else ""


def _list(values: list[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
