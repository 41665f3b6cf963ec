"""One process's part in the passes of a model whose stages are spread over the processes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from train.lanes.crossing import Crossing
from train.lanes.passage import Passage
from train.lanes.pulse import Pulse
from train.lanes.staging import Staging


@dataclass(frozen=True)
class Flight:
    """A lane on its way: what the stage was given, and what it gave.

    Attributes:
        given: of the first stage, the images.
        gave: of the last one, what the model gives.
    """

    given: Tensor | Crossing
    gave: Crossing | Tensor


class Pipeline:
    """The stage of this process.

    Attributes:
        stage, count: which one of how many.
        copy: of the model, which one this process works on.
    """

    def __init__(self, passage: Passage, staging: Staging, pulse: Pulse) -> None:
        self.links, self.stage, self.count = staging.links, staging.stage, staging.stages.count
        self.copy = staging.copy
        self._passage, self._pulse = passage, pulse

    @property
    def first(self) -> bool:
        """Whether images enter here."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether logits come out here."""
        return self.stage == self.count - 1

    def forward(self, images: Tensor | None, reseed: Callable[[], None]) -> Flight:
        """The stage's forward pass of a lane, or of a batch of an evaluation.

        Args:
            images: of the first stage.
            reseed: seeds what the model draws from.
        """
        given: Tensor | Crossing
        given = self._taken() if images is None else images
        gave = self._passage.run(self.stage, given, reseed)
        if isinstance(gave, Crossing):
            self._give(gave)
        return Flight(given, gave)

    def backward(self, flight: Flight) -> None:
        """The stage's backward pass of a lane; on the last stage, after that of the loss."""
        if isinstance(flight.gave, Crossing):
            with self._pulse.together(f"the gradients of stage {self.stage + 1}"):
                there, tensors = self.links.get(self._process(self.stage + 1))
            found = iter(tensors)
            flight.gave.backward([next(found) if is_there else None for is_there in there])
        if isinstance(flight.given, Crossing):
            gradients = flight.given.gradients
            tensors = [gradient for gradient in gradients if gradient is not None]
            there = [gradient is not None for gradient in gradients]
            self.links.put(there, tensors, self._process(self.stage - 1))

    def tell(self, tensors: list[Tensor | None]) -> None:
        """Have the last stage know what belongs to the images that the first one has."""
        there = [tensor is not None for tensor in tensors]
        last = self._process(self.count - 1)
        self.links.put(there, [t for t in tensors if t is not None], last)

    def told(self) -> list[Tensor | None]:
        """What the first stage has told the last one."""
        with self._pulse.together("the labels"):
            there, tensors = self.links.get(self._process(0))
        found = iter(tensors)
        return [next(found) if is_there else None for is_there in there]

    def _give(self, gave: Crossing) -> None:
        about = (gave.plain, gave.wanted, gave.drawn, gave.shape, gave.kind)
        self.links.put(about, gave.tensors, self._process(self.stage + 1))

    def _taken(self) -> Crossing:
        with self._pulse.together(f"the activations of stage {self.stage - 1}"):
            about, tensors = self.links.get(self._process(self.stage - 1))
        return Crossing(tensors, *about)

    def _process(self, stage: int) -> int:
        """The process with a stage of the same copy of the model."""
        return self.copy * self.count + stage
