"""write weights for others: safetensors with a model card, ONNX, torch.export; checked"""

import argparse
from pathlib import Path
from typing import Any

from host.errors import UsageError, nearest
from host.text import printable
from train import trained
from train.export import pushing

LAUNCHED = False
KNOBS = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights, in which formats, and where to."""
    trained.arguments(parser)
    parser.add_argument(
        "--formats",
        default="safetensors,onnx,pt2",
        metavar="LIST",
        help="some of safetensors, onnx and pt2 (default: all)",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="a folder (default: export, in the run's)"
    )
    parser.add_argument("--license", default="unknown", metavar="NAME", help="for the model card")
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="where the data is now")
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="put them on the Hugging Face hub as well; needs HF_TOKEN",
    )
    parser.add_argument(
        "--pictures",
        nargs="+",
        default=[],
        metavar="FILE",
        help="what to check with (default: the run's validation images)",
    )


def main(options: argparse.Namespace, _knobs: dict[str, Any]) -> None:
    """Export, and print a line for each file.

    Raises:
        UsageError: a format is unknown, or the model does not go into it; the others are written.
        HostError: the hub does not take them.
        LockstepError: what else went wrong, for the user to mend.
    """
    known = ("safetensors", "onnx", "pt2")
    wanted = list(dict.fromkeys(filter(None, options.formats.split(","))))
    for name in wanted or [""]:
        if name not in known:
            raise UsageError(
                f"--formats {options.formats}: no format {name!r}{nearest(name, known)}",
                f"some of {','.join(known)}",
            )
    if options.push:
        pushing.check(options.push)
    path = trained.chosen(options)
    folder = options.to or path.absolute().parent.parent / "export"
    from train.export import exporting, place
    from train.export.exporting import Removed
    from train.export.failing import Failed

    failed: list[Failed] = []
    for each in exporting.export(
        path,
        folder,
        wanted,
        root=options.root,
        pictures=options.pictures,
        licence=options.license,
    ):
        if isinstance(each, Failed):
            failed.append(each)
            continue
        if isinstance(each, Removed):
            print(printable(f"removed {_short(each.file)}: it was of other weights, or other code"))
            continue
        classes = f"{each.others} of another class" if each.others else "the same class for each"
        line = (
            f"{_short(each.file)}: largest difference of a logit {each.difference:.2g} on"
            f" {each.pictures} pictures, {classes}"
        )
        print(printable(line))
    if failed:
        first, *_ = failed
        names = ", ".join(each.name for each in failed)
        left = [name for name in wanted if name not in {each.name for each in failed}]
        ways = [first.fix, f"--formats {','.join(left)}" if left else "use predict"]
        others = "; the others are written" if left else ""
        raise UsageError(
            f"this model does not go into {names}: {first.why}{others}",
            "; or ".join(filter(None, ways)),
        ) from first.error
    if options.push:
        files = [path.name for path in place.exported(folder)]
        where = pushing.push(folder, files, place.PATTERNS, options.push)
        print(printable(f"on the hub: {where}"))


def _short(path: Path) -> Path:
    """As it is found from here; in a container the rest is not the host's."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
