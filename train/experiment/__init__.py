"""An experiment's file: read, override, check, compare and write it."""

from train.experiment.aliases import meant
from train.experiment.comparing import changed, differences, dump, signature, told, typed, value
from train.experiment.parsing import load, loaded, moved, parse, settled
from train.experiment.reading import read_yaml

__all__ = [
    "changed",
    "differences",
    "dump",
    "load",
    "loaded",
    "meant",
    "moved",
    "parse",
    "read_yaml",
    "settled",
    "signature",
    "told",
    "typed",
    "value",
]
