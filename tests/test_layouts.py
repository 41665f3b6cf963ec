"""Layouts of well-known data sets and of tools, as people unpack them: what is refused, what is
told. Each was trained on as something else than was meant, or with a word that led nowhere.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from host.errors import DataError
from train.config import Data
from train.data import load


def lay(root: Path, layout: dict[str, list[str]], each: int = 6) -> Path:
    """So many pictures in each folder, called as `names` say; "{n}" is their number."""
    value = 0
    for folder, names in layout.items():
        for n in range(each):
            for name in names:
                path = root / folder / name.format(n=n)
                path.parent.mkdir(parents=True, exist_ok=True)
                value += 1
                grey = np.full((8, 8), value % 256, np.uint8)
                grey[0, 0] = value // 256
                Image.fromarray(grey).save(path)
    return root


def read(root: Path, **knobs: object):
    return load(Data(source="folder", root=str(root), **knobs))


PNG = ["{n}.png"]
RGBD = ["{n}_crop.png", "{n}_depthcrop.png", "{n}_maskcrop.png"]


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        # Kaggle's dogs-vs-cats, RSNA and Intel's scenes, COCO.
        (["train", "test1"], "class folders train and test1, which seem to be splits → rename"),
        (["stage_2_train_images", "stage_2_test_images"], "which seem to be splits"),
        (["seg_train/seg_train/forest", "seg_train/seg_train/sea", "seg_test/seg_test/sea"],
         "class folders seg_train and seg_test, which seem to be splits"),
        (["train2017", "val2017"], "class folders train2017 and val2017"),
        (["cat/train", "cat/val", "dog/train", "dog/val"],
         "has classes with splits in them: cat holds train, val → lay them out the other way"),
        # A data set in itself, as some are packed.
        (["daisy", "rose", "flowers/daisy", "flowers/rose"],
         "a class folder flowers, in which there are folders named as the classes beside it"),
        (["images", "masks"], "which are no classes by their names → lay pictures out as DIR"),
        (["01", "1"], "the class folders '01' and '1' differ in"),
    ],
)  # fmt: skip
def test_class_folders_that_are_none_are_refused(tmp_path, folders, said) -> None:
    with pytest.raises(DataError) as raised:
        read(lay(tmp_path, dict.fromkeys(folders, PNG)))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (dict.fromkeys(["a/abbey", "a/airfield", "b/bakery"], PNG),
         "pictures lie deeper than their class folders: a holds abbey, airfield, and all of"),
        (dict.fromkeys(["a", "b", "b/new"], PNG),
         "pictures lie deeper than their class folders: b holds new, and all of them are of the"),
        (dict.fromkeys(["cat", "dog", "thumbnails"], PNG), "classes by their names: thumbnails;"),
        (dict.fromkeys(["cat", "dog", "no_label"], PNG), "nobody has labelled, by their names"),
        (dict.fromkeys(["amazon/images/bag", "amazon/images/pen", "dslr/images/bag"], PNG),
         "pictures lie deeper than their class folders: amazon holds bag, images, pen"),
        (dict.fromkeys(["apple", "ball"], RGBD),
         "24 pictures are named as masks of others beside them"),
        ({"benign": ["x ({n}).png", "x ({n})_mask.png"], "normal": PNG},
         "6 pictures are named as masks of others beside them, and are trained on as any: be"),
    ],
)  # fmt: skip
def test_what_is_odd_about_them_is_told(tmp_path, layout, said) -> None:
    (doubt,) = (d for d in read(lay(tmp_path, layout)).doubts if said in d)
    assert doubt


def test_a_folder_in_itself_is_an_archive_s(tmp_path) -> None:
    assert read(lay(tmp_path, dict.fromkeys(["a", "b/b"], PNG), each=20)).doubts == []


def test_pictures_in_one_folder_of_each_class_are_not_doubted(tmp_path) -> None:
    assert read(lay(tmp_path, dict.fromkeys(["a/images", "b/images"], PNG), each=20)).doubts == []


def test_sound_class_folders_are_not_doubted(tmp_path) -> None:
    names = ["train", "plane", "masked owl", "test tube", "apple"]
    assert read(lay(tmp_path, dict.fromkeys(names, PNG), each=20)).doubts == []


def test_classes_with_hardly_a_picture_are_told(tmp_path) -> None:
    folders = dict.fromkeys("abcdef", PNG)
    found = read(lay(tmp_path / "few", folders, each=3))
    assert any("of 6 classes have 2 training pictures or fewer" in d for d in found.doubts)
    found = read(lay(tmp_path / "more", folders, each=20))
    assert not any("or fewer" in d for d in found.doubts)


def test_what_lies_beside_class_folders_is_told(tmp_path) -> None:
    root = lay(tmp_path, {"part_1": ["ISIC_{n}.png"], "part_2": ["ISIC_9{n}.png"]})
    (root / "metadata.csv").write_text("lesion_id,image_id,dx\n1,ISIC_0,nv\n2,ISIC_1,mel\n")
    (root / "horse.zip").write_bytes(b"PK")
    found = read(root).doubts
    assert any("metadata.csv names these pictures, and is not read" in d for d in found)
    assert any(" --data.image_column image_id --data.label_column" in d for d in found)
    assert any("archives are not looked into: horse.zip" in d for d in found)


@pytest.mark.parametrize(
    ("layout", "file", "said"),
    [
        ({"images": PNG}, "labels.json", "if labels.json has the classes, write a labels.csv from"),
        ({"train": PNG, "test": ["t{n}.png"]}, "trainLabels.csv",
         "if trainLabels.csv has the classes (its first line: what, who): --data.root"),
        ({".": ["cat.{n}.png"]}, "who.tsv", "if who.tsv has the classes (its first line:"),
        ({"wrapped/data/cat": PNG, "wrapped/data/dog": PNG}, "notes.md",
         "name it: --data.root {root}/wrapped/data; data.root is the DIR"),
    ],
)  # fmt: skip
def test_the_way_out_is_named(tmp_path, layout, file, said) -> None:
    lay(tmp_path, layout)
    (tmp_path / file).write_text("who,what\n")
    with pytest.raises(DataError) as raised:
        read(tmp_path)
    assert said.format(root=tmp_path) in str(raised.value)


HEAD = "file_name,label"


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        ("image,cat,dog,cow", "img/{n}.png, 0, 1, 0\nimg/1{n}.png, 1, 0, 0",
         "has a column of 0 and 1 for each class: cat, cow, dog"),
        ("image,cat,dog,cow", "img/{n}.png,False,True,False\nimg/1{n}.png,True,False,False",
         "has a column of 0 and 1 for each class: cat, cow, dog"),
        ("image,what,dog,cow",
         "img/{n}.png,0.0,1.0,0.0\nimg/1{n}.png,1.0,0.0,0.0\nimg/2{n}.png,0.0,0.0,1.0",
         "the one that is 1; or take the others out, for what against all others"),
        ("id,pixel0,pixel1", "{n},0,7", "has pixels in its columns"),
        (HEAD, "https://example.org/{n}.png,{a}", "names an address, https://example.org/0.png"),
        (HEAD, "img/{n}.png,{a}|{b}\nimg/1{n}.png,{a}", "names several classes at once: cat|dog"),
        (HEAD, "img/{n}.png,\"['{a}', '{b}']\"\nimg/1{n}.png,['{a}']", "at once: ['cat"),
        ("file_name," + ",".join(f"value{n}" for n in range(99)), "img/{n}.png" + ",0" * 99,
         "value9, value10 and 88 more → name one"),
    ],
)  # fmt: skip
def test_lists_that_say_something_else_are_refused(tmp_path, head, row, said) -> None:
    lay(tmp_path, {"img": ["{n}.png", "1{n}.png", "2{n}.png"]})
    rows = [row.format(n=n, a="cat", b="dog") for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join([head, *rows]) + "\n")
    named = {"label_column": "what"} if "value" in head or "what" in head else {}
    with pytest.raises(DataError) as raised:
        read(tmp_path / "labels.csv", **named)
    assert said in str(raised.value)


def test_a_list_without_a_line_of_names_is_told(tmp_path) -> None:
    lay(tmp_path, {"img": PNG})
    (tmp_path / "labels.csv").write_text("img/0.png,cat\nimg/1.png,dog\n")
    with pytest.raises(DataError, match=r"no line of column names: it begins with img/0\.png"):
        read(tmp_path / "labels.csv")


def test_names_of_classes_may_hold_commas_and_words(tmp_path) -> None:
    """ImageNet has both, maillot beside maillot, tank suit."""
    lay(tmp_path, {"img": ["{n}.png", "1{n}.png", "2{n}.png"]})
    names = ["maillot", '"maillot, tank suit"', "hot dog"]
    rows = [f"img/{where}{n}.png,{names[n % 3]}" for where in ("", "1", "2") for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert read(tmp_path).classes == ["hot dog", "maillot", "maillot, tank suit"]


@pytest.mark.parametrize("several", [True, False])
def test_words_of_several_classes_are_several_labels(tmp_path, several) -> None:
    """As PASCAL's tags; one such name may be a class of its own, as a coat of black and white."""
    lay(tmp_path, {"img": PNG}, each=24)
    names = ["cat", "dog", "cow", *(["cat dog", "cow dog", "cow cat"] if several else ["cow cat"])]
    rows = [f"img/{n}.png,{names[n % len(names)]}" for n in range(24)]
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    if not several:
        assert "cow cat" in read(tmp_path).classes
        return
    with pytest.raises(DataError, match="names several classes at once: cat dog"):
        read(tmp_path)


