"""The same bits on other CPUs: at full speed, with what real ones answer when libraries ask."""

import functools
import shutil

import cpuid
import pytest
from experiments import EXPERIMENTS, QUICK, WHOLE, check_equal, train

from train.record import comparison

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("objdump")), reason="no C compiler and objdump"
    ),
    pytest.mark.timeout(1200),
]

WITHOUT_FMA = "zhangjiang"
CPUS = sorted(file.stem for file in cpuid.CPUS.glob("*.txt") if file.stem != WITHOUT_FMA)
# An Intel, an AMD, and one whose AVX-512 instructions would end the process on most machines.
IN_CI = ("haswell", "zen3", "zen5")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What this machine gives, trained once."""
    folder = tmp_path_factory.mktemp("here")
    return functools.cache(lambda names: train(folder / str(len(names)), names))


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
def test_the_same_bits(cpu, names, here, tmp_path) -> None:
    environ = cpuid.environ(cpuid.CPUS / f"{cpu}.txt", tmp_path)
    check_equal(here(names), train(tmp_path / "there", names, (), environ), cpu)


@pytest.mark.slow
def test_left_alone_they_have_other_bits(tmp_path) -> None:
    """Else the tests above would show nothing."""
    names = QUICK[:1]
    runs = []
    for cpu in ("haswell", "zen3"):
        environ = cpuid.environ(cpuid.CPUS / f"{cpu}.txt", tmp_path)
        runs += [train(tmp_path / cpu, names, (), environ, "native")[names[0]]]
    one, other = runs
    assert one.result["weights_sha256"] != other.result["weights_sha256"]
    different = " ".join(comparison.differences(one.record, other.record))
    assert "linear" in different
    assert "the model's first pass" in different


@pytest.mark.slow
def test_a_cpu_without_fma_is_refused(tmp_path) -> None:
    environ = cpuid.environ(cpuid.CPUS / f"{WITHOUT_FMA}.txt", tmp_path)
    with pytest.raises(AssertionError, match=r"6: .*needs an x86-64 CPU with AVX2 and FMA"):
        train(tmp_path / "there", QUICK[:1], (), environ)
