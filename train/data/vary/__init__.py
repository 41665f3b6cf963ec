"""How training images are varied, in batches, each by its own key."""

from train.data.vary.augmenter import Augmenter

__all__ = ["Augmenter"]
