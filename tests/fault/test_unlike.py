"""Processes that would not compute alike are refused before the first step, and named."""

import pytest
from conftest import ROOT, picture
from fault import harness

WORDS = ["fit", "--config", ROOT / "configs/digits.yaml", "--max_steps", 3]
WORDS += ["--numerics", "native"]
PAIRS = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "SSE4_2",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2_Usable",
    "NVIDIA_TF32_OVERRIDE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
}

pytestmark = pytest.mark.slow


def attempt(folder, variables, *words):
    started = harness.start(
        folder / "log", 2, [*WORDS, "--run", folder / "run", *words], None, variables
    )
    codes = started.wait(60)
    started.end()
    return codes, started.output(), (folder / "run" / "checkpoints").exists()


@pytest.mark.parametrize("name", PAIRS)
def test_a_variable_that_one_process_has(tmp_path, name) -> None:
    codes, said, trained = attempt(tmp_path, {1: {name: PAIRS[name]}})
    assert codes == [6, 6], said
    assert "process 1 does not compute as the others: " in said
    assert f"variable {name} is {PAIRS[name]} there, and " in said
    assert "Traceback" not in said
    assert not trained


def test_another_precision_on_one_process(tmp_path) -> None:
    codes, said, _ = attempt(
        tmp_path, {1: {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}}
    )
    assert codes == [6, 6], said
    assert "mixed_precision is bf16 there, and no on process 0" in said


def test_at_fast_they_may(tmp_path) -> None:
    variables = {1: {"ONEDNN_MAX_CPU_ISA": "SSE41"}}
    codes, said, trained = attempt(tmp_path, variables, "--reproducibility", "fast")
    assert codes == [0, 0], said
    assert trained


def test_other_data_on_one_process(tmp_path) -> None:
    """One more bright picture on the second host, and labels that are the same."""
    for host, value in (("first", 200), ("second", 201)):
        for split, count in (("train", 12), ("validation", 3)):
            for name, grey in (("dark", 60), ("light", value)):
                for number in range(count):
                    picture(tmp_path / host / "data" / split / name / f"{number}.png", grey)
    words = ["--data.source", "folder", "--data.root", "data", "--batch_size", 8, "--lanes", 2]
    hosts = {rank: {"WORK": str(tmp_path / host)} for rank, host in enumerate(("first", "second"))}
    codes, said, trained = attempt(tmp_path, hosts, *words)
    assert codes == [3, 3], said
    assert "process 1 has other data than process 0" in said
    assert not trained
    codes, said, _ = attempt(tmp_path / "alike", {0: hosts[1], 1: hosts[1]}, *words)
    assert codes == [0, 0], said
