"""A folder that others made: what only points elsewhere is not read, and what is gone is said."""

import json
import os
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from conftest import picture
from PIL import Image

from host.errors import DataError
from train.config import Data
from train.data import load, mosaic


@pytest.fixture
def root(tmp_path) -> Path:
    for split, count in (("train", 4), ("validation", 2)):
        for name, value in (("dark", 60), ("light", 200)):
            for number in range(count):
                picture(tmp_path / "data" / split / name / f"{number}.png", value)
    picture(tmp_path / "secret.png", 99)
    return tmp_path / "data"


def read(root: Path, **knobs: object):
    return load(Data(source="folder", root=str(root), **knobs))


def refused(root: Path, said: str, **knobs: object) -> None:
    with pytest.raises(DataError, match=said) as raised:
        read(root, **knobs)
    assert raised.value.code == 3


def test_links_that_lead_nowhere_are_counted_and_named(root, tmp_path) -> None:
    for number in range(3):
        (root / "train" / "dark" / f"{number}.png").unlink()
        (root / "train" / "dark" / f"{number}.png").symlink_to(f"/nowhere/{number}.png")
    refused(root, r"3 of 12 pictures .*train/dark/0\.png, .*\(a link that leads nowhere\)")
    (root / "train" / "dark" / "0.png").unlink()
    (root / "train" / "dark" / "1.png").unlink()
    refused(root, r"1 of 10 pictures .*train/dark/2\.png \(a link that leads nowhere\)")
    found = read(root, on_bad="skip")
    assert len(found.train) == 5
    assert found.skipped == {"train/dark/2.png": "a link that leads nowhere"}


def test_links_to_files_are_the_user_s_own(root, tmp_path) -> None:
    before = read(root)
    one = root / "train" / "dark" / "0.png"
    one.rename(tmp_path / "one.png")
    one.symlink_to(tmp_path / "one.png")
    assert read(root).sha256 == before.sha256
    (tmp_path / "root").symlink_to(root)
    assert read(tmp_path / "root").sha256 == before.sha256


def test_links_to_folders_are_followed(root, tmp_path) -> None:
    before = read(root)
    (root / "train" / "dark").rename(tmp_path / "elsewhere")
    (root / "train" / "dark").symlink_to(tmp_path / "elsewhere")
    (root / "train" / "light" / "up").symlink_to(root)  # in a circle
    found = read(root)
    assert found.sha256 == before.sha256
    assert found.left_out == {"train/light/up": "a link back to a folder that it lies in"}


def test_links_to_folders_of_tables_would_be_left_out(root, tmp_path) -> None:
    (root / "README.md").write_text(README)
    (root / "train" / "dark").rename(tmp_path / "elsewhere")
    (root / "train" / "dark").symlink_to(tmp_path / "elsewhere")
    refused(root, "1 link in .* lead to folders, which are not followed, such as train/dark")


