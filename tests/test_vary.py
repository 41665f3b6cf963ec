"""Variations of images: each operation against torchvision's, and how often which one is drawn."""

import math
import re
from collections import Counter

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import (
    AutoAugment,
    AutoAugmentPolicy,
    ColorJitter,
    CutMix,
    RandAugment,
    RandomErasing,
    TrivialAugmentWide,
)
from torchvision.transforms.v2 import functional as theirs

from train.config import Augment, Optim
from train.data import Batch
from train.data.vary import Augmenter, erasing, jitter, mixing, operations, policies
from train.data.vary.operations import ONE
from train.lanes import order
from train.learn import loss

COUNT = 4000
KEYS = order.keys(order.key(7), torch.arange(COUNT))
NEAREST = InterpolationMode.NEAREST


def pictures(channels: int, height: int, width: int) -> Tensor:
    """Smooth ones, noise, one of a single value, black and white."""
    generator = torch.Generator().manual_seed(height)
    rough = torch.rand(8, channels, 4, 5, generator=generator)
    smooth = functional.interpolate(rough, (height, width), mode="bicubic").clamp(0, 1) * 255
    shape = (8, channels, height, width)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    flat = torch.full((3, channels, height, width), 77, dtype=torch.uint8)
    flat[1], flat[2] = 0, 255
    return torch.cat([smooth.to(torch.uint8), noise, noise // 9 + 100, flat])


SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 40), (3, 3, 3), (1, 1, 2)]


def same(ours: Tensor, theirs: Tensor, most: int = 1) -> None:
    """But for the last bit of a rounding."""
    assert ours.dtype == torch.uint8
    assert int((ours.int() - theirs.int()).abs().max()) <= most


def each(images: Tensor, number: float) -> Tensor:
    return torch.full((len(images),), round(number * ONE))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [0.0, 0.1, 0.55, 1.0, 1.37, 1.9, 3.0])
def test_colours_are_changed_as_torchvision_does(shape, factor) -> None:
    images = pictures(*shape)
    strength = each(images, factor)
    same(operations.brightness(images, strength), theirs.adjust_brightness(images, factor))
    same(operations.contrast(images, strength), theirs.adjust_contrast(images, factor), 3)
    same(operations.saturation(images, strength), theirs.adjust_saturation(images, factor), 3)
    if min(shape[1:]) > 2:
        same(operations.sharpness(images, strength), theirs.adjust_sharpness(images, factor), 2)
    if factor == 1:
        for apply in (operations.brightness, operations.contrast, operations.saturation):
            assert torch.equal(apply(images, strength), images)


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_are_changed_as_torchvision_does(shape) -> None:
    images = pictures(*shape)
    for bits in range(9):
        ours = operations.posterize(images, torch.full((len(images),), bits))
        same(ours, theirs.posterize(images, bits), 0)
    for threshold in (0, 1, 100, 255):
        ours = operations.solarize(images, torch.full((len(images),), threshold))
        same(ours, theirs.solarize(images, threshold), 0)
    same(operations.autocontrast(images), theirs.autocontrast(images))
    same(operations.equalize(images), theirs.equalize(images), 0)
    if shape[0] == 3:
        same(operations.grey(images), theirs.rgb_to_grayscale(images, 1))
    for turn in (0.0, 0.1, -0.3, 0.5, -0.5):
        same(operations.hue(images, each(images, turn)), theirs.adjust_hue(images, turn))


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_images_are_moved_as_torchvision_does(shape) -> None:
    images = pictures(*shape)
    height, width = shape[1:]
    still = {"angle": 0.0, "scale": 1.0, "interpolation": NEAREST}

    def moved(policy: str, name: str, row: int) -> Tensor:
        operation = policies._operations(policy, height, width)[name]
        return operation.apply(images, operation.table[row].expand(len(images), -1))

    for policy, rows in (("randaugment", (0, 9, 30, 40, 61)), ("trivialaugment", (9, 30, 61))):
        spread = 0.3 if policy == "randaugment" else 0.99
        farthest = (150 / 331 * width, 150 / 331 * height) if spread < 0.9 else (32, 32)
        for row in rows:
            share = row / 30 if row < 31 else -(row - 31) / 30
            degrees = math.degrees(math.atan(spread * share))
            for name, shear in (("shear_x", [degrees, 0.0]), ("shear_y", [0.0, degrees])):
                expected = theirs.affine(
                    images, translate=[0, 0], shear=shear, center=[0, 0], **still
                )
                assert (moved(policy, name, row) == expected).float().mean() > 0.97
            for axis, name in enumerate(("translate_x", "translate_y")):
                by = [0, 0]
                by[axis] = int(farthest[axis] * share)
                expected = theirs.affine(images, translate=by, shear=[0.0, 0.0], **still)
                same(moved(policy, name, row), expected, 0)
            turn = (30 if policy == "randaugment" else 135) * share
            expected = theirs.rotate(images, turn, NEAREST)
            assert (moved(policy, "rotate", row) == expected).float().mean() > 0.95, turn


