"""The same bits on other CPUs: at full speed, with what real ones answer when libraries ask."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys

import cpuid
import pytest
from experiments import EXPERIMENTS, QUICK, WHOLE, check_equal, read, train

from train.numerics import variables
from train.record import comparison

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("objdump")), reason="no C compiler and objdump"
    ),
    pytest.mark.timeout(1200),
]

CPUS = sorted(file.stem for file in cpuid.CPUS.glob("*.txt"))
# An Intel, an AMD, and one whose AVX-512 instructions would end the process on most machines.
WIDE = variables.HELD["NPY_DISABLE_CPU_FEATURES"]
IN_CI = ("haswell", "zen3", "zen5")


@pytest.fixture(scope="module")
def taken_for(tmp_path_factory):
    """Variables under which this machine is taken for another."""
    folder = tmp_path_factory.mktemp("cpuid")
    return lambda cpu: cpuid.environ(cpuid.CPUS / f"{cpu}.txt", folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What this machine gives, trained once, whoever asks first of those that test side by side."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @functools.cache
    def trained(names):
        folder = base / f"here-{len(names)}"
        with (base / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return read(folder, names) if folder.exists() else train(folder, names)

    return trained


@pytest.mark.parametrize(
    ("cpu", "names"),
    [
        *(pytest.param(cpu, QUICK, id=f"quick-{cpu}", marks=pytest.mark.slow) for cpu in IN_CI),
        *(
            pytest.param(cpu, (*EXPERIMENTS, *WHOLE), id=f"all-{cpu}", marks=pytest.mark.portable)
            for cpu in CPUS
        ),
    ],
)
def test_the_same_bits(cpu, names, here, taken_for, tmp_path) -> None:
    check_equal(here(names), train(tmp_path / "there", names, (), taken_for(cpu)), cpu)


@pytest.mark.slow
def test_left_alone_they_have_other_bits(taken_for, tmp_path) -> None:
    """Else the tests above would show nothing."""
    names = QUICK[:1]
    runs = []
    for cpu in ("haswell", "zen3"):
        runs += [train(tmp_path / cpu, names, (), taken_for(cpu), "native")[names[0]]]
    one, other = runs
    assert one.result["weights_sha256"] != other.result["weights_sha256"]
    different = " ".join(comparison.differences(one.record, other.record))
    assert "linear" in different
    assert "the model's first pass" in different


@pytest.mark.slow
def test_libraries_believe_it(taken_for) -> None:
    """oneDNN names the instructions that it finds, and torch those it has at most."""
    words = "import torch; torch.backends.mkldnn.verbose(1).__enter__()"
    words += "; torch.nn.functional.conv2d(torch.ones(16, 8, 5, 5), torch.ones(8, 8, 3, 3))"
    words += "; print(torch.cpu._is_avx512_supported())"
    said = {}
    for cpu in ("haswell", "zen5"):
        bare = {k: v for k, v in os.environ.items() if k not in variables.HELD}
        held = {"ONEDNN_MAX_CPU_ISA": "AVX", "NPY_DISABLE_CPU_FEATURES": WIDE}
        environ = {**bare, **held, **taken_for(cpu)}
        command = [sys.executable, "-c", words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        said[cpu] = done.stdout.splitlines()[-1]
    assert said == {"haswell": "False", "zen5": "True"}
