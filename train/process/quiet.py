"""Torch's launchers, without what they log of trainers that end: each trainer says it in a line."""

import logging
from importlib import import_module

_OURS = "torch.distributed.elastic"


def launchers() -> None:
    """Each of their loggers has a level of its own, from when it is imported."""
    import_module(f"{_OURS}.agent.server.api")
    for name in [_OURS, *logging.root.manager.loggerDict]:
        if name == _OURS or name.startswith(f"{_OURS}."):
            logging.getLogger(name).setLevel(logging.CRITICAL)
