"""Where a run stands, and how it goes on: from the newest checkpoint that is whole and its own."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from host.errors import CheckpointError
from train.lanes.runtime import Runtime
from train.record import checkpoint, rundir, sending
from train.record.claim import Claim, check_facts
from train.record.facts import checked
from train.record.saver import Saver

Steps = Annotated[int, Field(ge=0)]


@dataclass
class State:
    """Where a run stands: with weights and optimizer, all that a resumed run needs.

    Attributes:
        seconds: of training, without evaluations and saves.
        measured: step of the last evaluation.
    """

    step: Steps = 0
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    measured: Steps = 0
    best_step: Steps = 0
    best_top1: Annotated[float, Field(ge=-1, le=1)] = -1.0

    @staticmethod
    def read(written: Mapping[str, Any], origin: str) -> "State":
        """The state among what a checkpoint says.

        Raises:
            CheckpointError: it says what cannot be.
        """
        names = [field.name for field in fields(State)]
        state = checked(State, {name: written[name] for name in names if name in written}, origin)
        if max(state.measured, state.best_step) > state.step:
            raise CheckpointError(
                f"{origin} says that it was measured after its own step {state.step}",
                "use another checkpoint of the run",
            )
        return state


def last(claim: Claim, saver: Saver, runtime: Runtime, end: int) -> State:
    """The state of the newest whole checkpoint, put in place on every process; new without one.

    Args:
        end: the step that ends the run.

    Raises:
        CheckpointError: there are some, and none is whole.
        DataError, UsageError: it is of other data, or this training would not go on to its bits.
    """
    state, path = State(), None
    with runtime.together():
        if runtime.main and claim.continued:
            path, state = _newest(claim, saver, end)
    path = runtime.from_main(path)
    if path is not None:
        with sending.everywhere(path, runtime) as place, runtime.together():
            if not runtime.main:
                state = _restored(place, claim, saver, end)
    return state


def _newest(claim: Claim, saver: Saver, end: int) -> tuple[Path | None, State]:
    damage: list[CheckpointError] = []
    for path in rundir.steps(claim.checkpoints):
        try:
            state = _restored(path, claim, saver, end)
        except CheckpointError as error:
            damage.append(error)
            continue
        for worse in damage:
            print(f"warning: {worse.problem}; going on from an older checkpoint")
        return path, state
    if damage:
        raise CheckpointError(
            f"no checkpoint under {claim.checkpoints} is whole; {damage[0].problem}",
            "restore one from a copy, or start again with another --run",
        )
    return None, State()


def _restored(path: Path, claim: Claim, saver: Saver, end: int) -> State:
    found = checkpoint.read(path)
    check_facts(claim.path, found.facts, saver.facts)
    state = State.read(found.state, str(path))
    if state.step > end:
        raise CheckpointError(
            f"{path} is of step {state.step}, and the run ends with step {end}",
            "use another checkpoint of the run",
        )
    saver.restore(found)
    return state
