"""Where data comes from: class folders, lists, idx files, CIFAR's, a function of one's own."""

import gzip
import io
import json
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import numpy as np
import odd
import pytest
from conftest import picture
from datasets import Dataset
from datasets import Image as Pictures
from PIL import Image

from host.errors import DataError, UsageError
from train.config import Data
from train.data import load


def lay(root: Path, layout: dict[str, int]) -> Path:
    """Grey pictures of these values by name."""
    for place, (name, value) in enumerate(layout.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), (value + place) % 256, np.uint8)).save(path)
    return root


@pytest.fixture
def root(tmp_path) -> Path:
    """Two classes of four training and two validation pictures."""
    layout = {
        f"{split}/{name}/{number}.png": value
        for split, count in (("train", 4), ("validation", 2))
        for name, value in (("dark", 60), ("light", 200))
        for number in range(count)
    }
    return lay(tmp_path / "data", layout)


def read(root: Path, **knobs: object):
    return load(Data(source="folder", root=str(root), **knobs))


def refused(root: Path, said: str, **knobs: object) -> None:
    with pytest.raises(DataError, match=said):
        read(root, **knobs)


# What was silently wrong: each of these was trained on, and nothing was said.


def test_sixteen_bits_became_white(root) -> None:
    for path in root.rglob("*.png"):
        grey = np.asarray(Image.open(path)).astype(np.uint16) * 257
        Image.fromarray(grey).save(path)
    found = read(root)
    assert found.mean[0] == pytest.approx((60 + 200 + 2 * 5.5) / 2 / 255, abs=0.02)


def test_floats_became_black(root) -> None:
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(root / "train" / "dark" / "x.tif")
    refused(root, r"train/dark/x\.tif \(its pixels are floats.*convert it to 8 or 16 bits\)")


def test_shapes_in_the_alpha_channel_were_black(root) -> None:
    for place, path in enumerate(sorted(root.rglob("*.png"))):
        pixels = np.zeros((8, 8, 4), np.uint8)
        pixels[: 2 + place % 5, :, 3] = 255
        Image.fromarray(pixels).save(path)
    found = read(root)
    assert 0.3 < found.mean[0] < 0.7
    # On black nothing of them is to be seen, and that is an error: there was "or 1.0" in its place.
    refused(root, "channel 0 has the same value in all training pictures, 0 of 255", background=0)
    assert read(root, background=0, mean=[0, 0, 0], std=[1, 1, 1]).std == [1, 1, 1]


def test_one_grey_picture_sorted_first_made_all_grey(root) -> None:
    grey = read(root)
    assert grey.train.shape == (1, 8, 8)
    Image.new("RGB", (8, 8), (250, 20, 20)).save(root / "validation" / "light" / "z.png")
    found = read(root)
    assert found.train.shape == (3, 8, 8)
    assert read(root, channels=1).train.shape == (1, 8, 8)
    assert found.validation.images(range_of(found.validation))[-1, :, 0, 0].tolist() == [
        250,
        20,
        20,
    ]


def range_of(split):
    import torch

    return torch.arange(len(split))


def test_a_class_in_validation_only_was_one_more(root) -> None:
    lay(root, {"validation/Light/0.png": 9, "validation/Light/1.png": 9})
    refused(root, "1 class of the validation split, and of no training picture: Light; .*dark")


def test_a_class_that_differs_in_capitals_is_named(root) -> None:
    lay(root, {"validation/Dark/0.png": 9})
    refused(root, "picture: Dark; .*; did you mean dark\\? Capitals count → ")


def test_a_list_beside_one_folder_of_pictures_comes_first_with_its_columns(tmp_path) -> None:
    lay(tmp_path, {f"images/{n}.png": n for n in range(4)})
    (tmp_path / "labels.csv").write_text("id_code;diagnosis\n0;1\n1;0\n")
    refused(
        tmp_path,
        r"has one class, images, .* → if labels.csv has the classes"
        r" \(its first line: diagnosis, id_code\): --data.root \S+/labels.csv .*; or put the",
    )


def test_empty_class_folders_vanished(root) -> None:
    (root / "train" / "grey").mkdir()
    refused(root, r"train/grey/ \(a class folder without pictures\)")
    found = read(root, on_bad="skip")
    assert found.classes == ["dark", "light"]
    assert found.skipped == {"train/grey/": "a class folder without pictures"}


def test_a_list_among_class_folders(root) -> None:
    """It ended in "Instruction validation corresponds to no data"."""
    before = read(root)
    (root / "train" / "metadata.csv").write_text("file_name,caption\ndark/0.png,night\n")
    found = read(root)
    assert found.sha256 == before.sha256
    assert found.left_out == {"train/metadata.csv": "no picture"}


@pytest.mark.parametrize("column", ["kind", "breed", "y"])
@pytest.mark.parametrize("name", ["metadata.csv", "train/labels.csv", "labels.jsonl"])
def test_a_list_whose_labels_have_an_unknown_name(root, name, column) -> None:
    """It was left out, and the folders' names became the classes."""
    rows = [
        (f"{'' if '/' in name else 'train/'}dark/{n}.png", ("cat", "dog")[n % 2], "train")
        for n in range(4)
    ]
    names = ("file_name", column, "split")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    if not name.endswith("jsonl"):
        lines = [",".join(row) for row in (names, *rows)]
    (root / name).write_text("\n".join(lines) + "\n")
    refused(root, f"has no column label; its columns: file_name, {column}, split")
    assert read(root, label_column=column, holdout=0.5).classes == ["cat", "dog"]


@pytest.mark.parametrize(
    "head", [",file_name,text", "file_name,sha256,bbox", "file_name,width,format", "path,alt_text"]
)
def test_a_list_that_says_no_class_is_left_out(root, head) -> None:
    names = head.split(",")
    known = {"": "{n}", "file_name": "dark/{n}.png", "path": "dark/{n}.png", "format": "PNG"}
    rows = [",".join(known.get(m, m + "{n}").format(n=n) for m in names) for n in range(4)]
    (root / "train" / "metadata.csv").write_text("\n".join([head, *rows]) + "\n")
    assert read(root).left_out == {"train/metadata.csv": "no picture"}


