"""Weights that a model starts from: a file, or one of the Hugging Face hub."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from host import INSIDE, regular
from host.errors import UsageError
from train.config import Model
from train.lanes.state import held
from train.learn import hub
from train.learn.weights import put, shapes, unpack

_FILE = "model.safetensors"
_COUNTER = ".num_batches_tracked"  # which older files have not
_LISTED = 10


def load(model: nn.Module, config: Model) -> None:
    """Give a new model the weights of the file that `config` names, if it names one.

    The layer that gives the classes may be another, or missing in the file: it stays new.

    Raises:
        UsageError: the file cannot be had or read, or is of another model.
    """
    path = _path(config)
    if path is None:
        return
    prefix = config.prefix or ""
    try:
        given, versions = unpack(regular.read(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, error) from error
    own = model.state_dict()
    wrapped = _common_prefix(given, own)
    if wrapped != prefix:
        begin = f"all begin with {wrapped}" if wrapped else f"do not all begin with {prefix}"
        fix = f"add --model.prefix {wrapped}" if wrapped else "take model.prefix away"
        raise UsageError(f"the names in weights {path} {begin}", fix)
    given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    if versions is not None:
        versions = {f"{n}.".removeprefix(prefix).rstrip("."): v for n, v in versions.items()}
    given |= {name: given[other] for name, other in _tied(own, given).items()}
    anew = {n for n in own if n not in given or own[n].shape != given[n].shape}
    lacking = [n for n in own if n not in given and not n.endswith(_COUNTER)]
    strange = [n for n in given if n not in own] + [
        n for n in own if n in given and own[n].is_floating_point() != given[n].is_floating_point()
    ]
    # The head may differ: other data, other classes. Anything else is another model.
    modules = {n.rpartition(".")[0] for n in anew if not n.endswith(_COUNTER)}
    head = [name for name, module in model.named_modules() if module._parameters][-1:]
    if strange or (modules and [*modules] != head) or len(anew) == len(own):
        # The head may be another one, so it is named last.
        odd = [*strange, *lacking, *sorted(anew)]
        odd.sort(key=lambda name: name.rpartition(".")[0] in head)
        sizes = [_sized(each[odd[0]].shape) for each in (own, given) if odd[0] in each]
        differ = f": it is {sizes[0]} here, and {sizes[1]} there" if len({*sizes}) > 1 else ""
        fitting = len(own) - len(anew)
        raise UsageError(
            f"weights {path} are of another model: they have {fitting or 'none'} of the {len(own)}"
            f" tensors of this one{f'; {odd[0]} does not fit{differ}' if fitting else ''}",
            "use the model.name, model.stem and data.channels that they were trained with, and the"
            " data.size where the model is made for one",
        )
    put(model, {n: own[n] if n in anew else given[n] for n in own}, versions)


def _tied(own: Mapping[str, Tensor], there: Collection[str]) -> dict[str, str]:
    """Names that are not there of tensors that are, by another name: that one.

    Of tied weights the `save_model` of safetensors writes one name.
    """
    names: dict[tuple[int, torch.Size, tuple[int, ...]], list[str]] = {}
    for name, tensor in own.items():
        here = held(tensor)
        place = (here.data_ptr(), here.shape, here.stride())
        if place[0]:  # none on the meta device
            names.setdefault(place, []).append(name)
    return {
        name: other
        for same in names.values()
        for other in [name for name in same if name in there][:1]
        for name in same
        if name not in there
    }


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What `state_dict()` names, as this process has it."""
    for place, module in model.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and name not in module._non_persistent_buffers_set:
                    yield f"{place}.{name}".lstrip("."), tensor


def taken(config: Model, model: nn.Module) -> Iterator[str]:
    """What of its weights' file the model has, and what was made anew; nothing without a file.

    Args:
        model: as `models.build` made it, trained or not. This process alone may ask: of shards
            and stages `state_dict()` would wait for the others.
    """
    path = _path(config)
    if path is None:
        return
    prefix, there = config.prefix or "", shapes(path)
    here = {
        name: tensor
        for name, tensor in _held(model)
        if prefix + name in there or not name.endswith(_COUNTER)
    }
    tied = _tied(here, [name.removeprefix(prefix) for name in there])
    rows = [
        (name, _sized(tensor.shape), there.get(prefix + name))
        for name, tensor in here.items()
        if there.get(prefix + name) != [*tensor.shape] and name not in tied
    ]
    said = f"weights: {len(here) - len(rows)} of {len(here)} tensors from {config.weights}"
    yield f"{said}; made anew:" if rows else said
    for name, now, was in rows[:_LISTED]:
        yield f"  {name}: {now}, {'not there' if was is None else f'there {_sized(was)}'}"
    if len(rows) > _LISTED:
        yield f"  and {len(rows) - _LISTED} more"


def sha256(config: Model) -> str | None:
    """Of the file that a model starts from; None without one.

    Raises:
        UsageError: it cannot be had.
    """
    path = _path(config)
    if path is None:
        return None
    try:
        return hashlib.sha256(regular.read(path)).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UsageError:
    where = " in runs/ or data/: a container sees no others" if INSIDE.exists() else ""
    why = (error.strerror if isinstance(error, OSError) else None) or error
    fix = (
        "name a file that is there" if isinstance(error, FileNotFoundError) else "name a whole file"
    )
    return UsageError(f"cannot read weights {path}: {why}", f"{fix}{where}")


def _path(config: Model) -> Path | None:
    return config.file or (_fetched(config.hub_id) if config.hub_id else None)


@cache
def _fetched(named: str) -> Path:
    """The file of a repository of the hub, in Hugging Face's own cache.

    Raises:
        UsageError: it cannot be had.
    """
    from huggingface_hub import hf_hub_download

    name, _, revision = named.partition("@")
    if name.startswith("runs/") and Path("runs").is_dir():
        raise UsageError(
            f"model.weights: there is no {name}",
            "name the weights of a run: runs/…/checkpoints/latest/model.safetensors (make runs"
            " lists the runs)",
        )
    fix = "check the name (owner/name, or owner/name@revision) and the network, or name a file"
    with hub.asked(f"{_FILE} of {named}", fix):
        return Path(hf_hub_download(name, _FILE, revision=revision or None))


def _common_prefix(given: Collection[str], own: Collection[str]) -> str:
    """What all the names begin with before one of the model's; '' where there is no such."""
    first = min(given, default="")
    endings = [name for name in own if first.endswith(f".{name}")]
    prefix = first.removesuffix(max(endings, key=len)) if endings and first not in own else ""
    return prefix if all(name.startswith(prefix) for name in given) else ""


def _sized(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "one number"
