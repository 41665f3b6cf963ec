"""Which GPUs CUDA sees: one rule for all who ask, held against torch's own reading."""

from pathlib import Path

import nvidia_smi
import pytest
import torch

from host import cuda, nvidia, plan, selection, visible
from host.machine import Machine

# As nvidia-smi prints them; two begin alike.
UUIDS = [
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-1a2b3c4d-0000-4d5e-8f90-a1b2c3d4e5f6",
    "GPU-1a2b9999-0000-4d5e-8f90-a1b2c3d4e5f6",
    "GPU-77777777-0000-4d5e-8f90-a1b2c3d4e5f6",
]
# CUDA_VISIBLE_DEVICES, how many GPUs there are → which of them are seen, in CUDA's order. From the
# CUDA programming guide: an invalid entry hides what stands behind it; prefixes must be unique.
TABLE = [
    (None, 2, [0, 1]),
    (None, 0, []),
    ("", 2, []),
    ("-1", 2, []),
    ("0", 2, [0]),
    ("1", 2, [1]),
    ("2,1", 4, [2, 1]),  # the guide's first example
    ("0,2,-1,1", 4, [0, 2]),  # and its second
    ("7,0", 2, []),
    ("1,7,0", 2, [1]),
    ("0,-1,1", 2, [0]),
    ("0,1,2,3,4", 4, [0, 1, 2, 3]),
    ("0,0", 2, []),
    ("0,1,0", 2, []),
    ("5,5", 2, []),
    (" 1 , 0 ", 2, [1, 0]),
    ("0,,1", 2, [0]),
    ("NoDevFiles", 2, []),
    ("1st,0th", 2, [1, 0]),
    ("+1", 2, [1]),
    ("none", 2, []),
    ("GPU-8932f937", 4, [0]),
    (UUIDS[3], 4, [3]),
    ("GPU-7,GPU-8", 4, [3, 0]),
    ("GPU-1a2b", 4, []),  # two begin so
    ("GPU-8932,GPU-1a2b,GPU-7777", 4, [0]),
    ("GPU-1a2b3,GPU-1a2b9", 4, [1, 2]),
    ("GPU-8932f937,GPU-8932f937", 4, []),
    ("GPU-8932f937,GPU-8932", 4, []),  # one GPU by two names
    ("GPU-0000", 4, []),
    ("GPU-7,0", 4, [3]),
    ("0,GPU-7", 4, [0]),
    ("8932f937", 4, []),
]


def listed(count: int) -> list[nvidia.Gpu]:
    return [
        nvidia.Gpu({"index": str(n), "uuid": uuid, "name": "NVIDIA A100"})
        for n, uuid in enumerate(UUIDS[:count])
    ]


def by_torch(count: int) -> list[int]:
    """What torch makes of the variable before CUDA is started; the driver is a list of UUIDs."""
    words = torch.cuda._parse_visible_devices()
    if not words or isinstance(words[0], int):
        there = [n for n in words if isinstance(n, int)]
        end = next((place for place, n in enumerate(there) if n >= count), len(there))
        return there[:end]
    return torch.cuda._transform_uuid_to_ordinals([str(w) for w in words], UUIDS[:count])


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 20


@pytest.mark.parametrize(("chosen", "count", "expected"), TABLE)
def test_the_rule_is_cudas(chosen, count, expected, monkeypatch) -> None:
    found = [int(gpu.index) for gpu in visible.of(listed(count), chosen)]
    assert found == expected
    if chosen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert by_torch(count) == expected


def test_of_migs_instances_one_is_seen() -> None:
    for name in ("MIG-7f3a", "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", "MIG-a,MIG-b"):
        [seen] = visible.of(listed(2), name)
        assert seen.uuid == name.split(",")[0]
        assert visible.of([], name) == []


@pytest.mark.parametrize("chosen", ["7,0", "1,7,0", "0,-1,1", "GPU-1a2b9", None])
def test_all_who_ask_get_the_same_answer(chosen, tmp_path: Path) -> None:
    """The CUDA line, the plan, GPUS=free and the checks, on an nvidia-smi that lists four."""
    rows = [
        {"index": n, "uuid": uuid, "name": "NVIDIA A100-SXM4-80GB", "driver_version": "580.95.05",
         "compute_cap": "8.0", "memory.total": 81920, "memory.used": 0}
        for n, uuid in enumerate(UUIDS)
    ]  # fmt: skip
    nvidia_smi.write(tmp_path, rows)
    environ = {"PATH": str(tmp_path)}
    if chosen is not None:
        environ["CUDA_VISIBLE_DEVICES"] = chosen
    machine = Machine(environ=environ)
    expected = [gpu.uuid for gpu in visible.of(listed(4), chosen)]
    driver = cuda.look(machine)
    assert driver is not None
    assert [gpu.uuid for gpu in driver.gpus] == expected
    assert [gpu.uuid for gpu in visible.seen(machine)] == expected
    assert plan.for_machine(environ).processes == max(1, len(expected))
    assert plan.for_machine(environ).device == ("cuda" if expected else "cpu")
    if expected:
        free = selection.resolve({**environ, "GPUS": "free"}, machine)
        assert free["CUDA_VISIBLE_DEVICES"].split(",") == expected


def test_a_machine_without_the_driver_s_tool_has_no_gpus() -> None:
    machine = Machine(environ={"PATH": "/nonexistent"})
    assert visible.seen(machine) == []
    assert cuda.look(machine) is None
    assert plan.for_machine(machine.environ).device == "cpu"
