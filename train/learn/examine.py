"""Is a training a function of seed, data and what checkpoints hold? Tried before it begins.

A few small passes on a model that is thrown away. What remembers something outside of parameters
and buffers (a counter in an attribute, a generator that nobody seeds) gives other results when it
is asked again, or leaves other attributes behind: it would not survive a resume, and the number of
lanes that a process runs would show. Such a model is refused by name, before the first step.
"""

from safetensors import SafetensorError
from torch import Tensor, nn

from host.errors import UsageError
from train.lanes.runtime import Runtime
from train.lanes.state import same, slots
from train.learn import attributes, weights
from train.learn.tries import Pass, Samples, Tries

_KEEP = (
    "keep what it remembers in buffers (register_buffer), and draw from the generators of torch,"
    " numpy or Python"
)


def examine(
    model: nn.Module, twin: nn.Module, samples: Samples, runtime: Runtime, *, lockstep: bool
) -> Tries:
    """What a model does that others do not.

    Args:
        model: as it is to be trained; not touched.
        twin: built a second time, from the same seed; of no use afterwards.

    Raises:
        UsageError: training would not come out the same again; naming what is in the way.
    """
    _check_twins(model, twin)
    if lockstep:
        _check_kinds(twin)
    tries = Tries(twin, samples, runtime)
    look, usual = tries.evaluate(), tries.train()
    held = attributes.picture(twin)
    tries.train(seed=1)
    for _ in range(2):
        again = tries.train()
        held = _check_memory(held, twin)
        _check_same(usual, again)
        del again  # as large as the weights
    _check_same(look, tries.evaluate())
    del usual
    for scale in (3.0, 1 / 3):
        tries.disturb(scale)
        tries.train()
    # What is there now, in the first tensors: another state than a new model's, buffers as well.
    tries.kept.keep()
    tries.kept.put_back()
    return tries


def check_resume(tries: Tries, third: nn.Module) -> None:
    """See that a checkpoint of what was tried, loaded into a `third` model, goes on as that does.

    Raises:
        UsageError: it would be another training.
    """
    twin = tries.model
    try:
        state = twin.state_dict()
        strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if strange:
            raise UsageError(
                f"the model's state_dict holds {strange[0]}, which is no tensor",
                "keep it as a tensor: checkpoints hold nothing that could run code",
            )
        weights.put(third, *weights.unpack(weights.pack(state)))
    except (RuntimeError, SafetensorError, KeyError, AttributeError, TypeError) as error:
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise UsageError(
            f"a checkpoint could not give the model back: {type(error).__name__}: {said}",
            "mend its state_dict, load_state_dict, or the types of its tensors",
        ) from error
    loaded = {slot.name: slot for slot in slots(third)}
    for slot in tries.kept.slots:
        if slot.saved and not same(slot.now, loaded[slot.name].now):
            raise UsageError(
                f"a checkpoint would not give {slot.name} back as it was",
                "mend the model's state_dict or load_state_dict",
            )
    resumed = Tries(third, tries.samples, tries.runtime)
    _check_same(tries.train(), resumed.train(), "after it was resumed")
    _check_same(tries.evaluate(), resumed.evaluate(), "after it was resumed")


def _check_twins(model: nn.Module, twin: nn.Module) -> None:
    pairs = {slot.name: slot for slot in slots(twin)}
    for slot in slots(model):
        other = pairs.get(slot.name)
        if other is None or not same(slot.now, other.now):
            raise UsageError(
                f"{slot.name} does not begin with the same numbers when the model is built again",
                "draw initial weights from torch's, numpy's or Python's own generator",
            )
    pictures = [attributes.picture(each, drawn=False) for each in (model, twin)]
    path = attributes.difference(*pictures)
    if path is not None:
        raise UsageError(
            f"{path} is not the same when the model is built again: it would differ on each process"
            " and at each start",
            "draw it from torch's, numpy's or Python's own generator, or leave it out",
        )


def _check_kinds(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{name} is a SyncBatchNorm, which looks at all processes at once",
                "use BatchNorm: at lockstep it sees a lane, on any number of processes",
            )


def _check_memory(before: attributes.Picture, model: nn.Module) -> attributes.Picture:
    """What the model holds outside of parameters and buffers, which is what it held before."""
    held = attributes.picture(model)
    path = attributes.difference(before, held)
    if path is not None:
        raise UsageError(
            f"the model remembers something in {path}: no checkpoint holds that, and it would"
            " follow how many lanes a process runs",
            _KEEP,
        )
    return held


def _check_same(one: Pass, again: Pass, when: str = "when it is asked again") -> None:
    for name in one.result:
        if not same(one.result[name], again.result.get(name)):
            pairs = zip(one.outputs, again.outputs, strict=False)
            module = next((a[0] for a, b in pairs if a != b), None)
            where = f"{module} gives" if module else f"{name} comes out as"
            raise UsageError(
                f"{where} something else {when}, from the same weights, buffers and seed",
                _KEEP,
            )
