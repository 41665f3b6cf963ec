import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from conftest import picture
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from host.errors import DataError
from train import data as package
from train.config import Augment, Config, Data
from train.data import Augmenter, lane_blocks, load

DIGITS = Data(source="digits", holdout=0.201)


@pytest.fixture(scope="module")
def digits():
    return load(DIGITS)


def test_digits_are_scikit_learn_s(digits) -> None:
    """The file is read without importing scikit-learn; the pixels must be those it gives."""
    from sklearn.datasets import load_digits

    theirs = load_digits()
    grey = torch.from_numpy(theirs.images * (255 / 16)).round().to(torch.uint8)[:, None]
    ours = torch.cat([digits.train.resident, digits.validation.resident])
    labels = torch.cat([digits.train.labels, digits.validation.labels])
    assert len(ours) == 1797
    rows = {
        (tuple(p.flatten().tolist()), n) for p, n in zip(grey, theirs.target.tolist(), strict=True)
    }
    assert rows == {
        (tuple(p.flatten().tolist()), n) for p, n in zip(ours, labels.tolist(), strict=True)
    }


@pytest.mark.slow
def test_digits_start_without_the_library_of_tables() -> None:
    """It takes longer to load than digits take to train."""
    words = "import sys; from train import config, data, run"
    words += "; data.load(config.Data()); print({'datasets', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_digits_have_no_columns_to_name() -> None:
    with pytest.raises(DataError, match=r"no columns, but data.label_column is set"):
        load(Data(source="digits", label_column="label"))


def test_the_split_is_fixed_and_disjoint(digits) -> None:
    assert (len(digits.train), len(digits.validation)) == (1436, 361)
    again = load(DIGITS)
    assert digits.sha256 == again.sha256
    assert torch.equal(digits.validation.resident, again.validation.resident)
    assert digits.classes == list("0123456789")
    assert min(torch.bincount(digits.validation.labels).tolist()) > 20


def test_mean_and_deviation_are_those_of_the_training_images(digits) -> None:
    floats = digits.train.resident.double() / 255
    assert digits.mean == pytest.approx([floats.mean().item()], abs=1e-7)
    assert digits.std == pytest.approx([floats.std(correction=0).item()], abs=1e-7)
    augmenter = Augmenter(Augment(), digits.mean, digits.std, torch.device("cpu"))
    normal = augmenter.normalize(digits.train.resident)
    assert normal.mean().abs() < 1e-4
    assert normal.std() == pytest.approx(1.0, abs=1e-3)


