"""The GPU proof: what is promised, tried on this machine's GPU, as a table in Markdown.

    python benchmarks/gpu.py [--out docs/GPU.md]     on a machine with a GPU; about ten minutes
    python benchmarks/gpu.py --only bits,families    some of its parts
    python benchmarks/gpu.py --dry                   all that needs no GPU, small, on the CPU

Any torch with CUDA will do, the lock's or another: the table says which. Each line is one
question, what was found, and the command that asks it. A part that fails is a line as well. Every
part runs in processes of its own, and stands in benchmarks/gpu_parts.py where it needs torch.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ROOT / "benchmarks" / "gpu_parts.py"
DIGITS = ["--config", "configs/digits.yaml", "--numerics", "native"]
DIGITS += ["--eval.every", "30", "--checkpoint.every", "10"]
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
STEPS = {True: 60, False: 300}  # by whether it is a dry run; a GPU must not be done before the kill
LIMIT = 420.0
"""Seconds of one part."""
# Precision and tf32 by the name of a row.
PRECISIONS = {"FP32": ("no", False), "TF32": ("no", True), "BF16": ("bf16", False)}
PRECISIONS["FP16"] = ("fp16", False)


@dataclass(frozen=True)
class Row:
    """A line of the table; `good` is None where there is nothing to be right or wrong."""

    question: str
    found: str
    command: str
    good: bool | None = None


@dataclass(frozen=True)
class Try:
    """A short training: on one process or several, and if `then`, killed in the middle and gone on
    with in that way."""

    knobs: tuple[str, ...] = ()
    processes: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    then: "Try | None" = None


def environ(dry: bool, **more: str) -> dict[str, str]:
    """What a run finds around it: no launcher, and on a dry run no GPU."""
    known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths()), **more}
    known.pop("PYTEST_CURRENT_TEST", None)
    if dry:
        known["CUDA_VISIBLE_DEVICES"] = "-1"
    return known


def paths() -> list[str]:
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]


def started(words: list[str], known: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, cwd=ROOT, env=known, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finished(child: subprocess.Popen[str]) -> str:
    """What a process said; raises with its error where it failed or took too long."""
    try:
        said, _ = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise RuntimeError(f"no end within {LIMIT:g} s") from None
    if child.returncode:
        raise RuntimeError(f"code {child.returncode}: {last_line(said)}")
    return said


def last_line(said: str) -> str:
    """Of the trainer's own words the last; a launcher adds a page of its own."""
    lines = [line for line in said.splitlines() if line.strip()] or ["nothing was said"]
    return next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])[:300]


# --- the bits


def fit(run: Path, *knobs: str, processes: int = 1) -> list[str]:
    """The command of a short training."""
    words = [sys.executable, "-m"]
    if processes > 1:
        words += ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        words += ["-m", "--"]
    return [*words, "train", "fit", *DIGITS, *knobs, "--run", str(run), "--resume"]


def variables(precision: str, dry: bool, one: Try) -> dict[str, str]:
    """As Accelerate's launcher would say it. Processes share a GPU where there are too few."""
    known = environ(dry, ACCELERATE_MIXED_PRECISION=precision, **one.variables)
    if dry:
        known["ACCELERATE_USE_CPU"] = "true"
    elif one.processes > gpus():
        known["LOCKSTEP_SHARE_GPU"] = "1"
    return known


def sha(run: Path) -> str:
    return str(json.loads((run / "result.json").read_text())["weights_sha256"])


def trained(folder: Path, name: str, one: Try, dry: bool) -> str:
    """The hash of a run, in the precision that its name begins with."""
    precision, tf32 = PRECISIONS[name.split(maxsplit=1)[0]]
    run = folder / name.replace(" ", "-")
    length = ["--max_steps", str(STEPS[dry]), "--tf32", str(tf32).lower()]

    def begun(way: Try) -> subprocess.Popen[str]:
        words = fit(run, *length, *way.knobs, processes=way.processes)
        return started(words, variables(precision, dry, way))

    child = begun(one)
    if one.then is not None:
        deadline = time.monotonic() + LIMIT
        while not (run / "checkpoints" / "step-00000020").exists():
            if child.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if child.poll() is not None:
            raise RuntimeError(f"it ended before the kill: {last_line(child.communicate()[0])}")
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        child = begun(one.then)
    finished(child)
    return sha(run)


