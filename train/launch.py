"""From GPUS, CPUS, PRECISION and ACCELERATE to an `accelerate launch`, printed and supervised.

    GPUS=4 PRECISION=bf16 python -m train.launch fit --config configs/cifar10.yaml

Standing between the terminal and Accelerate's launcher has three reasons: bad input is found
before any process starts; signals reach the trainers (the launcher would leave a single one
orphaned, and kill the others); and the trainer's exit code comes back (the launcher turns each
into 1).
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from train import cli, experiment, limits, outcome, parent
from train.errors import HostError, Stopped, TrainError, UsageError, nearest

_CONFIGS = Path("configs/accelerate")
_EARLY = "a signal came before training began; there was nothing to save"


def command(
    environ: Mapping[str, str],
    words: list[str],
    visible: int,
    lanes: int | None = None,
    module: str = "train",
) -> list[str]:
    """The launch command for the variables in `environ`, on a machine with `visible` GPUs.

    Args:
        lanes: what the processes have to share; None where any number of them will do.

    Raises:
        UsageError: a variable has no sense.
        HostError: more GPUs are asked for than there are, or a precision the device lacks.
    """
    gpus, cpus = environ.get("GPUS", ""), environ.get("CPUS", "")
    precision = environ.get("PRECISION", "") or "no"
    if precision not in ("no", "fp16", "bf16"):
        raise UsageError(f"PRECISION={precision} is none of no, fp16, bf16", "choose one of them")
    if gpus and cpus:
        raise UsageError("GPUS and CPUS are both set", "set one of them")
    if cpus:
        count = _count("CPUS", cpus)
    elif gpus:
        count = visible if gpus == "all" else _count("GPUS", gpus)
    else:  # as many as can share the lanes
        count = max((n for n in range(1, visible + 1) if (lanes or n) % n == 0), default=0)
    if not cpus and count > visible:
        raise HostError(
            f"GPUS={gpus}, and {visible or 'no'} GPU{'s' * (visible != 1)} can be seen here",
            f"use GPUS={visible}, or check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
            if visible
            else "use CPUS=1, or check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        )
    named = environ.get("ACCELERATE", "")
    extra: list[str] = []
    if named:
        name = named
        if gpus or cpus:
            extra = ["--num_processes", str(max(1, count))]
        extra += ["--mixed_precision", precision] if precision != "no" else []
    elif cpus or count == 0:
        if precision == "fp16":
            raise HostError("FP16 needs a GPU", "use PRECISION=bf16 or PRECISION=no on the CPU")
        name = "cpu" if count <= 1 else "multi_cpu"
        extra = [] if count <= 1 else ["--num_processes", str(count)]
        extra += ["--mixed_precision", precision] if precision != "no" else []
    else:
        name = precision if precision != "no" else "gpu" if count == 1 else "multi_gpu"
        extra = [] if name == "gpu" else ["--num_processes", str(count)]
    path = _CONFIGS / f"{name}.yaml"
    if not path.exists():
        known = [p.stem for p in _CONFIGS.glob("*.yaml")]
        raise UsageError(
            f"there is no hardware config {path}{nearest(name, known)}", f"use one of {known}"
        )
    return [
        _launcher(), "launch", "--config_file", str(path), *extra, "--quiet", "-m", module, *words,
    ]  # fmt: skip


def _launcher() -> str:
    path = Path(sys.executable).parent / "accelerate"
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _count(name: str, text: str) -> int:
    if not text.isdigit() or (name == "CPUS" and int(text) == 0):
        wanted = "a number from 1" if name == "CPUS" else "a number or all"
        raise UsageError(f"{name}={text} is no number of processes", f"give {wanted}")
    return int(text)


def visible_gpus() -> int:
    """GPUs that the driver lists and CUDA_VISIBLE_DEVICES leaves."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    there = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return there
    # CUDA stops at the first number that is none of its devices; -1 hides all that follow.
    names = [name.strip() for name in chosen.split(",")]
    end = next((i for i, n in enumerate(names) if not n or n == "-1"), len(names))
    return min(there, end)