def test_columns_that_mean_something_are_told(tmp_path) -> None:
    lay(tmp_path, {"img": PNG}, each=20)
    head = "file_name,label,patient_id,exclude,xmin,weight"
    rows = [f"img/{n}.png,{'ab'[n // 2 % 2]},p{n // 4},{n % 3 == 0},4,{n}" for n in range(20)]
    (tmp_path / "labels.csv").write_text("\n".join([head, *rows]) + "\n")
    found = read(tmp_path).doubts
    for said in (
        "labels.csv has a column patient_id: pictures of the same one may be in training and in",
        "labels.csv has a column exclude, which is not read: all rows are trained on",
        "labels.csv has a column weight, which is not read: each row counts alike",
        "labels.csv has boxes, which are not read",
    ):
        assert any(said in doubt for doubt in found), (said, found)
    divided = [f"{row},{'train' if n < 16 else 'val'}" for n, row in enumerate(rows)]
    (tmp_path / "labels.csv").write_text("\n".join([f"{head},split", *divided]) + "\n")
    assert not any("patient_id" in doubt for doubt in read(tmp_path).doubts)
    torn = [f"{row},{'train' if n % 4 < 3 else 'val'}" for n, row in enumerate(rows)]
    (tmp_path / "labels.csv").write_text("\n".join([f"{head},split", *torn]) + "\n")
    said = "5 of 5 values of the column patient_id are in training and in another split"
    assert any(said in doubt for doubt in read(tmp_path).doubts)
    face = [
        f"img/{n}.png,{'ab'[n % 2]},{'pq'[n % 2]},NA,{['train', 'val'][n < 8]}" for n in range(20)
    ]
    head_of_faces = "file_name,label,person_id,patient,split"  # one says the label, one nothing
    (tmp_path / "labels.csv").write_text("\n".join([head_of_faces, *face]) + "\n")
    assert not read(tmp_path).doubts
    (tmp_path / "labels.csv").unlink()
    for name, own in (("train", rows[:14]), ("val", rows[14:])):  # in the middle of p3's
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *own]) + "\n")
    assert any("1 of 5 values of the column patient_id" in d for d in read(tmp_path).doubts)
    for name, own in (("train", rows[:12]), ("val", rows[12:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *own]) + "\n")
    assert not any("patient_id" in doubt for doubt in read(tmp_path).doubts)


