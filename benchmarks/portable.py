"""Are portable numerics portable? Searches for what comes out otherwise on another CPU.

    python benchmarks/portable.py models --count 300 [--cpu haswell | --emulated Haswell]
    python benchmarks/portable.py operations [--cpu … | --emulated … [--out FILE]]

`models` trains random models of random shapes for three updates. `operations` calls what torch's
own tests call of each operator, forward and backward, and needs `pip install expecttest`. Both are
computed twice, two processes side by side: as this CPU, and as another. `--cpu` names a file of
tests/portable/cpus, with what a real one answers to libraries that ask; it needs a C compiler.
`--emulated` names one of qemu-user's (Debian's and Ubuntu's package): fifty times slower, and the
one that shows an instruction whose last bits are each maker's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/portable")]
import cpuid

from train.numerics import variables

PARTS = ROOT / "benchmarks/portable_parts.py"
OPERATORS = 2300
"""No fewer than torch's own list, in three types each, and ours have."""
HEAD = '''"""Written by `benchmarks/portable.py operations --out train/numerics/equal.py`."""

EQUAL = """
{1}
"""
"""Names of {0} operations that gave the same bits on another maker's emulated CPU."""
'''


@dataclass(frozen=True)
class Place:
    """A CPU: words before the command and variables that make it that one."""

    name: str
    before: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def computed(what: str, first: int, last: int, place: Place, folder: Path) -> dict[str, Any]:
    """Digests of each by name, computed on that CPU; without those that crash it."""
    found: dict[str, Any] = {}
    environ = {**os.environ, **variables.HELD, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    environ |= {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore", **place.environ}
    while first < last:
        file = folder / f"{what}-{place.name}-{first}-{last}.jsonl"
        words = [sys.executable, str(PARTS), what, str(file), str(first), str(last)]
        words[:0] = place.before
        done = subprocess.run(words, env=environ, capture_output=True, check=False)
        rows = [json.loads(row) for row in file.read_text().splitlines()] if file.exists() else []
        found |= {row["name"]: row["found"] for row in rows}
        if done.returncode == 0:
            break
        if not rows and b"Segmentation" not in done.stderr and done.returncode > 0:
            sys.exit(done.stderr.decode()[-2000:])
        last_one = rows[-1]["name"] if rows else "the start"
        print(f"{what}: what follows {last_one} crashes on {place.name}", flush=True)
        first += len(rows) + 1
    return found


def both(what: str, count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Two mappings of digests: computed here, and there."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder, found = Path(name), []
        if options.emulated:
            there = Place(options.emulated, ("qemu-x86_64", "-cpu", options.emulated))
        else:
            file = cpuid.CPUS / f"{options.cpu}.txt"
            there = Place(options.cpu, environ=cpuid.environ(file, folder))
        for place in (Place("this CPU"), there):
            size = -(-count // 8)
            jobs = [
                pool.submit(computed, what, n, min(n + size, count), place, folder)
                for n in range(0, count, size)
            ]
            found.append({k: v for job in jobs for k, v in job.result().items()})
        return found


def models(options: argparse.Namespace) -> int:
    """Print which models come out otherwise, and where first; returns how many."""
    here, there = both("models", options.count, options)
    unlike = [name for name in here if name in there and here[name] != there[name]]
    for name in unlike:
        first = next(k for k in here[name] if here[name][k] != there[name].get(k))
        print(f"model {name}: {first}")
    refused = sum("refused" in found for found in there.values())
    tensors = sum(len(found) for found in there.values()) - refused
    print(
        f"{len(there)} models, {refused} refused; of the others {tensors:,} digests,"
        f" {len(unlike)} models differ on {options.emulated or options.cpu}"
    )
    return len(unlike)


def operations(options: argparse.Namespace) -> int:
    """Print which operations come out otherwise, and how many were compared."""
    here, there = both("operations", OPERATORS, options)
    compared: Counter[str] = Counter()
    unlike: Counter[str] = Counter()
    example: dict[str, str] = {}
    for name in here.keys() & there.keys():
        for key in here[name].keys() & there[name].keys():
            operation = key.split()[0]
            if key.startswith("fails ") or "random" in (here[name][key], there[name][key]):
                continue
            compared[operation] += 1
            if here[name][key] != there[name][key]:
                unlike[operation] += 1
                example[operation] = name
    for operation, times in sorted(unlike.items()):
        print(
            f"{operation}: {times} of {compared[operation]} calls, such as for {example[operation]}"
        )
    print(
        f"{len(compared)} operations, {sum(compared.values()):,} calls in {len(there)} tests,"
        f" {len(unlike)} operations differ on {options.emulated or options.cpu}"
    )
    if options.out:
        names = {o.removeprefix("aten.").rsplit(".", 1)[0] for o in compared}
        names -= {o.removeprefix("aten.").rsplit(".", 1)[0] for o in unlike} - {"pow"}
        words = textwrap.fill(" ".join(sorted(names)), 100, break_on_hyphens=False)
        options.out.write_text(HEAD.format(len(names), words))
    return len(unlike)


def main() -> int:
    """Search, print, and return 1 where something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("models", "operations"))
    parser.add_argument("--cpu", default="haswell")
    parser.add_argument("--emulated")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out and not options.emulated:
        # This machine's silicon agrees with itself in what each maker rounds as it likes.
        parser.error("--out needs --emulated")
    return int({"models": models, "operations": operations}[options.what](options) > 0)


if __name__ == "__main__":
    sys.exit(main())
