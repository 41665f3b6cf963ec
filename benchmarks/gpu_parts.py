"""The parts of the GPU proof that need torch, each in a process of its own; see gpu.py.

    python benchmarks/gpu_parts.py families [--dry]

Prints rows as JSON, a line each.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import accelerate
import torch
from accelerate.state import AcceleratorState
from step import HandWritten, Ours, compared, ratios
from torch.nn import functional

from host.limits import cpus
from train.config import Config, Model
from train.data import ImageData, Split
from train.data.decode import Reading
from train.data.pictures import Arrays
from train.lanes import runtime as runtimes
from train.lanes import seeds
from train.lanes.runtime import Runtime
from train.learn import models
from train.process.health import Health

# Ours, one of each family of torchvision's, small where there is a choice, a few of timm's, and the
# side of their images.
FAMILIES = {
    "convnet": 32, "smallnet": 28, "resnet9": 32, "dropnet": 32,
    "alexnet": 128, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "googlenet": 96, "inception_v3": 128, "maxvit_t": 224,
    "mnasnet0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "regnet_y_400mf": 64,
    "resnet18": 64, "resnet50": 64, "resnext50_32x4d": 64, "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11_bn": 64, "vit_b_32": 224,
    "wide_resnet50_2": 64, "timm:test_byobnet": 64, "timm:test_convnext": 64,
    "timm:test_efficientnet": 64, "timm:test_resnet": 64, "timm:test_vit": 64,
}  # fmt: skip
LEVELS = ("lockstep", "deterministic", "fast")


def say(question: str, found: str, command: str, good: bool | None = None) -> None:
    row = {"question": question, "found": found, "command": command, "good": good}
    print(json.dumps(row, ensure_ascii=False), flush=True)


def device_of(dry: bool) -> torch.device:
    return torch.device("cpu" if dry else "cuda")


def machine(dry: bool) -> None:
    """What it ran on."""
    name = "no GPU" if dry else torch.cuda.get_device_name()
    cuda = f"CUDA {torch.version.cuda}"
    if not dry:
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.1f} GiB"
        name = f"{name}, {memory}, compute capability {properties.major}.{properties.minor}"
    driver = Path("/sys/module/nvidia/version")
    version = driver.read_text().strip() if driver.exists() else "none"
    say("device", name, "nvidia-smi")
    said = f"torch {torch.__version__}, {cuda}, accelerate {accelerate.__version__}"
    say("software", f"{said}, Python {sys.version.split()[0]}", "pip list")
    say("driver", version, "cat /sys/module/nvidia/version")
    say("CPUs", str(cpus()), "nproc")


# --- models under deterministic algorithms


def families(dry: bool) -> None:
    """One training step of each, twice: whether it may run, and whether the bits agree."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    if not dry:
        torch.cuda.init()  # or the first images would be drawn before there is a seed
    for name, side in FAMILIES.items():
        try:
            one, other = (gradients(name, side, device_of(dry)) for _ in range(2))
        except RuntimeError as error:
            said = " ".join(str(error).split())[:160]
            say(name, f"refused: {said}", "python -m train fit --model.name " + name, False)
            continue
        same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        found = "the same gradients twice" if same else "OTHER GRADIENTS"
        say(name, found, f"python -m train fit --model.name {name} --data.size {side}", same)


def gradients(name: str, side: int, device: torch.device) -> list[torch.Tensor]:
    seeds.seed_start(0)
    model = models.build(Model(name=name), 10, (3, side, side)).to(device).train()
    images = torch.rand(4, 3, side, side, device=device)
    labels = torch.arange(4, device=device)
    functional.cross_entropy(model(images), labels).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


# --- steps