def test_a_column_that_is_the_label_is_no_patient(tmp_path) -> None:
    lay(tmp_path, {"img": PNG}, each=20)
    rows = [f"img/{n}.png,{'ab'[n % 2]},{'train' if n < 16 else 'val'}" for n in range(20)]
    (tmp_path / "labels.csv").write_text("\n".join(["file_name,animal,split", *rows]) + "\n")
    assert not read(tmp_path, label_column="animal").doubts


def test_a_line_without_a_column_is_refused(tmp_path) -> None:
    (tmp_path / "labels.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="has no column file_name; its columns: "):
        read(tmp_path / "labels.jsonl")


def test_a_list_that_says_no_split_and_names_several(tmp_path) -> None:
    lay(tmp_path, dict.fromkeys(["train/3", "train/7", "valid/3", "valid/7"], PNG))
    rows = [f"{split}/{label}/{n}.png,{label}" for split in ("train", "valid") for label in (3, 7)
            for n in range(6)]  # fmt: skip
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    with pytest.raises(DataError, match="says no split, and names pictures in train/ and valid/"):
        read(tmp_path)


def test_labels_are_of_training_pictures_where_tests_have_the_same_names(tmp_path) -> None:
    """As CIFAR-10's are at Kaggle: a test has numbers as well, and no labels."""
    lay(tmp_path, {"train": PNG, "test": PNG})
    rows = [f"{n},{'ab'[n % 2]}" for n in range(6)]
    (tmp_path / "trainLabels.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    knobs = {"image_column": "id"}
    found = read(tmp_path / "trainLabels.csv", **knobs)
    assert any("6 pictures were found by their names: 0 is train/0.png" in d for d in found.doubts)
    (tmp_path / "train/3.png").unlink()
    with pytest.raises(DataError, match=r"no such picture, but trainLabels\.csv:5 names it"):
        read(tmp_path / "trainLabels.csv", **knobs)


def test_numbers_whose_zeros_a_spreadsheet_took_away_are_found(tmp_path) -> None:
    lay(tmp_path, {"img": ["00{n}.png"]})
    rows = [f"{n},{'ab'[n % 2]}" for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    found = read(tmp_path)
    assert any("6 pictures were found by their names: 0 is img/000.png" in d for d in found.doubts)
    lay(tmp_path, {"img": ["{n}.png", "0{n}.png"]})  # 0 is the one that is called so
    assert any("0 is img/0.png" in d for d in read(tmp_path).doubts)


@pytest.mark.parametrize("suffix", ["", ".png"])
def test_a_list_that_counts_from_one_where_the_files_count_from_zero(tmp_path, suffix) -> None:
    """All but the last would be found, each with its neighbour's label."""
    lay(tmp_path, {".": PNG})
    rows = [f"{n + 1}{suffix},{'ab'[n % 2]}" for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    said = "numbers its pictures 1 to 6, and the files 0 to 5: each label may be its neighbour's"
    with pytest.raises(DataError, match=said) as raised:
        read(tmp_path, on_bad="skip")
    assert "take picture 6 out of the list and 0 out of the folder" in str(raised.value)
    (tmp_path / "0.png").unlink()
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows[:-1]]) + "\n")
    assert len(read(tmp_path).train) == 4


def test_names_of_pictures_that_say_their_split_are_told(tmp_path) -> None:
    lay(tmp_path, {"cat": ["train_{n}.png", "val_{n}.png"], "dog": ["train_1{n}.png"]})
    assert any("say of which split they are" in doubt for doubt in read(tmp_path).doubts)
    lay(tmp_path, {"cow": ["strain_{n}.png", "trainer_{n}.png", "value{n}.png", "x_{n}.png"]})
    assert not any("of which split" in doubt for doubt in read(tmp_path).doubts)


def test_labels_of_one_picture_each_are_counted(tmp_path) -> None:
    lay(tmp_path, {".": PNG})
    rows = [f"{n}.png,{20 + n}" for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    with pytest.raises(DataError, match=r"there are 6 classes, of 1\.0 samples each → .*column"):
        read(tmp_path)


def test_a_list_of_one_split_may_not_divide_again(tmp_path) -> None:
    lay(tmp_path, {"img": PNG})
    head, rows = f"{HEAD},is_valid\n", "img/0.png,a,{}\nimg/1.png,b,{}\n"
    (tmp_path / "train.csv").write_text(head + rows.format("True", "False"))
    (tmp_path / "val.csv").write_text(head + "img/2.png,a,True\nimg/3.png,b,True\n")
    with pytest.raises(DataError, match="has a column is_valid, which seems to divide"):
        read(tmp_path)
    (tmp_path / "train.csv").write_text(head + rows.format("False", "False"))
    assert read(tmp_path).classes == ["a", "b"]


def test_a_split_without_class_folders_is_told(tmp_path) -> None:
    lay(tmp_path, {"train/a": PNG, "train/b": PNG, "test": PNG})
    with pytest.raises(
        DataError, match="/test, the validation split, has no pictures in class fol"
    ):
        read(tmp_path)


def test_a_list_of_a_test_without_labels_is_told(tmp_path) -> None:
    lay(tmp_path, {"img": PNG})
    (tmp_path / "train.csv").write_text(f"{HEAD}\nimg/0.png,a\nimg/1.png,b\n")
    (tmp_path / "test.csv").write_text("file_name\nimg/2.png\n")
    with pytest.raises(
        DataError, match=r"where the test split has no labels, name the other list: "
    ):
        read(tmp_path)


def test_a_list_that_is_not_in_utf8_is_told_how_to_be(tmp_path) -> None:
    lay(tmp_path, {"img": PNG})
    text = f"{HEAD}\nimg/0.png,Bär\nimg/1.png,Kühe\n"
    (tmp_path / "labels.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"is not in UTF-8: .* → save it so: iconv -f latin1"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            [f"{'cat' if n % 2 else 'dog'}.{n}.png" for n in range(8)],
            "if cat.1.png is of the class cat",
        ),
        (
            [f"great_pyrenees_{n}.png" for n in range(4)] + ["pug_1.png", "pug_2.png"],
            "is of the class great_p",
        ),
        ([f"IMG_{n}.png" for n in range(8)], None),
        ([f"{('IMG', 'DSC')[n % 2]}_{n}.png" for n in range(8)], None),
        ([f"{n % 2}_{n}.png" for n in range(8)], None),
        ([f"{n}.png" for n in range(8)], None),
        ([f"a{n}_{n}.png" for n in range(8)], None),
    ],
)
def test_classes_that_are_in_the_names_of_pictures(tmp_path, files, says) -> None:
    lay(tmp_path, {"": files}, each=1)
    with pytest.raises(DataError, match="holds no pictures in class folders") as error:
        read(tmp_path)
    assert ("write a labels.csv" in error.value.fix) is (says is not None)
    assert says is None or says in error.value.fix


