"""The same bits on CPUs of other makers and ages, as qemu-user emulates them.

Slow, and the one way here to see an instruction whose last bits are each maker's: `rcpps` and
`rsqrtps` have the emulator's own.
"""

import shutil

import pytest
from experiments import EXPERIMENTS, QUICK, check_equal, train

pytestmark = [pytest.mark.portable, pytest.mark.timeout(3000)]

EMULATOR = "qemu-x86_64"
CPUS = (
    "Haswell",
    "Haswell,l3-cache=off",
    "Skylake-Client",
    "EPYC-Rome",
    "EPYC-Milan",
    "EPYC-Milan,l3-cache=off,host-cache-info=on",
)
EMULATED = "6.0.0-emulated"
"""What an emulated process takes for the kernel's release; one that left the emulator does not."""


@pytest.mark.parametrize(
    ("cpu", "names"),
    [
        *(pytest.param(cpu, QUICK, id=f"quick-{cpu}") for cpu in ("Haswell", "EPYC-Milan")),
        *(pytest.param(cpu, tuple(EXPERIMENTS), id=f"all-{cpu}") for cpu in CPUS),
    ],
)
def test_the_same_bits(cpu, names, tmp_path) -> None:
    assert shutil.which(EMULATOR), "Debian and Ubuntu have it: apt-get install qemu-user"
    here = train(tmp_path / "here", names)
    there = train(tmp_path / "there", names, [EMULATOR, "-r", EMULATED, "-cpu", cpu])
    assert all(EMULATED in t.record["hardware"]["system"] for t in there.values())
    check_equal(here, there, cpu)
