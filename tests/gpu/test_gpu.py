"""The GPU proof as tests: `make test-gpu`, on a machine with a GPU, with whatever torch it has."""

import os
import sys

import pytest
from conftest import ROOT, VISIBLE

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the suite is about the CPU; this undoes what it set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if VISIBLE is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", VISIBLE)
    if not gpu.gpus():
        pytest.fail("torch sees no GPU here → make test-gpu, which looks before it begins")


@pytest.mark.parametrize("precision", gpu.PRECISIONS)
def test_the_same_bits_twice_after_a_kill_with_loaders_and_on_two_processes(precision) -> None:
    rows = list(gpu.bits(dry=False, names=[precision]))
    assert len(rows) == 8
    assert {row.question: row.found for row in rows if row.good is False} == {}


@pytest.mark.parametrize("precision", ["FP32", "BF16"])
def test_models_over_several_processes_end_in_the_bits_of_one(precision) -> None:
    rows = list(gpu.large(dry=False, names=[precision]))
    assert len(rows) == (7 if gpu.shards() else 5)
    assert {row.question: row.found for row in rows if row.good is False} == {}


@pytest.mark.parametrize("part", ["families", "syncs", "health"])
def test_a_part_of_the_proof(part) -> None:
    _, rows = gpu.SECTIONS[part]
    found = list(rows(False))
    assert found
    assert {row.question: row.found for row in found if row.good is False} == {}


def test_the_doctor_finds_nothing_that_stops_a_training() -> None:
    found = list(gpu.doctor(dry=False))
    assert any(row.question == "doctor: kernels" for row in found)
    assert {row.question: row.found for row in found if row.good is False} == {}


def test_the_tuner_finds_a_micro_batch() -> None:
    [row] = gpu.tune(dry=False)
    assert "the largest micro-batch is" in row.found


def test_nothing_of_the_cpu_s_settings_is_left() -> None:
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == VISIBLE
