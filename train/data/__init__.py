"""Images and their classes: where they come from, how they vary, how they reach the model."""

from train.data.image_data import ImageData, check_place
from train.data.images import Split
from train.data.loader import Batch, eval_batches, lane_blocks
from train.data.pictures import ALL
from train.data.source import load
from train.data.vary import Augmenter

__all__ = [
    "ALL",
    "Augmenter",
    "Batch",
    "ImageData",
    "Split",
    "check_place",
    "eval_batches",
    "lane_blocks",
    "load",
]