def test_a_picture_at_another_depth(root) -> None:
    """It ended in "no label column"."""
    lay(root, {"train/0.png": 7, "train/dark/more/4.png": 60})
    refused(root, r"1 of 14 pictures .*train/0\.png \(beside the class folders")
    assert len(read(root, on_bad="skip").train) == 9


# Layouts of class folders.


@pytest.mark.parametrize("held", ["val", "valid", "dev", "test", "Validation", "eval"])
def test_names_of_splits(root, held) -> None:
    (root / "validation").rename(root / held)
    (root / "train").rename(root / "Training")
    found = read(root)
    assert (len(found.train), len(found.validation)) == (8, 4)


def test_a_third_split_is_named(root) -> None:
    lay(root, {"test/dark/0.png": 1, "extra/dark/0.png": 1, "notes.txt.png": 5})
    found = read(root)
    assert found.left_out == {
        "test/": "not used: validation is validation",
        "extra/": "in no split, with class folders as training has",
        "notes.txt.png": "in no split",
    }
    assert any("no picture is taken from extra/" in doubt for doubt in found.doubts)


def test_a_split_whose_name_is_not_known_is_no_share_of_training(root) -> None:
    (root / "validation").rename(root / "validaton")
    with pytest.raises(DataError, match="none to validate with: validaton has the same") as raised:
        read(root)
    assert raised.value.fix.startswith("rename it to validation; or take it away")
    for name in ("masks", "household", "text"):
        (root / "validaton").rename(root / name)
        assert any(f"no picture is taken from {name}/" in doubt for doubt in read(root).doubts)
        (root / name).rename(root / "validaton")
    (root / "validaton").rename(root / "hold_out")
    with pytest.raises(DataError, match="none to validate with: hold_out has"):
        read(root)
    (root / "hold_out").rename(root / "masks")
    assert any("no picture is taken from masks/" in doubt for doubt in read(root).doubts)


def test_classes_one_level_too_deep_in_both_splits(tmp_path) -> None:
    names = [f"{split}/all/{name}/0.png" for split in ("train", "val") for name in "ab"]
    with pytest.raises(DataError, match="has one class, all; deeper down are a, b") as raised:
        read(lay(tmp_path, dict.fromkeys(names, 7)))
    both = f"out of {tmp_path / 'train/all'} and of {tmp_path / 'val/all'}"
    assert raised.value.fix == f"move the class folders one level up: {both}"


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (["a/b/0.png", "a/c/0.png"], "name it: --data.root {}/a;"),
        (["a/b/0.png", "a/c/d/0.png"], "name it: --data.root {}/a;"),
        (["a/x/b/0.png", "a/x/c/0.png"], "name it: --data.root {}/a/x;"),
        (["train/a/b/0.png", "train/a/c/0.png"], "name it: --data.root {}/train/a;"),
        (["a/0.png", "a/b/0.png"], "lay pictures out as DIR/train/CLASS"),
    ],
)
def test_a_folder_above_that_of_the_classes(tmp_path, names, fix) -> None:
    with pytest.raises(DataError, match="has one class, a; deeper down are b") as raised:
        read(lay(tmp_path, dict.fromkeys(names, 7)))
    assert raised.value.fix.startswith(fix.format(tmp_path))


def test_folders_without_splits_are_classes(tmp_path) -> None:
    layout = {f"{name}/{n}.png": 90 for name in ("train", "bus") for n in range(10)}
    found = read(lay(tmp_path / "a", layout), holdout=0.25)
    assert found.classes == ["bus", "train"]
    assert (len(found.train), len(found.validation)) == (15, 5)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["train/0.png", "validation/0.png"],
            "has splits, train, validation, and no class",
        ),
        (["a/b/0.png", "a/c/0.png"], "has one class, a; deeper down are b, c"),
        (["a/b/0.png", "a/c/d/0.png"], "has one class, a; deeper down are b, c"),
        (["a/x/b/0.png", "a/x/c/0.png"], "has one class, a; deeper down are b, c"),
        (["a/0.png", "a/b/0.png"], "has one class, a; deeper down are b"),
        (["trian/a/0.png", "trian/b/0.png", "val/a/0.png", "val/b/0.png"], "rename trian to train"),
        (["a/0.png", "a/1.png"], "of another class into a folder beside it: {}/ANOTHER"),
        (["train/a/0.png"], "of another class into a folder beside it: {}/train/ANOTHER"),
        (["train/a/0.png", "train/b/0.png", "val/a/0.png", "valid/a/0.png"], "several such splits"),
        (["test/a/0.png", "val/a/0.png"], "no split named train, only test, val"),
        (
            ["train/Cat/0.png", "train/cat/0.png"],
            "differ in blanks, capitals, zeros before a number or a .0 alone",
        ),
        (
            ["train/a/0.png", "train/a /0.png"],
            "differ in blanks, capitals, zeros before a number or a .0 alone",
        ),
        (["train/caf\u00e9/0.png", "train/cafe\u0301/0.png"], "differ in how an accent is written"),
        (["train/a/0.txt", "train/b/0.txt"], "holds no pictures in class folders, only"),
    ],
)
def test_layouts_that_are_not_clear(tmp_path, names, said) -> None:
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            picture(path, 90)
        else:
            path.write_text("words")
    refused(tmp_path / "data", said.format(tmp_path / "data"))


def test_an_accent_may_be_written_in_either_way(tmp_path) -> None:
    names = ["train/caf\u00e9/0.png", "validation/cafe\u0301/0.png", "train/x/0.png"]
    found = read(lay(tmp_path / "data", dict.fromkeys(names, 50)))
    assert found.classes == ["caf\u00e9", "x"]


def test_letters_are_classes(tmp_path) -> None:
    names = [f"{split}/{name}/0.png" for split in ("train", "val") for name in "aA"]
    assert read(lay(tmp_path / "data", dict.fromkeys(names, 50))).classes == ["A", "a"]


