"""Random windows of pictures: their distribution, and that they follow from the key alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fault.harness import processes
from PIL import Image
from test_decode import scene

from host.errors import UsageError
from train.config import Augment, Config, Data
from train.data import Augmenter, lane_blocks, load, store, windows
from train.lanes import order

AREA = (0.08, 1.0)


def keys(count: int) -> torch.Tensor:
    return order.keys(order.key(3), torch.arange(count))


def test_windows_lie_in_the_picture_and_follow_from_the_key() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 600, (3000, 2))
    together = windows.draw(keys(3000), sizes, AREA)
    top, left, high, wide = together.T
    assert (together[:, 2:] > 0).all()
    assert (np.minimum(top, left) >= 0).all()
    assert (top + high <= sizes[:, 0]).all()
    assert (left + wide <= sizes[:, 1]).all()
    apart = [windows.draw(keys(3000)[n : n + 1], sizes[n : n + 1], AREA)[0] for n in range(300)]
    assert np.array_equal(together[:300], apart)


def test_areas_and_shapes_are_distributed_as_torchvision_s() -> None:
    from torchvision.transforms import RandomResizedCrop

    count, size = 6000, (375, 500)
    ours = windows.draw(keys(count), np.tile(size, (count, 1)), AREA)
    torch.manual_seed(0)
    picture = torch.empty(3, *size)
    theirs = np.array(
        [RandomResizedCrop.get_params(picture, AREA, (3 / 4, 4 / 3)) for _ in range(count)]
    )
    for what in (lambda w: w[:, 2] * w[:, 3], lambda w: w[:, 3] / w[:, 2], lambda w: w[:, 0]):
        for share in (0.05, 0.25, 0.5, 0.75, 0.95):
            one, other = np.quantile(what(ours), share), np.quantile(what(theirs), share)
            assert one == pytest.approx(other, rel=0.08, abs=2.0)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (10, 300)])
def test_very_long_pictures_give_their_middle(size) -> None:
    high, wide = size
    for window in windows.draw(keys(20), np.tile(size, (20, 1)), (1.0, 1.0)).tolist():
        assert window[2] == min(high, round(wide * 4 / 3))
        assert window[3] == min(wide, round(high * 4 / 3))
        assert abs(2 * window[0] + window[2] - high) <= 1
        assert abs(2 * window[1] + window[3] - wide) <= 1


def test_the_whole_picture_is_scaled_as_torchvision_scales_it() -> None:
    from torchvision.transforms.v2 import functional

    pixels = np.array(scene(70, 50))
    there = functional.resize(torch.from_numpy(pixels).permute(2, 0, 1), [24, 24], antialias=True)
    ours = windows.cut(pixels, np.array([0, 0, 50, 70]), 24)
    assert torch.equal(ours, there)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(24):
        split = "train" if number < 16 else "validation"
        path = root / split / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        scene(60 + 3 * number, 90 - 2 * number).save(path, quality=90)
    Image.new("L", (20, 900), 99).save(root / "train" / "a" / "long.png")
    return root


CROP = Augment(crop=(0.3, 1.0), flip=True)


def fed(photos: Path, workers: int = 0, first: int = 0, **knobs: object) -> list[torch.Tensor]:
    """What enters the model in eight steps of four lanes."""
    data = Data(source="folder", root=str(photos), size=32, workers=workers, **knobs)
    config = Config(batch_size=8, lanes=4, data=data, augment=CROP)
    images = load(data, CROP)
    device = torch.device("cpu")
    augmenter = Augmenter(CROP, images.mean, images.std, device)
    blocks = lane_blocks(images.train, config, range(4), device, first_step=first, total=64)
    return [augmenter(batch.images, batch.keys) for batch, _ in blocks]


@pytest.mark.parametrize("knobs", [{}, {"prepare": 48}])
def test_workers_and_starts_change_nothing(photos, tmp_path, knobs) -> None:
    knobs = {**knobs, "cache_dir": str(tmp_path)}
    whole = fed(photos, **knobs)
    assert all(map(torch.equal, whole, fed(photos, workers=2, **knobs)))
    assert all(map(torch.equal, whole[3:], fed(photos, first=3, **knobs)))


def test_what_is_prepared_is_what_is_read_each_time(photos, tmp_path, monkeypatch) -> None:
    """With a cache that cannot be written, pictures are scaled as they are read: the same bits."""
    kept = fed(photos, prepare=48, cache_dir=str(tmp_path))
    assert len([*tmp_path.glob("pixels-*[!k]")]) == 2
    monkeypatch.setattr(store, "_mapped", lambda *_: None)
    read = fed(photos, prepare=48)
    assert all(map(torch.equal, kept, read))
    assert not all(map(torch.equal, kept, fed(photos)))  # it changes pixels, and so the experiment


def test_validation_has_the_middle(photos) -> None:
    data = Data(source="folder", root=str(photos), size=32)
    cropped, plain = load(data, CROP), load(data)
    numbers = torch.arange(len(plain.validation))
    assert torch.equal(cropped.validation.images(numbers), plain.validation.images(numbers))
    assert (cropped.mean, cropped.sha256) == (plain.mean, plain.sha256)
    unvaried = replace(cropped.train, crop=None)
    numbers = torch.arange(len(unvaried))
    assert torch.equal(unvaried.images(numbers), plain.train.images(numbers))


def test_pictures_may_be_scaled_and_not_cut(tmp_path) -> None:
    for number in range(8):
        for split in ("train", "validation"):
            path = tmp_path / "data" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            scene(50, 30).save(path)
    knobs = {"source": "folder", "root": str(tmp_path / "data"), "prepare": 10}
    found = load(Data(**knobs, cache_dir=str(tmp_path / "cache")))
    assert found.train.shape == (3, 10, 17)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"augment": {"crop": [0.1, 1]}}, "augment.crop without data.size"),
        ({"augment": {"crop": [0.9, 0.1]}, "data": {"size": 8}}, "0.9 is more than 0.1"),
        ({"data": {"source": "folder", "prepare": 8, "size": 9}}, "prepare: 8 is less than"),
    ],
)
def test_knobs_that_do_not_go_together(knobs, said) -> None:
    with pytest.raises(UsageError, match=said):
        Config(**knobs)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [None, 40])
def test_a_training_on_photographs_ends_with_the_same_bits(photos, tmp_path, prepare) -> None:
    """On 1, 2 and 4 processes, with loaders and without, stopped in the middle and gone on with."""
    words = ["fit", "--data.source", "folder", "--data.root", photos, "--data.size", "32"]
    words += ["--augment.crop", "[0.2, 1]", "--augment.flip", "true", "--model.name", "convnet"]
    words += ["--batch_size", "8", "--lanes", "4", "--checkpoint.every", "3"]
    words += ["--numerics", "portable", "--data.cache_dir", tmp_path / "cache"]
    words += [] if prepare is None else ["--data.prepare", prepare]
    hashes = {}
    for count, workers, streamed in ((1, 0, False), (2, 2, False), (4, 0, True)):
        if prepare is None and count == 4:
            continue
        run = tmp_path / f"run-{count}"
        more = ["--data.workers", workers, "--max_steps", "7", "--run", run]
        more += ["--data.cache", "0"] if streamed else []
        done = processes(count, *words, *more)
        assert done.code == 0, done.err
        hashes[count] = json.loads((run / "result.json").read_text())["weights_sha256"]
    if prepare is None:
        assert len(set(hashes.values())) == 1, hashes
        return
    run = tmp_path / "stopped"
    more = ["--run", run, "--max_steps", "7", "--resume"]
    for last in (7, 3):  # what comes after the third step's checkpoint is lost
        for checkpoint in (run / "checkpoints").glob("step-*"):
            if int(checkpoint.name[5:]) > last:
                shutil.rmtree(checkpoint)
        if last == 3:
            (run / "result.json").unlink()
            (run / "checkpoints" / "latest").unlink()
            (run / "checkpoints" / "best").unlink(missing_ok=True)
        done = processes(2 if last == 3 else 1, *words, *more)
        assert done.code == 0, done.err
    assert "going on after step 3" in done.out
    hashes["resumed"] = json.loads((run / "result.json").read_text())["weights_sha256"]
    assert len(set(hashes.values())) == 1, hashes