def ours_of(name: str) -> str:
    """What we call an operation of torchvision's: ShearX is shear_x."""
    names = {"Color": "saturation", "AutoContrast": "autocontrast"}
    return names.get(name) or re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


def test_strengths_are_torchvisions() -> None:
    """Those of each operation, whose tables torchvision keeps in floats."""
    for policy, made, bins in (
        ("randaugment", RandAugment(), 31),
        ("trivialaugment", TrivialAugmentWide(), 31),
        ("autoaugment", AutoAugment(AutoAugmentPolicy.CIFAR10), 10),
    ):
        ours = policies._operations(policy, 32, 32)
        space = made._AUGMENTATION_SPACE
        known = {ours_of(name): name for name in space}
        assert {*known} | {"identity"} == {*ours}
        for name, operation in ours.items():
            strengths, signed = space[known[name]] if name in known else (lambda *_: None, False)
            found = strengths(bins, 32, 32)
            assert len(operation.table) == 2 * bins
            one, other = operation.table[:bins], operation.table[bins:]
            assert signed == (not torch.equal(one, other))
            if name in ("brightness", "saturation", "contrast", "sharpness"):
                assert torch.allclose(one / ONE, 1 + found, atol=1e-5)
                assert torch.allclose(other / ONE, 1 - found, atol=1e-5)
            if name == "posterize":
                assert one.tolist() == found.tolist()
            if name == "solarize":  # whole numbers, of which floats fall short or exceed
                assert one.tolist() == [math.ceil(v - 1e-4) for v in (255 * found).tolist()]
    flat = [[(ours_of(n), round(10 * p), m or 0) for n, p, m in pair] for pair in made._policies]
    assert flat == [list(pair) for pair in policies._CIFAR]


def counted(config: Augment) -> list[tuple[Counter[str], Counter[int]]]:
    names = list(policies._operations(config.policy or "", 32, 32))
    return [
        (Counter(names[n] for n in which.tolist()), Counter(row.tolist()))
        for which, row in policies._draws(KEYS, config, names)
    ]


def even(counts: Counter, kinds: int) -> bool:
    """Whether all kinds came about equally often: five deviations of such a count."""
    mean = COUNT / kinds
    return len(counts) == kinds and max(abs(c - mean) for c in counts.values()) < 5 * mean**0.5


