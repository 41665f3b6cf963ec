"""Loader processes that lose their trainer."""

import subprocess
import sys

from conftest import ROOT

# Its trainer ends between asking for a tensor and taking it: it connects and says nothing.
LOADER = """
import os, multiprocessing
from multiprocessing import resource_sharer
from multiprocessing.connection import Client
from train.data import workers

workers._become_worker(0)
handle = resource_sharer.DupFd(0)
address = resource_sharer._resource_sharer._address
Client(address, authkey=multiprocessing.current_process().authkey).close()
try:
    resource_sharer._resource_sharer.get_connection(handle._id).close()
finally:
    resource_sharer.stop(timeout=10)
{more}
"""


def _said(more: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOADER.format(more=more)], cwd=ROOT, capture_output=True, text=True,
        stdin=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    return done.stderr


def test_a_loader_whose_trainer_is_gone_leaves_the_telling_to_it() -> None:
    assert not _said()


def test_an_error_of_its_own_is_told() -> None:
    assert "RuntimeError: mine" in _said("raise RuntimeError('mine')")
