"""Images a CPU second that reach the model, beside torchvision's pipeline and a careful gather.

    python benchmarks/loader.py [--rounds 7] [--what memory,jpeg]

*memory*: 50,000 images of 3 × 32 × 32 in memory, batches of 512: padded by 4 and cropped, mirrored
every second time, normalised. *pil* is torchvision's pipeline of transforms on one PIL image after
another, in a DataLoader; *gather* is what a careful person writes by hand: padded images in memory,
a view of all their windows, one index into it, `torch.where` for the mirrored ones. *ours* is what
a step of training does, order and keys included. All have one thread and take turns, so that
whatever else the machine does meets them alike. Prints medians of CPU time and ratios to *pil*.

*jpeg*: 256 photographs of 500 × 375 (windows of the two in scikit-learn, quality 90), from each a
random window scaled to 224 (RandomResizedCrop), mirrored every second time, batches of 64. *pil* as
above; *streaming* decodes each file each time, *prepared* reads what was scaled to 256 once
(`data.prepare: 256`). FP32 is normalised here, uint8 is what a GPU would be handed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from train.config import Augment, Config, Data
from train.data import Augmenter, Split, lane_blocks, load
from train.data.decode import Reading
from train.data.pictures import Arrays

COUNT, BATCH, PAD = 50_000, 512, 4
MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]


class Pictures(Dataset):
    """As torchvision's CIFAR10 is: an array, a picture of it at a time."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images
        self.vary = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=PAD),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.vary(Image.fromarray(self.images[number])), 0


def pil(images: torch.Tensor) -> Iterator[torch.Tensor]:
    loader = DataLoader(Pictures(images.permute(0, 2, 3, 1).numpy()), BATCH, shuffle=True)
    for batch, _ in loader:
        yield batch


def gather(images: torch.Tensor, *, floats: bool) -> Iterator[torch.Tensor]:
    padded = functional.pad(images, (PAD,) * 4)
    windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)
    mean = 255 * torch.tensor(MEAN)[:, None, None]
    std = 255 * torch.tensor(STD)[:, None, None]
    while True:
        for numbers in torch.randperm(COUNT).split(BATCH):
            top, left = torch.randint(2 * PAD + 1, (2, len(numbers)))
            batch = windows[numbers, :, top, left]
            mirror = torch.rand(len(numbers)) < 0.5
            batch = torch.where(mirror[:, None, None, None], batch.flip(-1), batch)
            yield (batch.float() - mean) / std if floats else batch


def ours(images: torch.Tensor, *, floats: bool) -> Iterator[torch.Tensor]:
    config = Config(batch_size=BATCH, lanes=1, augment={"pad": PAD, "flip": True})
    device = torch.device("cpu")
    augmenter = Augmenter(Augment(pad=PAD, flip=True), MEAN, STD, device)
    labels = torch.zeros(COUNT, dtype=torch.int64)
    shape = tuple(images.shape[1:])
    split = Split(Arrays(images), labels, shape, False, Reading(1, 0, None), resident=images)
    blocks = lane_blocks(split, config, range(1), device, first_step=0, total=1000 * COUNT)
    for batch, _ in blocks:
        yield (augmenter if floats else augmenter.move)(batch.images, batch.keys)


def photographs(root: Path) -> None:
    """Windows of real photographs, in two classes."""
    from sklearn.datasets import load_sample_images

    random, photos = np.random.default_rng(0), load_sample_images().images
    for number in range(256):
        photo = photos[number % 2]
        top, left = (
            random.integers(0, side - part + 1)
            for side, part in zip(photo.shape, (375, 500), strict=False)
        )
        path = (
            root / ("train" if number < 240 else "validation") / "ab"[number % 2] / f"{number}.jpg"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo[top : top + 375, left : left + 500]).save(path, quality=90)


def pil_photos(root: Path) -> Iterator[torch.Tensor]:
    vary = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    loader = DataLoader(ImageFolder(root / "train", vary), 64, shuffle=True)
    while True:
        yield from (images for images, _ in loader)


def our_photos(root: Path, *, floats: bool, prepare: int | None) -> Iterator[torch.Tensor]:
    data = Data(
        source="folder", root=str(root), size=224, prepare=prepare, cache_dir=str(root / "cache")
    )
    augment = Augment(crop=(0.08, 1.0), flip=True)
    config = Config(batch_size=64, lanes=1, data=data, augment=augment)
    images, device = load(data, augment), torch.device("cpu")
    augmenter = Augmenter(augment, images.mean, images.std, device)
    blocks = lane_blocks(images.train, config, range(1), device, first_step=0, total=10**6)
    for batch, _ in blocks:
        yield (augmenter if floats else augmenter.move)(batch.images, batch.keys)


def in_memory() -> dict[str, tuple[Iterator[torch.Tensor], int]]:
    """Contenders, and how many batches each makes in a turn."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return {
        "pil, FP32": (pil(images), 8),
        "gather, FP32": (gather(images, floats=True), 60),
        "ours, FP32": (ours(images, floats=True), 60),
        "gather, uint8": (gather(images, floats=False), 60),
        "ours, uint8": (ours(images, floats=False), 60),
    }


def from_files(root: Path) -> dict[str, tuple[Iterator[torch.Tensor], int]]:
    """The same of photographs."""
    photographs(root)
    return {
        "pil, FP32": (pil_photos(root), 4),
        "streaming, FP32": (our_photos(root, floats=True, prepare=None), 4),
        "streaming, uint8": (our_photos(root, floats=False, prepare=None), 4),
        "prepared, FP32": (our_photos(root, floats=True, prepare=256), 12),
        "prepared, uint8": (our_photos(root, floats=False, prepare=256), 12),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--what", default="memory,jpeg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for what in options.what.split(","):
            print(what)
            _compare(in_memory() if what == "memory" else from_files(Path(folder)), options.rounds)


def _compare(makers: dict[str, tuple[Iterator[torch.Tensor], int]], rounds: int) -> None:
    costs: dict[str, list[float]] = {name: [] for name in makers}
    for turn in range(rounds + 1):
        for name, (batches, count) in makers.items():
            costs[name].append(_cost(lambda b=batches: next(b), count))
            if turn == 0:  # the first one builds and warms
                costs[name].clear()
    first = statistics.median(costs["pil, FP32"])
    for name, measured in costs.items():
        middle = statistics.median(measured)
        print(f"{name:<16} {1 / middle:>10,.0f} images a CPU second  {first / middle:6.1f} × pil")
    for kind in ("FP32", "uint8"):
        if f"gather, {kind}" in costs:
            pairs = zip(costs[f"gather, {kind}"], costs[f"ours, {kind}"], strict=True)
            print(f"ours, {kind}: {statistics.median(g / o for g, o in pairs):.2f} × gather")


def _cost(step: Callable[[], torch.Tensor], count: int) -> float:
    """CPU seconds of an image."""
    start = time.process_time()
    images = sum(len(step()) for _ in range(count))
    return (time.process_time() - start) / images


if __name__ == "__main__":
    main()
