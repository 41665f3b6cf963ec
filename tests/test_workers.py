"""Loader processes that lose their trainer."""

import subprocess
import sys

import pytest
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
raise RuntimeError('mine')
"""


@pytest.mark.slow
def test_a_trainer_that_is_gone_is_not_told_and_an_error_of_its_own_is() -> None:
    """Its trainer tells why it is gone."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER], cwd=ROOT, capture_output=True, text=True,
        stdin=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert "RuntimeError: mine" in done.stderr
    assert "resource_sharer" not in done.stderr