def test_pictures_of_both_splits_and_of_two_classes_are_told(root) -> None:
    same = (root / "train" / "dark" / "0.png").read_bytes()
    (root / "validation" / "light" / "0.png").write_bytes(same)
    (root / "train" / "light" / "3.png").write_bytes(same)
    one, two = read(root).doubts
    assert one == (
        "1 of 4 validation pictures is a training picture as well: validation/light/0.png"
    )
    assert two == "1 training picture is in another class as well: train/light/3.png"
    assert read(root, on_bad="skip").sha256 == read(root).sha256


# Sixteen bits.


def test_sixteen_bits_that_use_a_few_are_asked_about(root) -> None:
    for path in root.rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(path)).astype(np.uint16) * 15).save(path)
    refused(root, r"12 pictures have more than 8 bits, and none is brighter than 4\.\d % ")
    found = read(root, white=4095)
    assert found.mean[0] == pytest.approx(135.5 * 15 / 4095, abs=0.02)
    assert read(root, white=65535).mean[0] < 0.05
    refused(root, r"has the value 31\d\d, above data.white \(1000\)", white=1000)


def test_white_where_nothing_has_more_than_eight_bits(root) -> None:
    with pytest.raises(UsageError, match=r"data.white is set, and no picture has more than 8 bits"):
        read(root, white=4095)


def deep_png(path: Path, values: np.ndarray) -> None:
    """A PNG of 16 bits in colour, which Pillow does not write."""
    path.write_bytes(odd.png(np.dstack([values.astype(np.uint16)] * 3), 16, 2))


def test_sixteen_bits_in_colour_are_asked_about_as_well(root) -> None:
    for path in root.rglob("*.png"):
        deep_png(path, odd.grey(100, 4095, np.uint16))
    refused(root, r"12 pictures have more than 8 bits, and none is brighter than 5\.9 % of white")
    refused(root, "data.white is for grey ones", white=4095)
    for path in root.rglob("*.png"):
        deep_png(path, odd.grey(100, 60_000, np.uint16))
    assert read(root).mean[0] == pytest.approx(0.46, abs=0.01)


def test_what_is_transparent_is_no_bright_pixel(root) -> None:
    nothing = odd.chunk(b"tRNS", struct.pack(">H", 65535))
    for path in root.rglob("*.png"):
        path.write_bytes(odd.png(odd.grey(300, 65535, np.uint16), 16, 0, nothing))
    refused(root, "12 pictures have more than 8 bits, and none is brighter than 0.5 %")


def test_an_error_of_the_disk_is_not_remembered_as_a_damaged_picture(root, monkeypatch) -> None:
    from train.data.sources.files import Files

    real = Files.read

    def failing(self, number):
        if number == 3:
            raise OSError(5, "Input/output error")
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "read", failing)
        refused(root, r"cannot read train/dark/3\.png: Input/output error", on_bad="skip")
    assert len(read(root, on_bad="skip").train) == 8


def test_names_of_columns_where_there_are_none(root) -> None:
    with pytest.raises(UsageError, match=r"data.label_column is set, and class folders have no"):
        read(root, label_column="x")


@pytest.mark.parametrize("count", range(6, 14))
def test_each_class_has_a_picture_to_train_on(tmp_path, count) -> None:
    """Whichever are drawn: those of one picture each are some of them."""
    often = [f"{name}/{n}.png" for name in "ab" for n in range(count)]
    once = [f"once-{n}/0.png" for n in range(count)]
    found = read(lay(tmp_path, dict.fromkeys(often + once, 7)), holdout=0.5)
    assert {*found.train.labels.tolist()} == {*range(2 + count)}
    assert len(found.train) + len(found.validation) == 3 * count
    assert {*found.validation.labels.tolist()} <= {0, 1}


@pytest.mark.parametrize("form", ["folders", "list", "tables", "idx"])
def test_a_holdout_where_there_is_a_validation_split(root, mnist, tmp_path, form) -> None:
    knobs = {"root": root}
    if form == "list":
        (root / "metadata.csv").write_text(
            "file_name,label,split\n" + "".join(
                f"{split}/dark/{n}.png,{n % 2},{split}\n"
                for split in ("train", "validation") for n in range(2)
            )
        )  # fmt: skip
    elif form == "tables":
        knobs = {"root": tmp_path / "parquet"}
        files = [(root / f"train/dark/{n}.png").read_bytes() for n in range(4)]
        for split in ("train", "validation"):
            for_split = Dataset.from_dict(
                {"image": [{"bytes": b, "path": None} for b in files], "label": [0, 1] * 2}
            ).cast_column("image", Pictures())
            (tmp_path / "parquet").mkdir(exist_ok=True)
            for_split.to_parquet(tmp_path / "parquet" / f"{split}.parquet")
    elif form == "idx":
        knobs = {"root": mnist, "source": "idx"}
    config = {"source": "folder", **knobs, "root": str(knobs["root"])}
    said = "data.holdout does nothing: the source has a validation split of its own"
    assert said in load(Data(**config, holdout=0.3)).doubts
    assert said not in load(Data(**config)).doubts


def shown(cli, root: Path) -> str:
    """What `make data` prints of a folder."""
    words = ["--data.source", "folder", "--data.root", root, "--batch_size", 4]
    return cli("data", *words, "--picture", root.parent / "p.png").out


def test_of_what_is_left_out_for_one_reason_some_are_listed(tmp_path, cli) -> None:
    root = lay(tmp_path / "set", {f"{n:02}.png": n for n in range(40)})
    named = "".join(f"{n:02}.png,{'ab'[n // 4 % 2]}\n" for n in range(0, 40, 4))
    (root / "labels.csv").write_text(f"file_name,label\n{named}")
    said = shown(cli, root)
    assert "left out: 30\n" in said
    assert said.count(": in no list\n") == 20 + 1
    assert "\n  … and 10 more: in no list\n" in said


def test_a_line_break_in_a_class_is_written_out(tmp_path, cli) -> None:
    layout = {f"{name}/{n}.png": n for name in ("a", "b\nc") for n in range(20)}
    root = lay(tmp_path / "set", layout)
    said = shown(cli, root)
    assert "\n  b\\nc: " in said