@pytest.mark.parametrize("inner", ["", "train"])
@pytest.mark.parametrize("named", ["", "images"])
def test_boxes_of_a_detector_beside_pictures(tmp_path, inner, named) -> None:
    lay(tmp_path / inner, {"images": PNG})
    boxes = tmp_path / inner / "labels"
    boxes.mkdir()
    (boxes / "classes.txt").write_text("cat\ndog\n")
    (boxes / "0.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(DataError) as error:
        read(tmp_path / inner / named if named else tmp_path)
    assert "seems to hold boxes for a detector" in error.value.fix


@pytest.mark.parametrize("name", ["coco.json", "output.manifest", "list.txt"])
def test_a_file_that_may_have_the_classes(tmp_path, name) -> None:
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(DataError, match="is a file, and no list") as error:
        read(tmp_path / name)
    assert "write a labels.csv from it" in error.value.fix


def test_a_list_without_a_head_beside_pictures(tmp_path) -> None:
    lay(tmp_path, {"images": PNG})
    (tmp_path / "labels.csv").write_text("images/0.png,cat\nimages/1.png,dog\n")
    with pytest.raises(DataError) as error:
        read(tmp_path)
    assert "labels.csv has the classes, write file_name,label as its first line; or put" in (
        error.value.fix
    )


def test_addresses_in_a_list_without_a_head(tmp_path) -> None:
    (tmp_path / "all.csv").write_text("gs://b/1.jpg,cat\ngs://b/2.jpg,dog\n")
    with pytest.raises(DataError, match="no line of column names") as error:
        read(tmp_path / "all.csv")
    assert "download them" in error.value.fix
