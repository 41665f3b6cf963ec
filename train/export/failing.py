"""Why a model does not go into a format, in the words of what was raised first."""

import re
from dataclasses import dataclass

from host.errors import first_line

# What exporters say where a model was traced with a number in place of the batch's size.
_FIXED = re.compile(r"Constraints violated \(batch|Got invalid dimensions for input: images")
_ONE_SIZE = "it takes one number of pictures alone"
_FOR_ALL = (
    "in its forward pass, compute for all samples and choose with torch.where, in place of nonzero,"
    " item or an if on what a tensor holds"
)
_ANY_SIZE = "in its code, say x.shape[0] where it says len(x) or int(…)"


@dataclass(frozen=True)
class Failed:
    """A format that this model does not go into, why, and what mends that where it is known."""

    name: str
    why: str
    error: Exception | None = None
    fix: str = ""


def of(name: str, error: Exception) -> Failed:
    """What an exporter raised: it wraps the cause in steps of its own."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if _FIXED.search(str(error)):
        return Failed(name, _ONE_SIZE, error, _ANY_SIZE)
    fix = _FOR_ALL if "data-dependent" in str(root) else ""
    return Failed(name, f"{type(root).__name__}: {first_line(root)}", error, fix)