def images(count: int, side: int, classes: int, dry: bool) -> ImageData:
    """Noise in the device's memory, as the loop by hand has it: what is measured is the step."""
    shape = (3, side, side)
    seeds.seed_start(1)
    pixels = torch.randint(256, (count, *shape), dtype=torch.uint8)
    labels = torch.arange(count) % classes
    reading = Reading(max_pixels=1, background=0, white=None)  # there is nothing to read
    split = Split(Arrays(pixels), labels, shape, scale=None, reading=reading, resident=pixels)
    split = split.on(device_of(dry))
    names = [str(n) for n in range(classes)]
    return ImageData(split, split, names, [0.5] * 3, [0.25] * 3, "", {}, {}, [])


@contextmanager
def started(config: Config, precision: str, dry: bool) -> Iterator[Runtime]:
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    if dry:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    with runtimes.start(config) as runtime:
        yield runtime


def experiment(level: str, lanes: int, batch: int, model: dict[str, Any]) -> Config:
    return Config(
        reproducibility=level, lanes=lanes, batch_size=batch, epochs=1e9, model=model,
        augment={"pad": 4, "flip": False}, optim={"lr": 1e-4, "schedule": "constant"},
    )  # fmt: skip


def steps(dry: bool) -> None:
    """Each level against a hand-written loop with the same micro-batches, in turns."""
    plans = [
        ("ResNet-18, 32², batch 512", {"name": "resnet18", "stem": "small"}, 32, 512, "no"),
        ("ResNet-18, 32², batch 512, BF16", {"name": "resnet18", "stem": "small"}, 32, 512, "bf16"),
        ("ResNet-50, 224², batch 128, BF16", {"name": "resnet50", "channels_last": True}, 224, 128,
         "bf16"),
    ]  # fmt: skip
    if dry:
        plans = [("convnet, 8², batch 64", {"name": "convnet"}, 8, 64, "no")]
    for title, model, side, batch, precision in plans:
        data = images(4 * batch, side, 10, dry)
        for lanes in (2,) if dry else (1, 4, 8):
            row = measured(model, data, lanes, batch, precision=precision, dry=dry)
            say(f"{title}, {lanes} lanes", row, "python benchmarks/gpu_parts.py steps", None)


def measured(
    model: dict[str, Any], data: ImageData, lanes: int, batch: int, *, precision: str, dry: bool
) -> str:
    """Milliseconds a step by hand, and each level as a ratio to it."""
    with tempfile.TemporaryDirectory() as folder:
        said = []
        for level in LEVELS:  # what is pinned belongs to the process: the baseline is pinned alike
            config = experiment(level, lanes, batch, model)
            with started(config, precision, dry) as runtime:
                ours = Ours(config, runtime, data, Path(folder))
                turns = {"ours": ours, "hand": HandWritten(config, runtime, data)}
                seconds, rounds = (0.1, 3) if dry else (0.4, 6)
                times = compared(turns, runtime.device, rounds, seconds)
                ours.close()
            hand = statistics.median(times["hand"])
            _, middle, _ = ratios(times["ours"], times["hand"])
            speed = batch / statistics.median(times["ours"])
            said.append(f"{level} × {middle:.2f} of {1e3 * hand:.2f} ms ({speed:,.0f}/s)")
    return "; ".join(said)


def settings(dry: bool) -> None:
    """What changes speed, against the plain step, in lockstep at 1 lane; each changes the bits."""
    data, batch = images(1024, 32, 10, dry), 512
    base = {"name": "resnet18", "stem": "small"}
    for title, more in (
        ("plain", {}), ("channels_last", {"channels_last": True}),
        ("channels_last, compile", {"channels_last": True, "compile": True}),
    ):  # fmt: skip
        config = experiment("lockstep", 1, batch, {**base, **more})
        with started(config, "bf16", dry) as runtime, tempfile.TemporaryDirectory() as folder:
            ours = Ours(config, runtime, data, Path(folder))
            times = compared({"ours": ours}, runtime.device, 6, 0.5)["ours"]
            ours.close()
        speed = batch / statistics.median(times)
        say(f"ResNet-18, BF16, {title}", f"{speed:,.0f} samples/s", "…gpu_parts.py settings")
    model = models.build(Model(**base), 10, (3, 32, 32)).cuda()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for kind in ("foreach", "fused"):
        options: dict[str, Any] = {kind: True}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
        say(f"SGD, {kind}", f"{1e3 * timed(optimizer):.3f} ms a step", "…gpu_parts.py settings")

    for title, more, own in (
        ("plain", {}, {}),
        ("activations computed again", {"activation_checkpointing": True}, {}),
        ("optimizer offloaded", {}, {"offload": True}),
    ):  # fmt: skip
        say(f"ViT-B/16, AdamW, {title}", weighed(more, own, dry), "…gpu_parts.py settings")