def test_a_class_without_a_validation_picture_is_named(root, tmp_path) -> None:
    assert not any("without a validation picture" in doubt for doubt in read(root).doubts)
    shutil.rmtree(root / "validation/dark")
    (doubt,) = (d for d in read(root).doubts if "without a validation picture" in d)
    assert "picture: dark; " in doubt
    assert "holdout" not in doubt
    layout = {f"a/{n}.png": n for n in range(40)} | {"rare/x.png": 90}
    (doubt,) = (d for d in read(lay(tmp_path / "one", layout)).doubts if "without a val" in d)
    assert doubt.endswith("rare; no figure says how well they are learned: lay out a split that has"
                          " each, or raise data.holdout")  # fmt: skip


@pytest.mark.parametrize("form", ["cls", "txt", "json"])
def test_a_webdataset(root, tmp_path, form) -> None:
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/train.tar", "w") as file:
        for n in range(8):
            label = {"cls": f"{n % 2}", "txt": "ab"[n % 2], "json": f'{{"label": {n % 2}, "w": 1}}'}
            for name, data in (
                (f"{n:06}.png", (root / f"train/dark/{n % 4}.png").read_bytes()),
                (f"{n:06}.{form}", label[form].encode()),
            ):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))
    if form == "json":
        says = r"the column json holds records \(label, w\), and no class"
        refused(tmp_path / "shards", says, label_column="json")
        return
    known = {} if form == "cls" else {"label_column": form}
    found = read(tmp_path / "shards", holdout=0.25, **known)
    assert found.classes == ["0", "1"] if form == "cls" else ["a", "b"]
    assert len(found.train) + len(found.validation) == 8


def test_links_are_counted_once_and_folders_are_not_endless(root, tmp_path) -> None:
    (root / "loop").symlink_to("loop")
    more = root / "train" / "dark" / "more"
    lay(tmp_path / "elsewhere", {"x.png": 60})
    for name in ("one", "two"):
        (root / "train" / "dark" / name).symlink_to(tmp_path / "elsewhere")
    found = read(root)
    assert len(found.train) == 9
    assert found.left_out["train/dark/two"] == "a link to a folder that was read"
    for _ in range(210):
        more.mkdir()
        more = more / "d"
    refused(root, "too many folders deep")


# Lists.


def listed(root: Path, text: str | bytes, name: str = "metadata.csv") -> Path:
    """Pictures in one folder, and a list of them."""
    lay(root / "pictures", {f"{n}.png": 20 * n for n in range(10)})
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        ("file_name,species,class", "{},{n},{m}", "two columns that may be the classes, class and"),
        ("file_name,label,is_test", "{},{m},{n}", "a column is_test, which seems to divide"),
        ("file_name,label,fold", "{},{m},{n}", "a column fold, which seems to divide"),
        ("file_name,label,Set", "{},{m},{s}", "a column Set, which seems to divide"),
        ("file_name,label,Usage", "{},{m},{f}", "a column Usage, which seems to divide"),
        ("file_name,label,Teil", "{},{m},{g}", "a column Teil, which seems to divide"),
    ],
)
def test_columns_that_may_be_meant_are_refused(root, head, row, said) -> None:
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*.png"))
    words = {
        "s": ("Train", "Valid"),
        "f": ("Training", "PublicTest"),
        "g": ("Training", "Validierung"),
    }
    rows = [
        row.format(name, n=n % 3, m=n % 2, **{key: pair[n % 5 > 3] for key, pair in words.items()})
        for n, name in enumerate(names)
    ]
    listed(root, "\n".join([head, *rows]))
    refused(root, said)


def test_a_column_of_other_words_that_could_divide_is_told(root) -> None:
    """In other proportions it is told of nobody: sex, and what is rare."""
    for name, other in (("train", "some"), ("validation", "more")):
        (root / name).rename(root / other)
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*.png"))
    count = len(names)
    for rare, told in ((count // 4, True), (count // 2, False), (0, False)):
        rows = [f"{name},{n % 2},{'pl'[n >= rare]}" for n, name in enumerate(names)]
        listed(root, "\n".join(["file_name,label,Teil", *rows]))
        said = [each for each in read(root).doubts if "a column Teil, which is not read" in each]
        assert len(said) == told, rare


def test_names_whose_accents_are_written_otherwise(tmp_path) -> None:
    names = [f"pictures/Bl\u00fcte {n}.png" for n in range(4)]
    lay(tmp_path, dict.fromkeys(names, 90))
    rows = [unicodedata.normalize("NFD", f"{name},{n % 2}") for n, name in enumerate(names)]
    text = "\n".join(["file_name,label", *rows])
    (tmp_path / "metadata.csv").write_text(text)
    with pytest.raises(DataError, match="there are no such pictures") as raised:
        read(tmp_path)
    command = re.search(r"python3 -c '(.*)'", raised.value.fix).group(1)
    mended = subprocess.run(
        [sys.executable, "-c", command], input=text, capture_output=True, text=True, check=True
    )
    (tmp_path / "metadata.csv").write_text(mended.stdout)
    assert read(tmp_path, holdout=0.5).classes == ["0", "1"]


def test_a_label_or_another_column_with_such_words_divides_nothing(root) -> None:
    (root / "validation").rename(root / "more")
    (root / "train").rename(root / "some")
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*.png"))
    words = [("train", "test"), ("bus", "eval")]
    rows = [",".join([name, *words[n % 2]]) for n, name in enumerate(names)]
    listed(root, "\n".join(["file_name,label,kind", *rows]))
    assert read(root).classes == ["bus", "train"]


def test_two_columns_that_say_the_same_classes_are_one(root) -> None:
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*.png"))
    split = [Path(name).parts[0] for name in names]
    rows = [f"{name},{n % 2},{'ab'[n % 2]},{split[n]}" for n, name in enumerate(names)]
    listed(root, "\n".join(["file_name,label,class_name,split", *rows]))
    assert read(root).classes == ["0", "1"]


def lines(pattern: str, head: str, count: int = 10) -> str:
    return head + "".join(pattern.format(n=n, c="ab"[n % 2], i=n % 2) for n in range(count))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", lines("pictures/{n}.png,{c}\n", "file_name,label\n")),
        ("labels.csv", lines('"pictures/{n}.png";"{c}"\r\n', "Path;Class\r\n")),
        ("annotations.tsv", lines("pictures/{n}.png\t{c}\n", "image\ttarget\n")),
        ("metadata.csv", lines("pictures/{n}.png,{c}\n", "\ufefffile_name,label\n")),
        ("metadata.csv", lines("pictures/{n}.png,{c}\n", "file_name,label\n").encode("utf-16")),
        ("metadata.csv", lines("pictures\\{n}.png,{c}\n", "file_name,label\n")),
        ("metadata.jsonl", lines('{{"file_name": "pictures/{n}.png", "label": "{c}"}}\n', "\n")),
    ],
)  # fmt: skip
def test_a_list_of_names(tmp_path, name, text) -> None:
    found = read(listed(tmp_path, text, name))
    assert found.classes == ["a", "b"]
    assert (len(found.train), len(found.validation)) == (8, 2)
    assert found.left_out == {}
    alone = load(Data(source="folder", root=str(tmp_path / name)))
    assert alone.sha256 == found.sha256


