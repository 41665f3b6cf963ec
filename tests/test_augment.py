import torch

from train.config import Augment
from train.data import Augmenter
from train.lanes import order

KEYS = order.keys(order.key(1), torch.arange(500))
IMAGES = torch.randint(
    1, 256, (500, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def make(**knobs) -> Augmenter:
    return Augmenter(Augment(**knobs), [0.0] * 3, [1 / 255] * 3, torch.device("cpu"))


def test_a_sample_does_not_see_its_neighbours() -> None:
    augmenter = make(pad=2, flip=True, cutout=4)
    together = augmenter(IMAGES, KEYS)
    apart = torch.cat([augmenter(IMAGES[i : i + 1], KEYS[i : i + 1]) for i in range(500)])
    assert torch.equal(together, apart)


def test_crops_are_windows_of_the_padded_image_and_all_occur() -> None:
    cropped = make(pad=1)(IMAGES, KEYS)
    offsets = set()
    for image, out in zip(IMAGES.float(), cropped, strict=True):
        padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
        found = [
            (y, x) for y in range(3) for x in range(3)
            if torch.equal(padded[:, y : y + 8, x : x + 8], out.round())
        ]  # fmt: skip
        assert len(found) == 1
        offsets |= set(found)
    assert len(offsets) == 9


def test_half_the_images_are_mirrored() -> None:
    out = make(flip=True)(IMAGES, KEYS).round()
    same = (out == IMAGES).all((1, 2, 3)) if out.ndim == 2 else (out == IMAGES).flatten(1).all(1)
    mirrored = (out == IMAGES.flip(-1)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 200 < int(mirrored.sum()) < 300


def test_cutout_blanks_one_square() -> None:
    out = make(cutout=3)(IMAGES, KEYS)
    blank = (out == 0).all(1)
    areas = blank.flatten(1).sum(1)
    assert int(areas.max()) == 9
    assert int(areas.min()) >= 4  # a corner sticks out
    for one in blank[:50]:
        rows, columns = one.any(1).nonzero().flatten(), one.any(0).nonzero().flatten()
        assert one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert one.sum() == len(rows) * len(columns)


def test_without_knobs_nothing_happens() -> None:
    assert torch.equal(make()(IMAGES, KEYS).round(), IMAGES.float())