def test_a_changed_pixel_or_label_changes_the_fingerprint(folder, tmp_path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = load(Data(source="folder", root=str(copy))).sha256
    assert first == load(Data(source="folder", root=str(folder))).sha256
    path = copy / "train" / "dark" / "3.png"
    changed = Picture.open(path)
    changed.putpixel((2, 2), 255 - changed.getpixel((2, 2)))
    changed.save(path)
    assert load(Data(source="folder", root=str(copy))).sha256 != first


def test_a_folder_of_pictures(folder) -> None:
    found = load(Data(source="folder", root=str(folder)))
    assert (len(found.train), len(found.validation)) == (24, 9)
    assert found.classes == ["dark", "light"]
    assert found.train.shape == (1, 8, 8)
    means = found.train.resident.float().mean((1, 2, 3))
    assert (means[found.train.labels == 0] < means[found.train.labels == 1].min()).all()


def test_pictures_of_many_sizes_are_scaled_and_cropped(tmp_path) -> None:
    for number, size in enumerate([(20, 10), (10, 20), (16, 16), (9, 31)]):
        for split in ("train", "validation"):
            picture(tmp_path / split / "ab"[number % 2] / f"{number}.png", 90, size, "RGB")
    with pytest.raises(DataError, match=r"4 sizes: .*20×10 \(2, such as train/a.*--data.size"):
        load(Data(source="folder", root=str(tmp_path)))
    found = load(Data(source="folder", root=str(tmp_path), size=8))
    assert found.train.resident.shape == (4, 3, 8, 8)
    assert found.train.resident.float().mean() == pytest.approx(90, abs=5)


def test_what_is_too_large_to_keep_is_decoded_by_the_batch(folder) -> None:
    kept = load(Data(source="folder", root=str(folder)))
    found = load(Data(source="folder", root=str(folder), cache=0))
    assert found.train.resident is None
    assert found.sha256 == kept.sha256  # it is the same data
    numbers = torch.tensor([3, 0, 17])
    assert torch.equal(found.train.images(numbers), kept.train.images(numbers))
    assert (found.mean, found.std) == (kept.mean, kept.std)


def test_parquet_and_saved_data_sets_are_folders_too(tmp_path, monkeypatch) -> None:
    rows = {"img": [Picture.new("RGB", (8, 8), (i, i, i)) for i in range(20)], "label": [0, 1] * 10}
    features = Features({"img": Image(), "label": ClassLabel(names=["x", "y"])})
    table = Dataset.from_dict(rows, features=features)
    DatasetDict(train=table, test=table.select(range(4))).save_to_disk(str(tmp_path / "saved"))
    table.to_parquet(str(tmp_path / "parquet" / "train.parquet"))
    saved = load(Data(source="folder", root=str(tmp_path / "saved")))
    assert (len(saved.train), len(saved.validation), saved.classes) == (20, 4, ["x", "y"])
    alone = load(Data(source="folder", root=str(tmp_path / "parquet"), holdout=0.25))
    assert (len(alone.train), len(alone.validation), alone.train.shape) == (15, 5, (3, 8, 8))
    monkeypatch.chdir(tmp_path)
    near = load(Data(source="folder", root="parquet", holdout=0.25))
    assert near.sha256 == alone.sha256
    (tmp_path / "link").symlink_to("parquet")
    assert load(Data(source="folder", root="link", holdout=0.25)).sha256 == alone.sha256
    (tmp_path / "parquet" / "old").mkdir()
    table.to_parquet(str(tmp_path / "parquet" / "old.parquet.bak"))
    kept = load(Data(source="folder", root="parquet", holdout=0.25))
    assert kept.left_out == {"old.parquet.bak": "not among the tables"}


def test_two_columns_of_classes_are_for_the_user_to_choose(tmp_path) -> None:
    """As CIFAR-100's fine_label and coarse_label."""
    kinds = {name: ClassLabel(names=["x", "y"]) for name in ("fine_label", "coarse_label")}
    pictures = [Picture.new("RGB", (8, 8), (i, i, i)) for i in range(20)]
    rows = {"img": pictures, "fine_label": [0, 1] * 10, "coarse_label": [0] * 10 + [1] * 10}
    features = Features({"img": Image(), **kinds})
    Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "train.parquet"))
    with pytest.raises(DataError, match=r"several columns .*: fine_label, coarse_label"):
        load(Data(source="folder", root=str(tmp_path)))
    chosen = load(Data(source="folder", root=str(tmp_path), label_column="fine_label"))
    assert chosen.classes == ["x", "y"]


def table(labels, kind=None) -> Dataset:
    features = Features({"image": Image(), "label": kind or Value("int64")})
    columns = {
        "image": [Picture.new("L", (8, 8), 40 * n) for n in range(len(labels))],
        "label": labels,
    }
    return Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize(
    ("splits", "knobs", "says"),
    [
        (
            {"train": [0, 1, 2], "test": [0, 7]},
            {},
            "1 class of the validation split has no training picture: 7",
        ),
        ({"train": [0, -1, 2], "test": [0]}, {}, "row 1 of training has label -1"),
        ({"train": [0, None], "test": [0]}, {}, "1 of the training labels are missing.*row 1 of"),
        ({"test": [0]}, {}, "no split named train"),
        ({"train": [0, 1], "test": [0]}, {"label_column": "kind"}, "no kind; its columns: image"),
        ({"train": [0, 1], "test": [0]}, {"image_column": "label"}, "no label; its columns"),
        ({"train": [0, 1], "test": [0]}, {"mean": [0.5, 0.5]}, "data.mean has 2 values for 1"),
        ({"train": [0, 1]}, {"holdout": 0.1}, "leaves 0 of 2 samples"),
    ],
)
def test_bad_data_says_what_is_wrong(tmp_path, splits, knobs, says) -> None:
    DatasetDict({name: table(labels) for name, labels in splits.items()}).save_to_disk(
        str(tmp_path)
    )
    with pytest.raises(DataError, match=says):
        load(Data(source="folder", root=str(tmp_path), **knobs))


def test_a_label_column_of_any_name(tmp_path) -> None:
    renamed = table([0, 1, 1, 0]).rename_column("label", "target")
    DatasetDict(train=renamed, test=renamed).save_to_disk(str(tmp_path))
    with pytest.raises(DataError, match="no label column; its columns: image, target"):
        load(Data(source="folder", root=str(tmp_path)))
    found = load(Data(source="folder", root=str(tmp_path), label_column="target"))
    assert found.train.labels.tolist() == [0, 1, 1, 0]


