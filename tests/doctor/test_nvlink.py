"""What connects GPUs, and what an all-reduce should reach over it."""

from pathlib import Path

import pytest
from recorded import HERE, build, load

from doctor import nvlink
from doctor.inside import collectives


@pytest.mark.parametrize(
    ("name", "rate", "over"),
    [
        ("nvlink-trained-again", 53, "NVLink"),  # two links of 26.562 each, on boards
        ("nvlink-few-replays", 14, "NVLink"),  # a bridge between the only two
        ("bridge-on-two-of-three", 26, "PCIe 4 x16"),
        ("badly-seated", 7, "PCIe 4 x4"),
        ("8xh100", 53, "PCIe 5 x16"),  # nobody says how the links are
    ],
)
def test_the_narrowest_place_between_gpus(name, rate, over, tmp_path: Path) -> None:
    machine = build(load(HERE / f"machines/{name}.yaml"), tmp_path)
    found = nvlink.between(machine)
    assert found is not None
    assert (round(found[0]), found[1]) == (rate, over)


@pytest.mark.parametrize("name", ["egpu-tb3", "captured-vm"])
def test_it_is_not_known_of_one_gpu_or_none(name, tmp_path: Path) -> None:
    [path] = (HERE / "machines").glob(f"{name}.*")
    machine = build(load(path), tmp_path)
    assert nvlink.between(machine) is None


@pytest.mark.parametrize(
    ("rate", "between", "status"),
    [
        (360.0, (478.0, "NVLink"), None),
        (24.0, (478.0, "NVLink"), "warn"),  # over PCIe, though the links are up
        (21.0, (26.0, "PCIe 4 x16"), None),
        (9.0, (26.0, "PCIe 4 x16"), None),  # through the host's memory: all that such cards can
        (1.1, (26.0, "PCIe 4 x16"), "warn"),  # over sockets
        (1.1, None, None),
    ],
)
def test_an_all_reduce_beside_what_the_links_give(rate, between, status) -> None:
    found = collectives.slow("8 processes over nccl", rate, between)
    assert (found and found.status) == status
