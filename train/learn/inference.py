"""What a model gives for images, whatever it was given before."""

from collections.abc import Collection
from functools import partial
from types import TracebackType

from torch import Tensor, nn

from train.lanes.pipeline import Pipeline
from train.lanes.seeds import Generators
from train.lanes.state import Kept, slots


class Inference:
    """A model in evaluation mode; within it, what it gives for a batch follows from that alone.

    Some models draw random numbers here as well, or change their buffers: which batches came
    before on this process must not show. Others change their weights in `eval()`.
    """

    def __init__(self, model: nn.Module, seed: int, moving: Collection[str] | None = None) -> None:
        """Of a model.

        Args:
            moving: names of what an evaluation is known to change, and is put back; None: to be
                found out, of a model that is not trained any more.
        """
        self._model, self._seed, self._moving = model, seed, moving
        self._generators = Generators(model)

    def __enter__(self) -> "Inference":
        """Into evaluation mode."""
        self._training, moving = self._model.training, self._moving
        changed = [slot for slot in slots(self._model) if moving is None or slot.name in moving]
        self._before = Kept(changed if moving else [])
        self._model.eval()
        self._kept = Kept(changed)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Back into the mode that it was in."""
        self._model.train(self._training)
        self._before.put_back()

    def staged(self, pipeline: Pipeline, images: Tensor | None, start: int) -> Tensor | None:
        """The same on one stage of a model, each of which calls it.

        Args:
            images: on the first stage.

        Returns:
            The logits, on the last stage.
        """
        self._kept.put_back()
        reseed = partial(self._generators.seed_evaluation, self._seed, start)
        gave = pipeline.forward(images, reseed).gave
        return gave.float() if isinstance(gave, Tensor) else None

    def logits(self, images: Tensor, start: int) -> Tensor:
        """float32 [B, classes] of images as they enter the model.

        Args:
            start: the number of the first one, which seeds what the model draws.
        """
        self._generators.seed_evaluation(self._seed, start)
        self._kept.put_back()
        logits: Tensor = self._model(images).float()
        if self._moving is None:
            self._kept = self._kept.changed()
            self._moving = ()
        return logits