def bits(dry: bool, names: list[str] | None = None) -> Iterator[Row]:
    """Each precision: twice, after a kill, with loaders, and on two processes."""
    for name in names or [n for n in PRECISIONS if not dry or n in ("FP32", "BF16")]:
        tries = {
            f"{name} again": Try(),
            f"{name} killed": Try(then=Try()),
            f"{name} 4 workers": Try(("--data.workers", "4", "--data.cache", "0")),
            f"{name} 2 processes": Try(processes=2),
        }
        if not dry:
            tries[f"{name} images on the GPU"] = Try(("--data.cache_on", "gpu"))
            away = Try(("--optim.offload", "true"))
            tries[f"{name} offload"] = away
            tries[f"{name} offload killed"] = Try(away.knobs, then=away)
        yield from compared(name, tries, dry)


def large(dry: bool, names: list[str] | None = None) -> Iterator[Row]:
    """Models over several processes: sharded, in stages, in copies of stages, and after kills."""
    whole, sharded = Try(), Try(processes=2, variables=FSDP)
    copies = Try(processes=4, variables={"STAGES": "2"})
    if not shards():
        yield Row("sharded weights", "this torch is too old for them", "make doctor")
    for name in names or ["FP32", "BF16"]:
        tries = {
            f"{name} in 2 stages": Try(processes=2, variables={"STAGES": "2"}),
            f"{name} 2 copies in 2 stages": copies,
            f"{name} whole, killed, on in copies": Try(then=copies),
        }
        if shards():
            tries |= {
                f"{name} sharded on 2": sharded,
                f"{name} sharded, killed": Try(processes=2, variables=FSDP, then=sharded),
                f"{name} sharded, killed, on whole": Try(processes=2, variables=FSDP, then=whole),
            }
        yield from compared(name, tries, dry)


def compared(name: str, tries: dict[str, Try], dry: bool) -> Iterator[Row]:
    """Each training beside one on one process, in a precision."""
    device = "CPU" if dry else "GPU"
    every = {f"{name} first": Try(), **tries}
    said: dict[str, str] = {}
    # Side by side: each leaves most of the machine idle.
    with (
        tempfile.TemporaryDirectory() as place,
        ThreadPoolExecutor(1 if dry else len(every)) as pool,
    ):
        jobs = {own: pool.submit(trained, Path(place), own, one, dry) for own, one in every.items()}
        for own, job in jobs.items():
            try:
                said[own] = job.result()
            except Exception as error:
                said[own] = f"failed: {error}"
    first = said.pop(f"{name} first")
    command = f"python -m train fit --max_steps {STEPS[dry]} " + " ".join(DIGITS)
    lost = first.startswith("failed")
    shown = first if lost else f"{first[:16]}…"
    yield Row(f"{name}, one process on the {device}", shown, command, not lost)
    for own, found in said.items():
        same = found == first and not lost
        other = "nothing to compare with" if lost else "OTHER BITS"
        shown = "the same bits" if same else found if "failed" in found else other
        yield Row(own, shown, command, same)


# --- what needs torch, in a process of its own


def part(name: str) -> Callable[[bool], Iterator[Row]]:
    """A part of gpu_parts.py: rows as JSON, a line each."""

    def run(dry: bool) -> Iterator[Row]:
        words = [sys.executable, str(PARTS), name, *(["--dry"] if dry else [])]
        for line in finished(started(words, environ(dry))).splitlines():
            if line.startswith('{"question"'):
                yield Row(**json.loads(line))

    return run


