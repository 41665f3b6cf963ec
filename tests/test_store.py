"""Images that are decoded once: the same pixels, and never half of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from host.errors import DataError, UsageError
from train.config import Data
from train.data import check_place, load, store


@pytest.fixture(autouse=True)
def _no_matter_how_few(monkeypatch) -> None:
    monkeypatch.setattr(store, "_SMALL", 0)


@pytest.fixture
def knobs(folder, tmp_path) -> dict[str, str]:
    return {"source": "folder", "root": str(folder), "cache_dir": str(tmp_path / "cache")}


def kept(knobs) -> list[Path]:
    return sorted(Path(knobs["cache_dir"]).glob("pixels-*[!k]"))


def test_the_pixels_are_those_that_are_decoded(knobs) -> None:
    mapped, streamed = load(Data(**knobs)), load(Data(**knobs, cache=0))
    for one, other in ((mapped.train, streamed.train), (mapped.validation, streamed.validation)):
        numbers = torch.arange(len(one)).flip(0)
        assert one.mapped
        assert other.resident is None
        assert torch.equal(one.images(numbers), other.images(numbers))
    assert (mapped.mean, mapped.std, mapped.sha256) == (
        streamed.mean, streamed.std, streamed.sha256
    )  # fmt: skip
    assert mapped.resident(torch.device("cpu")) == 0  # all processes share it


def test_images_that_a_gpu_keeps(knobs) -> None:
    # The CPU stands for the device here; `make test-gpu` compares the bits on a real one.
    here = torch.device("cpu")
    found = load(Data(**knobs))
    config = Data(**knobs, cache_on="gpu")
    moved = found.placed(config, here)
    numbers = torch.arange(len(found.train)).flip(0)
    assert torch.equal(moved.train.images(numbers), found.train.images(numbers))
    assert moved.resident(here) == moved.train.nbytes + moved.validation.nbytes
    assert load(Data(**knobs)).placed(Data(**knobs), here).train.mapped
    with pytest.raises(UsageError, match="gpu, and this training is on the CPU"):
        check_place(config, here)
    streamed = load(Data(**knobs, cache=0))
    with pytest.raises(UsageError, match=r"images take 0\.00 GiB, more than data\.cache \(0\)"):
        streamed.placed(Data(**knobs, cache=0, cache_on="gpu"), here)


def test_they_are_decoded_once(knobs, monkeypatch) -> None:
    first = load(Data(**knobs))
    assert len(kept(knobs)) == 2
    monkeypatch.setattr(store, "_write", None)
    again = load(Data(**knobs))
    assert torch.equal(again.train.resident, first.train.resident)


def test_other_settings_and_other_pictures_have_files_of_their_own(knobs, folder) -> None:
    load(Data(**knobs))
    load(Data(**knobs, size=6))
    load(Data(**knobs, channels=3))
    assert len(kept(knobs)) == 6
    path = folder / "train" / "dark" / "0.png"
    before = path.read_bytes()
    try:
        path.write_bytes((folder / "train" / "dark" / "1.png").read_bytes())
        found = load(Data(**knobs))
    finally:
        path.write_bytes(before)
    assert len(kept(knobs)) == 8
    assert torch.equal(found.train.resident[0], found.train.resident[1])


def test_pictures_that_change_before_they_are_kept_are_not_kept(knobs, folder, monkeypatch) -> None:
    """What is kept would be other pixels than its name says, for ever."""
    path = folder / "train" / "dark" / "0.png"
    before, real = path.read_bytes(), store._write

    def changed(*given):
        path.write_bytes((folder / "train" / "dark" / "1.png").read_bytes())
        real(*given)

    monkeypatch.setattr(store, "_write", changed)
    try:
        with pytest.raises(DataError, match=r"0\.png .* any more: it is another one now"):
            load(Data(**knobs))
    finally:
        path.write_bytes(before)
    assert kept(knobs) == []


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "longer"])
def test_a_damaged_file_is_made_anew(knobs, harm) -> None:
    first = load(Data(**knobs)).train.resident.clone()
    path = kept(knobs)[0]
    for path in kept(knobs):
        data = path.read_bytes()
        changed = {
            "cut": data[:-7],
            "flipped": data[:99] + bytes([data[99] ^ 8]) + data[100:],
            "empty": b"",
            "longer": data + b"x",
        }
        path.write_bytes(changed[harm])
    assert torch.equal(load(Data(**knobs)).train.resident, first)


def test_what_is_written_to_it_stays_in_the_process(knobs) -> None:
    one = load(Data(**knobs))
    one.train.resident.zero_()
    assert load(Data(**knobs)).train.resident.any()


def test_a_disk_that_is_full_is_said_and_images_are_decoded(knobs, monkeypatch, capsys) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("", (), {"free": 10}))
    found = load(Data(**knobs))
    assert found.train.resident is not None
    assert not found.train.mapped
    assert "warning: cannot keep" in capsys.readouterr().err
    assert kept(knobs) == []


@pytest.mark.slow
def test_processes_that_start_together_decode_once(knobs, tmp_path) -> None:
    words = f"""
from train.config import Data
from train.data import load, store
store._SMALL = 0
real = store._write
store._write = lambda *given: print("wrote", flush=True) or real(*given)
print(load(Data(**{knobs})).mark())
"""
    started = [
        subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate()[0].split() for process in started]
    assert sum(words.count("wrote") for words in said) == 2  # one for each split
    assert len({words[-1] for words in said}) == 1


def test_the_cache_is_listed_and_cleared(cli, knobs) -> None:
    load(Data(**knobs))
    where = ["--data.source", "folder", "--data.root", knobs["root"]]
    where += ["--data.cache_dir", knobs["cache_dir"]]
    done = cli("data", *where, "--cached")
    assert done.out.count("pixels-") == 2
    assert ".lock" not in done.out
    assert cli("data", *where, "--clear").code == 0
    assert "0 files" in cli("data", *where, "--cached").out
