"""Model and optimizer, new from the seed, and what the model does that others do not."""

from train.learner.trying import first_pass, new, traits

__all__ = ["first_pass", "new", "traits"]
