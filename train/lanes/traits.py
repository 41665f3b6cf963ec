"""What a model does that others do not, and that the lanes have to know of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """Found by `examine`, by trying the model.

    Attributes:
        moving: names of parameters and buffers that the forward pass itself changes.
        measured: names of those that an evaluation changes.
        late: names of parameters whose gradient comes in several parts, or is changed once it is
            there.
    """

    moving: frozenset[str] = frozenset()
    measured: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()


USUAL = Traits()
"""Nothing of that."""