def supervise(words: list[str]) -> int:
    """Run the launcher, pass signals on to the trainers, and return the trainer's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "outcome.json"
        # The trainer counts its threads itself: the 1 only spares a warning of Accelerate's.
        environ = {
            "OMP_NUM_THREADS": "1", **os.environ,
            outcome.VARIABLE: str(note), parent.SUPERVISOR: str(os.getpid()),
        }  # fmt: skip
        child: subprocess.Popen[bytes] | None = None
        asked: list[int] = []

        def forward(number: int, _frame: FrameType | None) -> None:
            # A closed terminal (SIGHUP) is a request to stop like others.
            number = signal.SIGTERM if number == signal.SIGHUP else number
            asked.append(number)
            if child is not None:
                _send(child.pid, number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, forward)
        # A session of its own: Ctrl-C then comes here alone and not to each process at once.
        child = subprocess.Popen(
            words, env=environ, start_new_session=True,
            preexec_fn=partial(parent.signal_on_death, signal.SIGTERM),  # noqa: PLW1509  (a single system call)
        )  # fmt: skip
        if asked:
            child.terminate()
        killed = limits.oom_kills() or 0
        code = _wait(child, asked, note)
        said = outcome.read(note)
    # Nobody is left to say it: those who are only lost the one that the kernel killed.
    if (
        code != 0
        and said.get("bystander", "code" not in said)
        and (limits.oom_kills() or 0) > killed
    ):
        error = _no_memory()
        print(f"{error.label}: {error}", file=sys.stderr)
        return error.code
    if "code" in said:
        if "--num_processes" in words:  # the launcher has had its say since: repeat what matters
            print(said["error"], file=sys.stderr)
        return int(said["code"])
    if asked and not said and code != 0:
        early = Stopped(_EARLY, "start it again with the same command")
        print(f"{early.label}: {early}", file=sys.stderr)
        return early.code
    return code if code >= 0 else 128 - code  # as shells count deaths by signal


def _no_memory() -> HostError:
    limit = limits.memory()
    allowed = f" (the cgroup's limit is {limit / 2**30:.1f} GiB)" if limit else ""
    return HostError(
        f"the kernel killed a trainer, or its loader, for lack of memory{allowed}",
        "raise --lanes (other bits) or the limit, lower --batch_size, --data.workers or"
        " --data.cache; `make tune` finds what fits; add --resume",
    )


def _send(launcher: int, number: int) -> None:
    """Send a signal to the trainers, or to the launcher while it has none."""
    with suppress(psutil.NoSuchProcess):
        # The launcher's own children are the trainers, for one process as for many.
        trainers = psutil.Process(launcher).children()
        for process in trainers:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if not trainers:
            os.kill(launcher, signal.SIGTERM)


def _wait(child: subprocess.Popen[bytes], asked: list[int], note: Path) -> int:
    """Wait for the launcher; where it was asked to stop before training began, not for long.

    A trainer that dies of the signal while it starts leaves the others waiting for it, and there
    is nothing yet that they could save.
    """
    patience = 10
    trainers: list[psutil.Process] = []
    while True:
        with suppress(psutil.NoSuchProcess):
            trainers = psutil.Process(child.pid).children() or trainers
        try:
            code = child.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            patience -= bool(asked) and not note.exists()
        else:
            # A signal to every process ends the launcher at once, while trainers still save.
            psutil.wait_procs(trainers, timeout=30)
            return code
        if patience == 0:
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _early(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(_EARLY, "start it again with the same command")


def main() -> int:
    """Launch the verb in argv."""
    words = sys.argv[1:]
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _early)
        options, knobs = cli.parse(words)
        fits = options.verb == "fit"
        lanes = experiment.load(options.config, knobs).lanes if fits else None
        line = command(os.environ, words, visible_gpus(), lanes)
    except TrainError as error:
        print(f"{error.label}: {error}", file=sys.stderr)
        return error.code
    print(shlex.join(line), flush=True)
    return supervise(line)


if __name__ == "__main__":
    sys.exit(main())