@pytest.mark.parametrize("named", ["{n}", "{n}.png"])
def test_pictures_are_found_by_their_names_where_each_is_there_once(tmp_path, named) -> None:
    """As Kaggle's lists name them: without folder, or suffix, or both."""
    usual = read(listed(tmp_path, lines("pictures/{n}.png,{c}\n", "file_name,label\n")))
    found = read(listed(tmp_path, lines(f"{named},{{c}}\n", "image_id,label\n")))
    assert found.sha256 == usual.sha256
    (said,) = found.doubts
    assert re.fullmatch(r"10 pictures were found by their names: 0\S* is pictures/0\.png", said)
    (tmp_path / "more").mkdir()
    shutil.copy(tmp_path / "pictures/3.png", tmp_path / "more/3.png")
    refused(tmp_path, r"no such picture, but metadata.csv:5 names it")
    listed(tmp_path, lines("other/{n}.png,{c}\n", "file_name,label\n"))
    refused(tmp_path, r"write paths from the list's folder, with .* pictures/\d\.png, not other/\d")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_arrays_are_for_a_function(tmp_path, suffix) -> None:
    (tmp_path / f"all{suffix}").write_bytes(b"arrays")
    refused(tmp_path / f"all{suffix}", r"comes from a function: --data\.source")


def test_folds_are_no_classes(tmp_path) -> None:
    for fold in range(3):
        for name in ("cat", "dog"):
            picture(tmp_path / f"fold{fold}/{name}/1.png", 90)
    refused(tmp_path, r"has folds, fold0, fold1, fold2, and in each of them cat, dog")


def test_labels_that_are_numbers(tmp_path) -> None:
    text = lines("pictures/{n}.png,{i}\n", "file_name,label\n")
    assert read(listed(tmp_path, text)).classes == ["0", "1"]
    listed(tmp_path, text.replace(",1\n", ",10\n").replace(",0\n", ",9\n"))
    found = read(tmp_path)
    assert found.classes == ["9", "10"]  # in the order of numbers
    listed(tmp_path, text.replace(",1\n", ",01\n").replace(",0\n", ",00\n"))
    assert read(tmp_path).classes == ["00", "01"]


def test_columns_of_other_names(tmp_path) -> None:
    listed(tmp_path, lines("pictures/{n}.png,x,{c}\n", "where,label,what\n"))
    refused(tmp_path, "no column file_name; its columns: where, label, what")
    found = read(tmp_path, image_column="where", label_column="what")
    assert found.classes == ["a", "b"]


def test_a_column_of_splits(tmp_path) -> None:
    text = lines("pictures/{n}.png,{c},train\n", "file_name,label,split\n", 6)
    text += "pictures/6.png,a,val\npictures/7.png,b,val\npictures/8.png,a,test\n"
    found = read(listed(tmp_path, text))
    assert (len(found.train), len(found.validation)) == (6, 2)
    assert found.left_out == {
        "pictures/9.png": "in no list",
        "test, 1 picture": "not used: validation is val",
    }
    listed(tmp_path, text.replace("b,val", "b,"))
    refused(tmp_path, r"1 rows have no split: metadata\.csv:9")
    listed(tmp_path, text.replace("b,val", "b,mine"))
    refused(tmp_path, r"metadata\.csv:9 is of the split mine")


def test_a_list_for_each_split(tmp_path) -> None:
    listed(tmp_path, lines("pictures/{n}.png,{c}\n", "file_name,label\n", 8), "train.csv")
    text = "file_name,label\npictures/8.png,a\npictures/9.png,b\n"
    (tmp_path / "val.csv").write_text(text)
    found = read(tmp_path)
    assert (len(found.train), len(found.validation)) == (8, 2)
    (tmp_path / "val.csv").write_text(text.replace(",b", ",c"))
    refused(tmp_path, r"1 class of the validation split has no training picture: c")
    (tmp_path / "metadata.csv").write_text(text)
    refused(tmp_path, r"has metadata.csv and train.csv, which may name the same pictures")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("pictures/3.png", "pictures/x.png"),
            r"x\.png \(no such picture, but metadata.csv:5",
        ),
        (("pictures/3.png,b", "pictures/2.png,b"), "1 row gives a picture another label"),
        (("pictures/3.png,b", "pictures/3.png,"), r"1 of the training labels are missing.*csv:5"),
        (("pictures/3.png,b", "pictures/3.png"), "line 5 has not as many fields"),
        (("pictures/3.png,b", "pictures/3.png,b,c"), "line 5 has not as many fields"),
        (("pictures/3.png,b", ",b"), r"metadata.csv:5 names no picture"),
        (("pictures/3.png,b", "/etc/passwd,b"), r"names /etc/passwd, which lies outside"),
        (("pictures/3.png,b", "../x.png,b"), r"names \.\./x\.png, which lies outside"),
        (("pictures/3.png,b", "pictures/3.png,B"), "'B' and 'b'|'b' and 'B'|no training|letters"),
        (("pictures/3.png,b", 'pictures/3.png,"b'), "cannot read .*metadata.csv"),
    ],
)
def test_lists_that_are_wrong(tmp_path, change, said) -> None:
    text = lines("pictures/{n}.png,{c}\n", "file_name,label\n")
    if "B" in said:  # a letter is a class of its own
        text, change = text.replace(",b", ",bus").replace(",a", ",car"), ("3.png,bus", "3.png,Bus")
        said = "differ in blanks, capitals, zeros before a number or a .0 alone"
    refused(listed(tmp_path, text.replace(*change)), said)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            ("0", "1", "0.0", "1"),
            "'0' and '0.0' differ in blanks, capitals, zeros before a number or a .0 alone",
        ),
        (("0.5", "1", "2", "1"), "are numbers with fractions, such as 0.5, and not classes"),
        (("0.0", "1.0", "2.0", "1.0"), None),
        (("v0.5", "1", "2", "1"), None),
    ],
)
def test_numbers_of_a_table_that_had_gaps_and_amounts(tmp_path, labels, said) -> None:
    rows = [f"pictures/{n}.png,{labels[n % 4]}" for n in range(10)]
    root = listed(tmp_path, "file_name,label\n" + "\n".join(rows) + "\n")
    if said:
        refused(root, said)
    else:
        assert load(Data(source="folder", root=str(root))).classes == sorted({*labels})


