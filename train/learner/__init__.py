"""Model and optimizer, new from the seed, and what the model does that others do not."""

from train.learner.building import as_trained, new
from train.learner.sizes import pictures
from train.learner.trying import first_pass, stages, traits

__all__ = ["as_trained", "first_pass", "new", "pictures", "stages", "traits"]
