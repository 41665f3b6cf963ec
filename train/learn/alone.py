"""A place where a model finds no other processes: it may neither talk to them nor count them."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from torch.distributed import distributed_c10d

from host.errors import UsageError

# Of a process that does not exist.
_PLACE = {
    "RANK": "5",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "7",
    "LOCAL_WORLD_SIZE": "7",
}


@contextmanager
def alone(*, launched: bool = False) -> Iterator[None]:
    """Let no model talk to other processes, or ask how many there are: what it computes would
    follow from that, and here nobody would answer.

    Args:
        launched: whether this seems to be one process of several, or the only one: what a model
            makes of that shows in what it gives. Of several, it may ask nothing; the only one is
            what `torch.distributed` knows nothing of.
    """
    before, world = distributed_c10d._get_default_group, distributed_c10d.GroupMember.WORLD
    told = {name: os.environ.get(name) for name in _PLACE}
    asked: list[str] = []  # a model may go on from what refuses it
    refuse = partial(_refuse, asked)
    distributed_c10d._get_default_group = refuse  # most of torch.distributed asks it first
    nobody: Any = _Nobody(refuse) if launched else None
    distributed_c10d.GroupMember.WORLD = nobody
    _tell(_PLACE if launched else dict.fromkeys(_PLACE))
    try:
        yield
    except Exception as error:
        if asked or _Nobody.__name__ in str(error):  # torch looks for it among its groups
            raise _talks() from error
        raise
    finally:
        distributed_c10d._get_default_group = before
        distributed_c10d.GroupMember.WORLD = world
        _tell(told)
    if asked:
        raise _talks()


def _tell(environ: Mapping[str, str | None]) -> None:
    for name, value in environ.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


class _Nobody:
    """In the place of the group of all processes."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self._refuse = refuse

    def __getattr__(self, name: str) -> Any:
        self._refuse(name)


def _refuse(asked: list[str], what: str = "group") -> NoReturn:
    asked.append(what)
    raise _talks()


def _talks() -> UsageError:
    return UsageError(
        "the model talks to other processes, or asks how many there are",
        "leave that out: a lane is to be the same, whoever computes it (torch.compile asks too:"
        " leave it to --model.compile)",
    )