def test_a_list_that_contradicts_the_folders(root) -> None:
    rows = [f"{n}/{i}.png,{n}" for n in ("dark", "light") for i in range(4)]
    rows[0] = "dark/0.png,light"
    (root / "train" / "metadata.csv").write_text("\n".join(["file_name,label", *rows]) + "\n")
    refused(root, r"1 row gives a picture another class than the folder.*metadata\.csv:2")


def test_a_list_may_name_what_lies_elsewhere_where_that_is_allowed(tmp_path) -> None:
    elsewhere = lay(tmp_path / "elsewhere", {f"{n}.png": 20 * n for n in range(10)})
    root = tmp_path / "data"
    root.mkdir()
    text = lines("../elsewhere/{n}.png,{c}\n", "file_name,label\n")
    for path in ("../elsewhere", str(elsewhere)):
        (root / "metadata.csv").write_text(text.replace("../elsewhere", path))
        refused(root, "which lies outside of")
        assert len(read(root, outside=True).train) == 8
    (tmp_path / "link").symlink_to(elsewhere)
    (elsewhere / "metadata.csv").write_text(
        lines(f"{elsewhere}/{{n}}.png,{{c}}\n", "file_name,label\n")
    )
    assert len(read(tmp_path / "link").train) == 8


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "metadata.jsonl",
            '{"file_name": "pictures/0.png", "label": ["x"]}\n',
            "no number and no name",
        ),
        (
            "metadata.csv",
            "file_name,label,label\npictures/0.png,a,b\n",
            "two columns have the same",
        ),
        (
            "metadata.csv",
            lines("pictures/{n}.png,{c}\n", f"path,label\n{'x' * 5000},a\n"),
            "1 of 11 pictures .*no such picture",
        ),
    ],
)
def test_lists_that_no_program_wrote(tmp_path, name, text, said) -> None:
    refused(listed(tmp_path, text, name), said)


def test_labels_that_look_like_numbers(tmp_path) -> None:
    text = lines("pictures/{n}.png,--{i}\n", "file_name,label\n")
    assert read(listed(tmp_path, text)).classes == ["--0", "--1"]


def test_a_row_twice(tmp_path) -> None:
    text = lines("pictures/{n}.png,{c}\n", "file_name,label\n") + "pictures/0.png,a\n"
    found = read(listed(tmp_path, text))
    assert found.left_out == {"metadata.csv:12: pictures/0.png": "listed twice"}


# Files of MNIST's family.


def idx(path: Path, values: np.ndarray, pack: bool = False) -> None:
    data = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if pack else data)


@pytest.fixture
def mnist(tmp_path) -> Path:
    random = np.random.default_rng(0)
    for name, count, pack in (("train", 40, True), ("t10k", 10, False)):
        end = ".gz" * pack
        pixels = random.integers(0, 256, (count, 6, 5), np.uint8)
        idx(tmp_path / f"{name}-images-idx3-ubyte{end}", pixels, pack)
        idx(
            tmp_path / f"{name}-labels-idx1-ubyte{end}", np.arange(count, dtype=np.uint8) % 10, pack
        )
    return tmp_path


def test_idx_files(mnist) -> None:
    found = load(Data(source="idx", root=str(mnist)))
    assert (len(found.train), len(found.validation)) == (40, 10)
    assert found.train.shape == (1, 6, 5)
    assert found.classes == [*"0123456789"]
    assert found.train.labels[:3].tolist() == [0, 1, 2]
    first = np.random.default_rng(0).integers(0, 256, (40, 6, 5), np.uint8)
    assert np.array_equal(found.train.resident[:, 0].numpy(), first)
    assert read(mnist).sha256 == found.sha256  # a folder of them is known by what it holds
    scaled = load(Data(source="idx", root=str(mnist), size=4))
    assert scaled.train.images(range_of(scaled.train)).shape == (40, 1, 4, 4)