def test_an_empty_data_set(tmp_path) -> None:
    table([0]).select([]).to_parquet(str(tmp_path / "train.parquet"))
    with pytest.raises(DataError, match="empty"):
        load(Data(source="folder", root=str(tmp_path)))


def test_a_hub_that_cannot_be_reached_says_how_to_work_offline(tmp_path, monkeypatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as raised:
        load(Data(source="nobody/nothing", root=str(tmp_path)))
    assert re.search("cannot be reached.*offline.*hf download", str(raised.value))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_is_damaged_while_it_trains_is_named(tmp_path, workers) -> None:
    for number in range(6):
        for split in ("train", "validation"):
            picture(tmp_path / split / "ab"[number == 5] / f"{number}.png", 90 + number)
    knobs = Data(source="folder", root=str(tmp_path), workers=workers, cache=0)
    found = load(knobs)
    config = Config(batch_size=4, lanes=2, data=knobs)
    (tmp_path / "train" / "a" / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    with pytest.raises(DataError, match=r"train/a/4.png cannot be read any more"):
        list(lane_blocks(found.train, config, range(2), torch.device("cpu"), first_step=0, total=6))
    picture(tmp_path / "train" / "a" / "4.png", 90, (9, 9))
    with pytest.raises(
        DataError, match=r"train/a/4.png cannot be read any more: it is another one now"
    ):
        list(lane_blocks(found.train, config, range(2), torch.device("cpu"), first_step=0, total=6))


VARIED = Augment(pad=2, flip=True, cutout=3)


def everything(digits, workers: int, lanes: range, augment: Augment, first: int = 0):
    """What enters the model, sample by sample, in order."""
    config = Config(batch_size=64, lanes=8, data={"workers": workers}, seed=5)
    blocks = lane_blocks(
        digits.train, config, lanes, torch.device("cpu"), first_step=first, total=1500
    )
    augmenter = Augmenter(augment, digits.mean, digits.std, torch.device("cpu"))
    varied = ((replace(b, images=augmenter(b.images, b.keys)), sizes) for b, sizes in blocks)
    return [(lane.images, lane.labels) for b, sizes in varied for lane in b.split(sizes)]


@pytest.fixture(scope="module")
def whole(digits):
    """What one process without loaders feeds its model: 24 steps of 8 lanes."""
    return everything(digits, 0, range(8), VARIED)


@settings(max_examples=12)
@given(
    workers=st.integers(0, 2), world=st.sampled_from([1, 2, 4, 8]), first=st.integers(0, 23),
    data=st.data(),
)  # fmt: skip
def test_bytes_that_enter_the_model_do_not_depend_on_workers_processes_or_start(
    digits, whole, workers, world, first, data
) -> None:
    rank, each = data.draw(st.integers(0, world - 1)), 8 // world
    lanes = range(rank * each, (rank + 1) * each)
    mine = everything(digits, workers, lanes, VARIED, first)
    theirs = [whole[8 * step + lane] for step in range(first, 24) for lane in lanes]
    assert all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(mine, theirs, strict=True)
    )


def test_an_epoch_s_samples_come_once_and_differ_in_the_next_epoch(digits) -> None:
    config = Config(batch_size=359, lanes=1)
    blocks = lane_blocks(
        digits.train, config, range(1), torch.device("cpu"), first_step=0, total=2872
    )
    batches = [batch for batch, _ in blocks]
    keys = torch.cat([b.keys for b in batches])
    assert len(set(keys.tolist())) == 2872
    one, two = (torch.cat([b.images for b in batches[i : i + 4]]) for i in (0, 4))
    assert not torch.equal(one, two)
    assert torch.equal(one.sum(0), two.sum(0))


def test_the_package_offers_what_it_lists() -> None:
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("most", [1, 5000, 1 << 20])
def test_how_many_lanes_come_together_changes_nothing(digits, monkeypatch, most) -> None:
    """One by one, a few of them, or all: the same bits, each lane in memory of its own."""
    monkeypatch.setattr("train.data.loader._BLOCK", most)
    expected = everything(digits, 0, range(8), VARIED)
    monkeypatch.undo()
    for lanes in (range(8), range(2, 5)):
        monkeypatch.setattr("train.data.loader._BLOCK", most)
        found = everything(digits, 0, lanes, VARIED)
        wanted = [lane for n, lane in enumerate(expected) if n % 8 in lanes]
        assert len(found) == len(wanted)
        for (images, labels), (other, others) in zip(found, wanted, strict=True):
            assert torch.equal(images, other)
            assert torch.equal(labels, others)
            assert images.storage_offset() == 0
