"""The same bits on CPUs of other makers and ages, as qemu-user emulates them.

Slow, and the one way here to see an instruction whose last bits are each maker's: `rcpps` and
`rsqrtps` have the emulator's own. It also writes down what it translates, and none of them is to be
among that.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from experiments import EXPERIMENTS, QUICK, check_equal, train

from train.numerics import variables

pytestmark = [pytest.mark.portable, pytest.mark.timeout(6000)]

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
# rcpps, rsqrtss, vrsqrt14ps, … as the emulator's disassembler writes them.
_EACH_MAKER_S = re.compile(rb"\s(v?r(?:cp|sqrt)(?:14|28)?[ps][shd])\b")


@contextmanager
def translated(folder: Path, cpu: str) -> Iterator[tuple[Sequence[str], Counter[str]]]:
    """Words that start an emulator, and how many of which such instructions it has translated.

    Under `fma` those of fused products, which show that the disassembler knows vectors.
    """
    log = folder / "translated"
    os.mkfifo(log)
    counts: Counter[str] = Counter()

    def read() -> None:
        with log.open("rb") as file:
            for line in file:
                counts["fma"] += b"vfmadd" in line
                if found := _EACH_MAKER_S.search(line):
                    counts[found[1].decode()] += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield [EMULATOR, "-r", EMULATED, "-cpu", cpu, "-d", "in_asm", "-D", str(log)], counts
    reader.join(60)
    assert not reader.is_alive()


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
    with translated(tmp_path, cpu) as (emulator, counts):
        there = train(tmp_path / "there", names, emulator)
    print(f"{cpu}: translated {counts}")
    assert all(EMULATED in t.record["hardware"]["system"] for t in there.values())
    check_equal(here, there, cpu)
    assert {*counts} == {"fma"}


@pytest.mark.parametrize("cpu", [pytest.param("Haswell", id="quick")])
def test_a_root_is_seen(cpu, tmp_path) -> None:
    environ = {**os.environ, **variables.HELD, **variables.STARTED}
    words = "import torch; torch.rand(64) @ torch.rand(64, 64); torch.rand(64).sqrt()"
    with translated(tmp_path, cpu) as (emulator, counts):
        subprocess.run([*emulator, sys.executable, "-c", words], env=environ, check=True)
    assert counts["rsqrtps"] > 0
    assert counts["fma"] > 0