def test_idx_files_of_a_set_with_a_name_and_of_several_sets(mnist) -> None:
    usual = read(mnist)
    for file in list(mnist.iterdir()):
        file.rename(mnist / f"emnist-letters-{file.name.replace('t10k', 'test')}")
    again = read(mnist)
    assert again.classes == usual.classes
    assert again.train.resident.equal(usual.train.resident.mT)  # as EMNIST stores them
    idx(mnist / "emnist-digits-train-images-idx3-ubyte", np.zeros((2, 6, 5), np.uint8))
    with pytest.raises(DataError, match="several sets: emnist-digits, emnist-letters") as error:
        read(mnist)
    assert "a folder of its own" in error.value.fix
    for kind in ("images-idx3", "labels-idx1"):
        file = mnist / f"emnist-letters-train-{kind}-ubyte.gz"
        file.rename(mnist / f"train-{kind}-ubyte.gz")
    found = read(mnist)
    assert (found.train.shape, len(found.train) + len(found.validation)) == ((1, 6, 5), 40)
    assert "files of other sets are not read: emnist-digits, emnist-letters" in found.doubts


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("t10k-images-idx3-ubyte", lambda d: d[:-1], "says 10 × 6 × 5 values, and holds fewer"),
        ("t10k-images-idx3-ubyte", lambda d: b"\0\0\x0d" + d[3:], "no idx file of bytes"),
        ("t10k-images-idx3-ubyte", lambda d: b"", "cannot be read"),
        (
            "t10k-images-idx3-ubyte",
            lambda d: b"\0\0\x08\x03" + b"\xff" * 12,
            "values, and holds fewer",
        ),
        ("train-images-idx3-ubyte.gz", lambda d: d[:-9], "cannot be read"),
        ("train-labels-idx1-ubyte.gz", None, "no train-labels-idx"),
        ("t10k-labels-idx1-ubyte", None, "has test images, and no labels"),
        (
            "t10k-labels-idx1-ubyte",
            lambda d: d[:7] + b"\x09" + d[8:-1],
            "10 images, .* 9 labels",
        ),
        ("t10k-labels-idx1-ubyte", lambda d: d[:-1] + b"\x63", "no training picture: 99"),
    ],
)
def test_idx_files_that_are_damaged(mnist, name, change, said) -> None:
    path = mnist / name
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    with pytest.raises(DataError, match=said):
        load(Data(source="idx", root=str(mnist)))


# CIFAR, as torchvision leaves it.


def cifar(root: Path, name: str) -> Path:
    """What the archives hold, in protocol 2, in which they were written."""
    random = np.random.default_rng(1)
    hundred = name == "cifar100"
    folder = root / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    count, key = (100, "fine_labels") if hundred else (10, "labels")
    parts = (
        ["train", "test"] if hundred else [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    )
    for part in parts:
        said = {
            "batch_label": part,
            key: [n % count for n in range(2 * count)],
            "data": random.integers(0, 256, (2 * count, 3072), np.uint8),
            "filenames": ["x.png"] * 2 * count,
        }
        (folder / part).write_bytes(pickle.dumps(said, protocol=2))
    meta, names = ("meta", "fine_label_names") if hundred else ("batches.meta", "label_names")
    said = {names: [f"class {n:03}" for n in range(count)], "num_vis": 3072}
    (folder / meta).write_bytes(pickle.dumps(said, protocol=2))
    return root


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path, name) -> None:
    from torchvision import datasets as theirs

    root = cifar(tmp_path, name)
    found = load(Data(source=name, root=str(root)))
    kind = theirs.CIFAR100 if name == "cifar100" else theirs.CIFAR10
    kind._check_integrity = lambda self: True  # its own check is of the real files' digests
    sys.modules[kind.__module__].check_integrity = lambda *_: True
    for split, train in ((found.train, True), (found.validation, False)):
        there = kind(str(root), train=train)
        assert np.array_equal(split.resident.permute(0, 2, 3, 1).numpy(), there.data)
        assert split.labels.tolist() == there.targets
    assert found.classes == there.classes
    assert not found.held_out  # what evaluate --all asks
    assert load(Data(source=name, root=str(next(root.iterdir())))).sha256 == found.sha256


class _Harm:
    def __reduce__(self):
        return (print, ("harm",))


@pytest.mark.parametrize("said", [_Harm(), {"data": _Harm()}, [1], {}, {"data": np.zeros((3, 3))}])
def test_cifar_files_run_nothing(tmp_path, capsys, said) -> None:
    root = cifar(tmp_path, "cifar100")
    (root / "cifar-100-python" / "train").write_bytes(pickle.dumps(said, protocol=2))
    with pytest.raises(DataError, match=r"train (cannot be read|is no file|holds no pictures)"):
        load(Data(source="cifar100", root=str(root)))
    assert "harm" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "call", ["np.ndarray((500, 3072), 'u1')", "np.dtype('O')", "np.ndarray(9)"]
)
def test_cifar_files_make_no_arrays_of_their_own(tmp_path, call) -> None:
    """Called with what a file says, NumPy's own would take any memory for pixels."""

    class Made:
        def __reduce__(self):
            kind, given = call[3:].split("(", 1)
            return getattr(np, kind), eval(f"({given[:-1]},)")

    root = cifar(tmp_path, "cifar100")
    said = {"data": Made(), "fine_labels": [0] * 500}
    (root / "cifar-100-python" / "train").write_bytes(pickle.dumps(said, protocol=2))
    with pytest.raises(DataError, match=r"train (cannot be read|holds no pictures)"):
        load(Data(source="cifar100", root=str(root)))


def test_cifar_that_is_not_there(tmp_path) -> None:
    with pytest.raises(DataError, match=r"there is no .*cifar-10-batches-py.*uoft-cs/cifar10"):
        load(Data(source="cifar10", root=str(tmp_path)))


# A function of one's own.


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "my_data.py"
    sys.modules.pop("my_data", None)


TABLES = """from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
    from PIL import Image as P
    features = Features({'image': Image(), 'label': ClassLabel(names=['a', 'b'])})
    x = [P.fromarray(p) for p in np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4)]
    d = Dataset.from_dict({'image': x, 'label': [0, 1] * 6}, features=features)
    return DatasetDict(train=d, validation=d)"""