def test_operations_are_drawn_alike() -> None:
    layers = counted(Augment(policy="randaugment", policy_operations=3, policy_strength=7))
    assert len(layers) == 3
    for which, row in layers:
        assert even(which, 14)
        assert {*row} == {7, 38}
        assert even(row, 2)
    [(which, row)] = counted(Augment(policy="trivialaugment"))
    assert even(which, 14)
    assert even(row, 62)
    first, second = counted(Augment(policy="autoaugment"))
    chances: list[Counter[str]] = [Counter(), Counter()]
    for pair in policies._CIFAR:
        for layer, (name, tenths, _) in enumerate(pair):
            chances[layer][name] += tenths
            chances[layer]["identity"] += 10 - tenths
    for (which, _), expected in zip((first, second), chances, strict=True):
        for name, tenths in expected.items():
            mean = COUNT * tenths / 250
            assert abs(which[name] - mean) <= 5 * mean**0.5, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"policy": "randaugment"},
        {"policy": "randaugment", "policy_operations": 16, "policy_strength": 30},
        {"policy": "trivialaugment"},
        {"policy": "autoaugment"},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"hue": 0.5},
        {"grey": 0.2},
        {"erasing": 0.5},
        {
            "pad": 2,
            "flip": True,
            "policy": "trivialaugment",
            "contrast": 2,
            "cutout": 3,
            "erasing": 1,
        },
    ],
)
def test_a_sample_does_not_see_its_neighbours(knobs) -> None:
    for channels in (1, 3):
        images = pictures(channels, 16, 12).repeat(20, 1, 1, 1)
        keys = KEYS[: len(images)]
        augmenter = Augmenter(
            Augment(**knobs), [0.5] * channels, [0.25] * channels, torch.device("cpu")
        )
        together = augmenter(images, keys)
        apart = [augmenter(images[i : i + 1], keys[i : i + 1]) for i in range(len(images))]
        assert torch.equal(together, torch.cat(apart))
        if channels == 3 or {*knobs} - {"hue", "grey"}:
            assert not torch.equal(together, augmenter.normalize(images))