def doctor(dry: bool) -> Iterator[Row]:
    """The doctor's inside half: nothing fails on a sound machine."""
    words = [sys.executable, "-m", "doctor.inside", "--json"]
    child = started(words, environ(dry))
    said, _ = child.communicate(timeout=LIMIT)
    # Warnings may stand around it.
    rows, _ = json.JSONDecoder().raw_decode(said[said.index("[\n") :])
    for row in rows:
        if row["status"] != "skip":
            good = row["status"] != "fail"
            yield Row(f"doctor: {row['name']}", row["seen"], "python -m doctor.inside", good)


def tune(dry: bool) -> Iterator[Row]:
    """The tuner, short, on a real card."""
    name = f"gpu-proof-{os.getpid()}"
    words = [*DIGITS[:4], "--what", "batch", "--name", name]
    child = started([sys.executable, "-m", "train", "tune", *words], environ(dry))
    lines = finished(child).splitlines()
    said = next(line for line in lines if "largest micro-batch is" in line)
    yield Row("tune: the largest micro-batch", said, "python -m train tune --what batch", True)
    subprocess.run(["rm", "-rf", ROOT / "runs" / name], check=False)


SECTIONS: dict[str, tuple[str, Callable[[bool], Iterator[Row]]]] = {
    "machine": ("The machine", part("machine")),
    "bits": ("The same bits", bits),
    "large": ("Models over several processes", large),
    "families": ("Models under deterministic algorithms", part("families")),
    "steps": ("What a step costs", part("steps")),
    "settings": ("Memory format, compilation, fused optimizer", part("settings")),
    "syncs": ("Waits for the device between two log lines", part("syncs")),
    "health": ("Live health", part("health")),
    "doctor": ("The doctor's inside half", doctor),
    "tune": ("The tuner", tune),
}
# What a dry run cannot ask.
NEEDS_GPU = ("syncs", "settings", "tune")


def table(title: str, rows: Iterator[Row]) -> Iterator[str]:
    yield f"\n## {title}\n\n| | found | command |\n|---|---|---|"
    begun = time.monotonic()
    try:
        for row in rows:
            mark = "" if row.good is None else "" if row.good else "**✗** "
            found = row.found.replace("|", "\\|")
            yield f"| {row.question} | {mark}{found} | `{row.command}` |"
    except Exception as error:
        yield f"| **the part failed** | {error} | |"
    yield f"\n{time.monotonic() - begun:.0f} s."


@cache
def gpus() -> int:
    """GPUs that torch sees."""
    said = asked("import torch; print(torch.cuda.device_count())")
    return int(said) if said.isdigit() else 0


@cache
def shards() -> bool:
    """Whether this torch can train sharded weights as the trainer needs it."""
    of = "from torch.distributed.fsdp import FSDPModule as F"
    return asked(f"{of}; print(hasattr(F, 'set_reduce_scatter_unused_params'))") == "True"


def asked(question: str) -> str:
    """The last word that a Python process prints; torch is not imported into this one."""
    words = [sys.executable, "-c", question]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return said[-1] if said else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="what needs no GPU, on the CPU")
    parser.add_argument("--check", action="store_true", help="only whether there is a GPU")
    parser.add_argument("--only", help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        print(f"error: {unknown[0]} is no part → one of {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    if not options.dry and not gpus():
        print(
            "error: torch sees no GPU here → run it where there is one, or add --dry",
            file=sys.stderr,
        )
        return 6
    if options.check:
        return 0
    where = "A dry run on the CPU: it proves nothing about GPUs." if options.dry else "On a GPU."
    lines = [f"# The GPU proof\n\n{where} `python benchmarks/gpu.py` writes this table."]
    print(lines[0], flush=True)
    for name in wanted:
        title, rows = SECTIONS[name]
        if options.dry and name in NEEDS_GPU:
            continue
        for line in table(title, rows(options.dry)):
            lines.append(line)
            print(line, flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if any("**✗**" in line or "**the part failed**" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