def weighed(more: dict[str, Any], own: dict[str, Any], dry: bool) -> str:
    """What a step takes of time and, at the most, of memory."""
    usual = experiment("lockstep", 4, 32, {"name": "vit_b_16", **more})
    moved = usual.optim.model_copy(update={"name": "adamw", **own})
    config = usual.model_copy(update={"optim": moved})
    data = images(128, 224, 10, dry)
    with started(config, "no", dry) as runtime, tempfile.TemporaryDirectory() as folder:
        ours = Ours(config, runtime, data, Path(folder))
        torch.cuda.reset_peak_memory_stats()
        times = compared({"ours": ours}, runtime.device, 6, 0.5)["ours"]
        held = torch.cuda.max_memory_allocated() / 2**30
        ours.close()
    return f"{1e3 * statistics.median(times):.1f} ms a step, {held:.2f} GiB"


def timed(optimizer: torch.optim.Optimizer) -> float:
    """Seconds of an optimizer's step, by the device's clock."""
    optimizer.step()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(50):
        optimizer.step()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 50e3


# --- waits, and looking at the machine


def syncs(dry: bool) -> None:
    """Ten steps between two log lines, under torch's own watch for waits and under the profiler."""
    config = experiment("lockstep", 4, 256, {"name": "resnet18", "stem": "small"})
    data = images(1024, 32, 10, dry)
    for precision in ("no", "bf16", "fp16"):
        with started(config, precision, dry) as runtime, tempfile.TemporaryDirectory() as folder:
            ours = Ours(config, runtime, data, Path(folder))
            ours.every = 10**9
            for _ in range(5):
                ours.step()
            torch.cuda.synchronize()
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                for _ in range(10):
                    ours.step()
                torch.cuda.set_sync_debug_mode("default")
            waits = [str(w.message) for w in found if "called a sync" in str(w.message)]
            with torch.profiler.profile() as profile:
                for _ in range(10):
                    ours.step()
            names = [e.name for e in profile.events() if "Synchronize" in e.name]
            ours.close()
        # The profiler itself waits once, at its end.
        count = len([name for name in names if "Device" not in name])
        where = f": {waits[0][:120]}" if waits else ""
        found_words = f"{len(waits)} waits that torch sees{where}, {count} in the profiler"
        # FP16's scaler asks at each step whether the gradients are finite.
        good = not waits if precision != "fp16" else None
        say(f"{precision}: 10 steps", found_words, "…gpu_parts.py syncs", good)


def health(dry: bool) -> None:
    """What a second's sample takes."""
    with Health(device_of(dry)) as watch:
        begun = time.perf_counter()
        for _ in range(50):
            watch._sample()
        each = (time.perf_counter() - begun) / 50
        figures = watch.take(1.0, 1, {})
    say("a sample, once a second", f"{1e3 * each:.2f} ms", "…gpu_parts.py health")
    known = ", ".join(sorted(figures))
    good = dry or {"gpu_utilisation", "gpu_power", "gpu_temperature"} <= figures.keys()
    say("figures", known, "…gpu_parts.py health", good)


PARTS = {part.__name__: part for part in (machine, families, steps, settings, syncs, health)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    PARTS[options.part](options.dry)


if __name__ == "__main__":
    main()
