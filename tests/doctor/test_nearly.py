"""Machines that nearly look as if something were wrong, and are sound: each was an alarm once."""

from pathlib import Path
from typing import Any

import pytest
from recorded import MACHINES, build, load

from doctor import checks

PATHS = {path.stem: path for path in MACHINES}


def found(tmp_path: Path, machine: dict[str, Any], row: str) -> tuple[str, str]:
    """Status and sight of a row of the table."""
    (one,) = (each for each in checks.examine(build(machine, tmp_path)) if each.name == row)
    return one.status, f"{one.seen}; {one.fix}"


@pytest.mark.parametrize(
    ("stem", "change", "row"),
    [
        # lxcfs shows the host's `present`, and the container's `online`.
        ("field-cpus-offline", {"environ": {"container": "lxc"}}, "CPUs"),
        ("field-cpus-offline", {"files": {"/sys/devices/system/cpu/online": "0-71\n"}}, "CPUs"),
        ("field-mce-hardware-error", {"dmesg": "[1.0] mce: [Hardware Error]: CPU 0: Machine Check:"
         " 0 Bank 7: 8c00004000010092\n"}, "kernel log"),
        ("field-ib-card-on-half-its-lanes", {"dmesg": "[1.0] mlx5_core 0000:5e:00.0: 500.000 Gb/s"
         " available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link at 0000:5c:01.0 (capable of"
         " 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"}, "InfiniBand"),
        ("field-address-space-limited", {"files": {"/proc/self/limits":
         "Max address space         8796093022208        8796093022208        bytes\n"}}, "limits"),
        ("field-gb200-imex-not-running", {"says": {"systemctl is-active nvidia-imex":
         [3, "inactive\n", ""]}}, "GPU health"),
        # A card that no driver of today knows drives the screen.
        ("field-second-gpu-held-by-nouveau", {"cards": {1: {"device": "0x128b"}}}, "all GPUs"),
    ],
)  # fmt: skip
def test_it_is_sound(tmp_path, stem, change, row) -> None:
    machine = load(PATHS[stem])
    assert found(tmp_path / "before", machine, row)[0] in ("warn", "fail")
    changed = dict(machine)
    for key, value in change.items():
        if key == "cards":
            changed[key] = [{**c, **value.get(n, {})} for n, c in enumerate(machine[key])]
        else:
            changed[key] = value if isinstance(value, str) else {**machine.get(key, {}), **value}
    status, seen = found(tmp_path / "after", changed, row)
    assert status in ("ok", "skip"), seen


def test_a_card_that_is_not_known_is_not_taken_for_an_old_one(tmp_path) -> None:
    machine = load(PATHS["sound-srv-gt710-console"])
    assert found(tmp_path / "old", machine, "driver")[0] == "skip"
    machine["cards"] = [{**card, "device": "0x0000"} for card in machine["cards"]]
    assert found(tmp_path / "unknown", machine, "driver")[0] == "warn"


def test_ubuntu_is_told_of_its_own_packages(tmp_path) -> None:
    machine = load(PATHS["field-debian-without-libnvidia-ml"])
    release = "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n"
    machine["files"] = {**machine["files"], "/etc/os-release": release}
    status, seen = found(tmp_path, machine, "driver")
    assert status == "fail"
    assert "sudo apt-get install libnvidia-compute-550" in seen