def test_colours_vary_in_their_ranges_in_any_order() -> None:
    images = torch.full((COUNT, 3, 1, 1), 100, dtype=torch.uint8)
    out = jitter.jitter(images, KEYS, Augment(brightness=0.5))[:, 0, 0, 0]
    assert {*out.tolist()} == {*range(50, 150)}
    assert even(Counter((out // 10).tolist()), 10)
    wide = jitter.jitter(images, KEYS, Augment(brightness=2.0))[:, 0, 0, 0]
    assert (int(wide.min()), int(wide.max())) == (0, 255)
    # Darker, then more contrast around the new mean: another image than the other way round.
    half = torch.tensor([40, 200], dtype=torch.uint8).view(1, 1, 1, 2).repeat(COUNT, 3, 1, 1)
    config = Augment(brightness=0.5, contrast=0.5)
    assert len(jitter.jitter(half, KEYS, config).unique(dim=0)) > COUNT / 4
    places = jitter._ORDERS[order.randint(KEYS, 128, 24)]
    assert even(Counter(map(tuple, places.tolist())), 24)
    reference = ColorJitter(0.5, 0.5, 0.5, 0.1)
    torch.manual_seed(0)
    theirs_ = torch.stack([reference(half[0]) for _ in range(1000)]).float()
    ours = jitter.jitter(half, KEYS, Augment(brightness=0.5, contrast=0.5, saturation=0.5, hue=0.1))
    assert (ours.float().mean((0, 1)) - theirs_.mean((0, 1))).abs().max() < 3
    assert (ours.float().std(0) - theirs_.std(0)).abs().max() < 3


def test_a_share_of_images_loses_its_colour() -> None:
    images = torch.tensor([10, 100, 200], dtype=torch.uint8).view(1, 3, 1, 1).repeat(COUNT, 1, 1, 1)
    out = jitter.greyed(images, KEYS, 0.2)
    grey = out.amax(1) == out.amin(1)
    assert abs(int(grey.sum()) - 0.2 * COUNT) < 5 * (0.16 * COUNT) ** 0.5
    assert torch.equal(out[~grey.flatten()], images[~grey.flatten()])


def test_rectangles_are_erased_as_torchvision_does() -> None:
    images = torch.zeros(COUNT, 1, 32, 32, dtype=torch.uint8)
    outside = erasing.outside_rectangles(images, KEYS, 0.5)
    gone = (outside == 0).flatten(1).sum(1).float()
    assert abs(int((gone > 0).sum()) - COUNT / 2) < 5 * (COUNT / 4) ** 0.5
    torch.manual_seed(0)
    made = RandomErasing(p=0.5)
    reference = torch.stack([(made(torch.ones(1, 32, 32)) == 0).sum() for _ in range(COUNT)])
    ours, others = gone[gone > 0] / 1024, reference[reference > 0] / 1024
    assert abs(ours.mean() - others.mean()) < 0.01
    assert abs(ours.std() - others.std()) < 0.01
    for one in outside[gone > 0][:50, 0] == 0:
        rows, columns = one.any(1).nonzero().flatten(), one.any(0).nonzero().flatten()
        assert one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert one.sum() == len(rows) * len(columns)
    assert torch.equal(erasing.outside_rectangles(images, KEYS, 0.0), torch.ones_like(outside))


def lane(count: int = COUNT, side: int = 24) -> Batch:
    """Images that are their number all over."""
    numbers = torch.arange(count)
    images = numbers.float()[:, None, None, None].expand(-1, 1, side, side).contiguous()
    return Batch(images, numbers % 10, KEYS[:count])


def mix(batch: Batch, **knobs: float) -> Batch:
    return Augmenter(Augment(**knobs), [0.5], [0.25], torch.device("cpu")).mix(batch)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 8.0])
def test_mixup_takes_the_next_one_by_a_share_of_beta(alpha) -> None:
    plain = lane()
    out = mix(plain, mixup=alpha)
    own = out.shares[:, None, None, None]
    assert torch.equal(out.partners, plain.labels.roll(-1))
    assert torch.equal(out.images, plain.images * own + plain.images.roll(-1, 0) * (1 - own))
    assert torch.equal(out.labels, plain.labels)
    drawn = scipy.stats.beta(alpha, alpha).rvs(COUNT, random_state=0)
    rounded = (drawn * (1 << 16)).round() / (1 << 16)
    assert scipy.stats.ks_2samp(out.shares.numpy(), rounded).pvalue > 1e-3
    more = out.shares >= 0.5
    assert torch.equal(out.prevailing[more], plain.labels[more])
    assert torch.equal(out.prevailing[~more], plain.labels.roll(-1)[~more])


def test_cutmix_puts_a_window_in_and_counts_its_pixels() -> None:
    plain = lane()
    out = mix(plain, cutmix=1.0)
    theirs_ = out.images == plain.images.roll(-1, 0)
    assert torch.equal(out.images, torch.where(theirs_, plain.images.roll(-1, 0), plain.images))
    share = 1 - theirs_.flatten(1).float().mean(1)
    assert torch.allclose(out.shares, share, atol=2e-5)
    for one in theirs_[theirs_.flatten(1).any(1)][:50, 0]:
        rows, columns = one.any(1).nonzero().flatten(), one.any(0).nonzero().flatten()
        assert one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    torch.manual_seed(0)
    reference = CutMix(alpha=1.0, num_classes=10)
    areas = [reference(torch.zeros(2, 1, 24, 24), torch.arange(2))[1][0, 0] for _ in range(COUNT)]
    assert abs(float(torch.stack(areas).mean()) - float(out.shares.mean())) < 0.03


def test_of_both_one_is_drawn() -> None:
    plain = lane()
    out = mix(plain, mixup=0.5, cutmix=1.0)
    of_two = (out.images == plain.images) | (out.images == plain.images.roll(-1, 0))
    cut = of_two.flatten(1).all(1)
    assert abs(int(cut.sum()) - COUNT / 2) < 5 * (COUNT / 4) ** 0.5


def test_a_lane_of_one_and_none_are_left_as_they_are() -> None:
    assert mix(lane(1), mixup=1.0).partners is None
    assert mix(lane(5)).partners is None


def test_the_loss_counts_both_labels() -> None:
    batch = mix(lane(64), mixup=1.0)
    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    both = functional.one_hot(batch.labels, 10) * batch.shares[:, None]
    both = both + functional.one_hot(batch.partners, 10) * (1 - batch.shares[:, None])
    for smoothing in (0.0, 0.1):
        plain = loss.build(Optim(label_smoothing=smoothing))
        ours = loss.total(plain, logits, batch.labels, batch.partners, batch.shares)
        theirs_ = functional.cross_entropy(logits, both, reduction="sum", label_smoothing=smoothing)
        assert torch.allclose(ours, theirs_)


def test_sides_of_windows_are_whole_numbers_on_any_machine() -> None:
    """A square root that falls one bit short would take a pixel off."""
    shares = torch.tensor([0, 1, 1 << 14, 9 << 12, 1 << 16])
    assert mixing._roots()[shares].tolist() == [0, 256, 1 << 15, 3 << 14, 1 << 16]
    assert all(t.dtype == torch.int64 for t in (erasing._SIDES, erasing._ROOTS, mixing._roots()))