README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: train/**
  - split: validation
    path: validation/**
---
"""


@pytest.mark.parametrize("text", [None, README])
def test_what_was_read_before_is_not_taken_for_it(root, tmp_path, text) -> None:
    """`datasets` keeps it by the folder's name, and does not look again where a README.md is."""
    if text is not None:
        (root / "README.md").write_text(text)
    before = read(root)
    for path in root.rglob("*.png"):
        times = path.stat()
        picture(path, 255 - round(np.asarray(Image.open(path)).mean()))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = read(root)
    assert changed.mean[0] == pytest.approx(1 - before.mean[0], abs=0.05)
    other = tmp_path / "other" / root.name
    shutil.copytree(root, other)
    for path in other.rglob("dark/*.png"):
        picture(path, 7)
    assert read(other).sha256 not in (before.sha256, changed.sha256)


def parquet(root: Path, rows: list[dict], features: datasets.Features | None = None) -> Path:
    """A folder with one Parquet file of these images and labels."""
    place = root.parent / "parquet"
    place.mkdir()
    known = features or datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table(
        {
            "image": pyarrow.array([row["image"] for row in rows], kind),
            "label": pyarrow.array([row["label"] for row in rows], pyarrow.int64()),
        },
        known.arrow_schema,
    )
    pyarrow.parquet.write_table(table, place / "train.parquet")
    return place


@pytest.mark.parametrize(
    "path", ["{secret}", "../secret.png", "data/../secret.png", "{root}/../secret.png", "x.png",
             "http://127.0.0.1:9/x.png", "hf://datasets/a/b/x.png", "zip://x.png::{root}/a.zip"],
)  # fmt: skip
def test_rows_that_name_images_elsewhere(root, tmp_path, path) -> None:
    whole = (root / "train" / "dark" / "0.png").read_bytes()
    place = tmp_path / "parquet"
    named = path.format(secret=tmp_path / "secret.png", root=place)
    rows = [{"image": {"bytes": whole, "path": "0.png"}, "label": n % 2} for n in range(9)]
    parquet(root, [*rows, {"image": {"bytes": None, "path": named}, "label": 1}])
    refused(place, "a row of .* names the image .*, which is elsewhere")
    if "secret" in path and "data/" not in path and path[0] != ".":
        assert len(read(place, outside=True).train) == 8  # as asked


def test_rows_with_their_bytes_may_be_called_anything(root, tmp_path) -> None:
    whole = (root / "train" / "dark" / "0.png").read_bytes()
    rows = [{"image": {"bytes": whole, "path": "/etc/passwd"}, "label": n % 2} for n in range(9)]
    assert len(read(parquet(root, rows)).train) == 7


@pytest.mark.parametrize(
    "files",
    ["../secret.png", "/etc/*", "http://127.0.0.1:9/x.parquet", "[a.png, '../*.png']",
     "[{split: train, path: ../secret.png}]", "[{split: train, path: ['https://127.0.0.1:9/x']}]",
     "~/x.parquet", "hf://datasets/a/b/x.parquet", "file:/etc/passwd", "local:/etc/passwd"],
)  # fmt: skip
def test_a_description_that_names_files_elsewhere(root, files) -> None:
    text = f"configs:\n- config_name: default\n  data_files: {files}\n"
    for head in ("---\n", "\n\n---\n", "---\npretty_name: a---b\n"):
        (root / "README.md").write_text(f"{head}{text}---\n# Mine\n")
        refused(root, r"README\.md names .*, which lies outside of")
    (root / "README.md").unlink()
    (root / ".huggingface.yaml").write_text(text)
    refused(root, r"\.huggingface\.yaml names .*, which lies outside of")


def test_what_would_be_read_is_looked_at_whoever_named_it(root, tmp_path) -> None:
    from train.data.sources import inside

    inside.check_files(root, [f"{root}/train/dark/0.png"])
    for name in (str(tmp_path / "secret.png"), f"{root}/../secret.png", "http://host/x", "x.png"):
        with pytest.raises(DataError, match="which lies outside of it"):
            inside.check_files(root, [name])


def test_a_description_of_its_own_files_is_taken(root) -> None:
    before = read(root)
    (root / "README.md").write_text(
        "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
        "    path: train/**\n  - split: validation\n    path: validation/**\n---\n# Mine: ../x\n"
    )
    assert read(root).sha256 == before.sha256


@pytest.mark.parametrize(
    "text", ["---\n[" + "[" * 5000 + "\n---\n", "---\n: :\n---\n", "---\na: 2024-02-30\n---\n"]
)
def test_a_description_that_makes_no_sense(root, text) -> None:
    (root / "README.md").write_text(text)
    refused(root, r"README\.md|holds no data set")


def saved(root: Path) -> Path:
    place = root.parent / "saved"
    tables = datasets.load_dataset(str(root))
    tables.save_to_disk(str(place))
    return place


@pytest.mark.parametrize("name", ["../../x.arrow", "/etc/passwd", "http://127.0.0.1:9/x.arrow"])
def test_a_saved_set_that_names_files_elsewhere(root, name) -> None:
    place = saved(root)
    before = read(place)
    assert before.sha256 == read(root).sha256
    state = json.loads((place / "train" / "state.json").read_text())
    state["_data_files"] = [{"filename": name}]
    (place / "train" / "state.json").write_text(json.dumps(state))
    refused(place, r"state\.json names .*, which lies outside of")


@pytest.mark.parametrize("split", ["../data", "/etc"])
def test_a_saved_set_of_splits_elsewhere(root, split) -> None:
    place = saved(root)
    (place / "dataset_dict.json").write_text(json.dumps({"splits": [split]}))
    refused(place, r"dataset_dict\.json names .*, which lies outside of")


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"_data_files": 5}', "\xff", '{"splits": 3}', "{}"]
)
@pytest.mark.parametrize("name", ["dataset_dict.json", "train/state.json"])
def test_a_saved_set_that_is_damaged(root, name, text) -> None:
    place = saved(root)
    (place / name).write_text(text, encoding="latin-1")
    refused(place, r"\.json|holds no data set|has no split")


def test_a_label_past_all(root) -> None:
    whole = (root / "train" / "dark" / "0.png").read_bytes()
    rows = [{"image": {"bytes": whole, "path": None}, "label": n % 2} for n in range(9)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    place = parquet(root, [*rows, {**rows[0], "label": 10**12}], features)
    refused(
        place, "row 9 of training has label 1000000000000: classes have numbers from 0 to 1048575"
    )


def test_more_pixels_than_allowed(root) -> None:
    Image.new("L", (200, 100)).save(root / "train" / "dark" / "3.png")
    refused(
        root,
        r"3\.png \(it has 200×100 pixels, more than data\.max_pixels",
        size=8,
        max_pixels=19_998,
    )
    assert len(read(root, size=8, max_pixels=20_000).train) == 8
    assert len(read(root, size=8).train) == 8


def test_an_image_of_169_megapixels(root) -> None:
    """Pillow warns of it and takes half a gigabyte."""
    Image.new("1", (13_000, 13_000)).save(root / "train" / "dark" / "3.png")
    refused(root, r"3\.png \(it has .*pixels.* than data\.max_pixels", size=8)


def test_a_size_past_all() -> None:
    from host.errors import UsageError
    from train.experiment import parse

    with pytest.raises(UsageError, match=r"data\.size = 1000000: input should be less"):
        parse({"data": {"size": 1_000_000}}, "here")


def test_the_picture_of_the_data_has_accents() -> None:
    """Each letter that a font lacks is the same box."""
    blank = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    drawn = {mosaic.sheet(blank, [letter]).tobytes() for letter in "éñЧя"}
    assert len(drawn) == 4