PIXELS = "np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4)"


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (f"x = {PIXELS}; y = [n % 2 for n in range(12)]; return (x, y), (x[:4], y[:4])", (1, 4, 4)),
        (f"x = {PIXELS}; y = np.array(['a', 'b'] * 6); return (x, y), (x[:4], y[:4])", (1, 4, 4)),
        (f"x = np.stack([{PIXELS}] * 3, -1); y = [0, 1] * 6\n    return (x, y), (x, y)", (3, 4, 4)),
        (f"x = {PIXELS}; y = [np.int64(n) for n in (0, 1) * 6]; return ((x, y),) * 2", (1, 4, 4)),
        (f"x = {PIXELS}; y = (n % 2 for n in range(12)); return (x, y), (x, [0] * 12)", (1, 4, 4)),
        (TABLES, (1, 4, 4)),
    ],
)  # fmt: skip
def test_a_function_of_one_s_own(mine, body, shape) -> None:
    mine.write_text(f"import numpy as np\ndef tables(config):\n    {body}\n")
    found = load(Data(source="my_data:tables"))
    assert found.train.shape == shape
    assert len(found.train) == 12
    assert len(found.classes) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 5", "returned int.*return a DatasetDict"),
        ("return 5, 6", "returned int and int"),
        ("raise ValueError('no such luck')", r"failed \(ValueError: no such luck\)"),
        ("return ([[1]], [0]), ([[1]], [0])", "pixels of int64 with 2 dimensions"),
        (f"x = {PIXELS}; return (x, [0]), (x, [0])", "12 pictures with 1 labels"),
        (f"x = {PIXELS}; return (x, [None] * 12), (x, [0] * 12)", "12 of the training labels"),
        (f"x = {PIXELS}; return (x[:0], []), (x, [0] * 12)", "a split without pictures"),
        (f"x = {PIXELS}; y = [0, 1] * 6; return (x, y), (x[:, :2], y)", "pictures have 2 sizes"),
        (f"x = {PIXELS}; return (x, 5), (x, 5)", "labels that are no list"),
        (f"x = {PIXELS}[:, :0]; return (x, [0] * 12), (x, [0] * 12)", "pictures without pixels"),
        ("import nowhere_at_all", r"failed \(ModuleNotFoundError"),
    ],
)
def test_a_function_that_returns_something_else(mine, body, said) -> None:
    mine.write_text(f"import numpy as np\ndef tables(config):\n    {body}\n")
    with pytest.raises(DataError, match=said):
        load(Data(source="my_data:tables"))


def test_knobs_of_files_where_a_function_returns_pixels(mine) -> None:
    mine.write_text(
        f"import numpy as np\ndef f(_):\n    x = {PIXELS}; return ((x, [0, 1] * 6),) * 2"
    )
    with pytest.raises(UsageError, match=r"data\.on_bad is set, and my_data:f returned pixels"):
        load(Data(source="my_data:f", on_bad="skip"))
    assert len(load(Data(source="my_data:f", holdout=0.3)).train) == 12  # it may have looked


def test_a_function_that_is_not_there(mine) -> None:
    mine.write_text("x = 1\n")
    for source, said in (("my_data:x", "no function x"), ("nowhere.at:all", "cannot be imported")):
        with pytest.raises(UsageError, match=said):
            load(Data(source=source))


def test_synthetic_pictures_have_the_shape_that_is_asked_for() -> None:
    found = load(Data(source="synthetic", size=12, channels=1))
    assert found.train.shape == (1, 12, 12)
    assert len(found.train) + len(found.validation) == 2048
    assert load(Data(source="synthetic", size=12, channels=1)).sha256 == found.sha256


# Tables that others wrote.


def test_parquet_without_notes_of_the_library(tmp_path, root) -> None:
    import pyarrow
    import pyarrow.parquet

    data = [path.read_bytes() for path in sorted(root.rglob("train/*/*.png"))]
    for kind in ("struct", "binary"):
        column = [{"bytes": d, "path": None} for d in data] if kind == "struct" else data
        table = pyarrow.table({"picture": column, "label": ["dark", "light"] * 4})
        place = tmp_path / kind
        place.mkdir()
        pyarrow.parquet.write_table(table, place / "train.parquet")
        found = read(place)
        assert found.classes == ["dark", "light"]
        assert len(found.train) + len(found.validation) == 8


def test_rows_without_a_picture_are_bad(tmp_path, root) -> None:
    data = [path.read_bytes() for path in sorted(root.rglob("train/*/*.png"))]
    rows = [{"bytes": d, "path": "x.png"} for d in data]
    rows[3] = {"bytes": None, "path": None}
    place = table(tmp_path / "tables", rows)
    refused(place, r"1 of 8 pictures cannot be used: row 3 of training \(the row is empty\)")
    found = read(place, on_bad="skip")
    assert len(found.train) + len(found.validation) == 7


def table(place: Path, rows: list[dict]) -> Path:
    place.mkdir()
    Dataset.from_dict({"image": rows, "label": [0, 1] * 4}).to_parquet(str(place / "p.parquet"))
    return place


def test_files_that_are_not_among_the_tables_are_named(tmp_path, root) -> None:
    data = [path.read_bytes() for path in sorted(root.rglob("train/*/*.png"))]
    rows = [{"bytes": d, "path": None} for d in data]
    place = table(tmp_path / "tables", rows)
    (place / "more.png").write_bytes(data[0])
    assert read(place).left_out == {"more.png": "not among the tables"}
    for number in range(9):  # `datasets` reads what there is most of, and says nothing
        (place / f"{number}.png").write_bytes(data[0])
    refused(place, "holds tables among other data, and p.parquet would be left out")


def test_what_was_seen_is_kept_and_seen_again_after_a_change(root, tmp_path, monkeypatch) -> None:
    from train.data import scan

    looked = []
    real = scan.decode
    monkeypatch.setattr(scan, "decode", lambda *given: looked.append(1) or real(*given))
    knobs = {"cache_dir": str(tmp_path / "cache")}
    first = read(root, **knobs)
    assert len(looked) == 12
    assert read(root, **knobs).sha256 == first.sha256
    assert len(looked) == 12
    lay(root, {"train/dark/0.png": 77})
    assert read(root, **knobs).sha256 != first.sha256
    assert len(looked) == 12 + 8
    for path in (tmp_path / "cache").glob("scan-*"):
        if path.suffix != ".lock":  # half of one is no scan
            path.write_bytes(path.read_bytes()[:-5])
    again = read(root, **knobs)
    assert len(looked) == 20 + 12
    assert json.dumps(again.described()) == json.dumps(read(root, **knobs).described())


def test_a_cache_that_cannot_be_written_is_said(root, tmp_path, capsys) -> None:
    found = read(root, cache_dir="/proc/none")
    assert found.sha256 == read(root).sha256
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["file", "file/below"])
def test_a_cache_that_is_a_file_is_refused(root, tmp_path, named) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is a file"):
        read(root, cache_dir=str(tmp_path / named))
