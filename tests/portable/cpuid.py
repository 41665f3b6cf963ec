"""Other CPUs at full speed: the libraries are answered as a real one answered `cpuid`.

Which code a library takes depends on what that instruction says. cpus/ has what real CPUs said, as
https://github.com/anrieff/libcpuid collects it. What the silicon does is this machine's, and
instructions that it lacks end the process.

    python tests/portable/cpuid.py cpus/haswell.txt python -m train …
"""

import hashlib
import mmap
import os
import re
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPUS = HERE / "cpus"
_ASKS = re.compile(rb"\x0f\xa2|\x0f\x01\xd0")
_BEFORE, _AFTER = 128, 32
_WORD = "([0-9A-F]{8})"
_LINE = re.compile(rf"CPUID {_WORD}: {_WORD}-{_WORD}-{_WORD}-{_WORD}(?: \[SL ([0-9A-F]+)\])?")


def answers(text: str) -> str:
    """What a CPU's first core said, as cpuid.c takes it, from libcpuid's form."""
    rows: dict[tuple[str, str], str] = {}
    for found in _LINE.finditer(text):
        leaf, *registers, sub = found.groups()
        key = leaf, str(int(sub, 16)) if sub else "-1"
        if key in rows:
            break
        rows[key] = " ".join([*key, *registers])
    assert rows, "no lines such as CPUID 00000000: …"
    return "\n".join(rows.values()) + "\n"


def environ(cpu: Path, folder: Path) -> dict[str, str]:
    """Variables under which a process takes this machine for `cpu`, a file of libcpuid's form."""
    library, places = folder / "cpuid.so", folder / "places"
    if not library.exists():
        words = ["-shared", "-fPIC", "-O2", "-o", str(library), str(HERE / "cpuid.c")]
        subprocess.run([os.environ.get("CC", "cc"), *words], check=True)
        places.write_text("".join(f"{name} {at:x} {length}\n" for name, at, length in _places()))
    said = answers(cpu.read_text())
    file = folder / hashlib.sha256(said.encode()).hexdigest()[:16]
    file.write_text(said)
    return {"LD_AUDIT": str(library), "CPUID_PLACES": str(places), "CPUID_ANSWERS": str(file)}


def _places() -> Iterator[tuple[str, int, int]]:
    """Library, address and length of each instruction that asks, in torch's and NumPy's."""
    site = Path(sysconfig.get_paths()["platlib"])
    files = {
        f.resolve() for p in ("torch/lib", "numpy", "numpy.libs") for f in (site / p).rglob("*.so*")
    }
    for file in sorted(files):
        # CUDA's own are not loaded, or ask nothing that counts.
        if "cuda" not in file.name and "nvshmem" not in file.name:
            yield from ((file.name, *place) for place in _asking(file))


def _asking(file: Path) -> Iterator[tuple[int, int]]:
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        found = []
        for offset, address, size in _code(content):
            for match in _ASKS.finditer(content, offset, offset + size):
                place = match.start()
                before = content[max(offset, place - _BEFORE) : place]
                after = content[place : place + _AFTER]
                window = before.rjust(_BEFORE, b"\x90") + after.ljust(_AFTER + 16, b"\x90")
                found.append((place - offset + address, len(match[0]), window))
    if not found:
        return
    # The bytes of these instructions may be a part of others: a disassembler tells.
    with tempfile.NamedTemporaryFile() as raw:
        raw.write(b"".join(window for _, _, window in found))
        raw.flush()
        words = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn"]
        listing = subprocess.run(
            [*words, raw.name], check=True, capture_output=True, text=True
        ).stdout
    real = {
        int(m[1], 16)
        for m in re.finditer(r"^\s*([0-9a-f]+):\t(?:cpuid|xgetbv)", listing, re.MULTILINE)
    }
    step = _BEFORE + _AFTER + 16
    for number, (address, length, _) in enumerate(found):
        if number * step + _BEFORE in real:
            yield address, length


def _code(content: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """File offset, address and size of what can be executed of an ELF file."""
    if content[:4] != b"\x7fELF":
        return
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for n in range(count):
        kind, flags, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", content, table + n * size
        )
        if kind == 1 and flags & 1:
            yield offset, address, length


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        own = environ(Path(sys.argv[1]), Path(name))
        sys.exit(subprocess.run(sys.argv[2:], env={**os.environ, **own}, check=False).returncode)
