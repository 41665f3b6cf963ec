"""`--verify CONFIG --on CARD`: an experiment on a card that is not here."""

import os
import re
from pathlib import Path

import pytest
from conftest import slow_pictures

from doctor import bridge
from doctor.inside import datasheet, elsewhere
from host.machine import Machine
from train import experiment
from train.process import memory


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    slow_pictures(folder, count=64, side=32)
    return folder


def _experiment(folder: Path, pictures: Path, model: str, size: int, batch: int) -> Path:
    path = folder / f"{model}.yaml"
    path.write_text(
        f"model: {{name: {model}}}\nbatch_size: {batch}\nlanes: 4\n"
        f"data: {{source: folder, root: {pictures}, size: {size}}}\n"
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("card", ["2GB", "T4", "RTX 3090", "A100 80GB PCIe", "H100 PCIe"])
@pytest.mark.parametrize(("model", "size"), [("resnet18", 224), ("vgg16", 224), ("resnet50", 64)])
def test_the_largest_micro_batch_is_the_largest(card, model, size, tmp_path, pictures) -> None:
    """By the same estimate that --verify makes: at it all fits, and a tenth more does not."""
    path = _experiment(tmp_path, pictures, model, size, 64)
    found = {f.name: f for f in elsewhere.examine(path, card)}
    seen = found["fits on it"].seen
    config = experiment.load(path)
    there = elsewhere._cards(card, "1").size

    def wanted(micro_batch: int) -> float:
        one = config.model_copy(update={"batch_size": micro_batch * config.lanes})
        need = memory.of_shapes(one, 2, (3, size, size), world=1, half=False)
        assert need is not None
        return need.total + memory.CONTEXT

    told = re.search(r"up to ([0-9]+) fit", seen)
    if told is None:
        assert "a whole batch fits at once" in seen
        assert wanted(64) <= 0.9 * there
        return
    largest = int(told[1])
    if largest > 1:
        assert wanted(largest) <= 0.91 * there
    assert wanted(largest + max(2, largest // 10)) > 0.9 * there
    assert (found["fits on it"].status == "ok") is (wanted(16) <= 0.9 * there)


def test_half_precision_leaves_more(tmp_path, pictures) -> None:
    path = _experiment(tmp_path, pictures, "vgg16", 224, 1024)

    def largest(half: bool) -> int:
        found = {f.name: f.seen for f in elsewhere.examine(path, "8GB", half=half)}
        return int(re.search(r"up to ([0-9]+) fit", found["fits on it"])[1])

    assert largest(True) > largest(False)


@pytest.mark.parametrize("card", ["RTX 3090", "RTX3090", "8GB"])
def test_a_batch_that_is_larger_than_the_data_is_told(tmp_path, pictures, card) -> None:
    found = {
        f.name: f for f in elsewhere.examine(_experiment(tmp_path, pictures, "mlp", 8, 1024), card)
    }
    assert (found["data"].status, found["fits on it"].status) == ("fail", "ok")
    assert "batch_size 1024 is larger than the" in found["data"].seen
    assert found["time on it"].status == "skip"


@pytest.mark.slow
def test_the_time_is_of_the_operations(tmp_path, pictures) -> None:
    """ResNet-50 takes 4.1 10⁹ multiplications with additions for an image of 224²: He et al. 2015."""
    path = _experiment(tmp_path, pictures, "resnet50", 224, 16)
    found = {f.name: f.seen for f in elsewhere.examine(path, "RTX 3090")}
    samples = int(re.search(r"for ([0-9,]+) samples", found["time on it"])[1].replace(",", ""))
    total = float(re.search(r"([0-9.e+]+) operations", found["time on it"])[1])
    assert total / samples == pytest.approx(3 * 2 * 4.1e9, rel=0.05)
    seconds = float(found["time on it"].split(" s ")[0])
    assert seconds == pytest.approx(total / 71e12, rel=0.1)
    found = {f.name: f.seen for f in elsewhere.examine(path, "RTX 3090", "2")}
    assert float(found["time on it"].split(" s ")[0]) == pytest.approx(seconds / 2, rel=0.1)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("3090", "NVIDIA GeForce RTX 3090"),
        ("rtx 4080 super", "NVIDIA GeForce RTX 4080 SUPER"),
        ("RTX 4080", "NVIDIA GeForce RTX 4080"),
        ("T4", "Tesla T4"),
        ("A10", "NVIDIA A10"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("h100 pcie", "NVIDIA H100 PCIe"),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("v100-sxm2", "Tesla V100-SXM2"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(words, name) -> None:
    assert list(datasheet.named(words)) == [name]


def test_each_card_is_found_by_the_name_that_is_suggested() -> None:
    for name in datasheet.names():
        assert len(datasheet.named(name)) == 1, name


@pytest.mark.slow
def test_from_make_s_variables_nothing_starts_here() -> None:
    """Cards and precision of elsewhere are no wish for this machine's."""
    environ = {**os.environ, "ENGINE": "local", "GPUS": "2", "PRECISION": "fp16", "CPUS": ""}
    found = bridge.examine(Machine(environ=environ), "configs/digits.yaml", None, [], on="T4")
    said = {f.name: f.seen for f in found}
    assert said["card"].startswith("2 × Tesla T4: 15 GiB")
    assert "fits on it" in said
    assert said["numerics on it"] == "numerics: portable, which computes on CPUs alone"


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ("A100", "may be NVIDIA A100-SXM4-40GB"),
        ("RTX 9090", "there is no datasheet of 'RTX 9090' here; did you mean rtx 5090?"),
        ("0", "there is no datasheet of '0'"),
        ("NVIDIA", "may be"),
    ],
)
def test_a_card_that_is_not_known_is_one_line(card, says) -> None:
    [only] = elsewhere.examine(Path("configs/digits.yaml"), card)
    assert only.status == "fail"
    assert says in only.seen
    assert "24GB" in only.fix
