"""What `nvidia-smi -q` alone says of a GPU."""

from pathlib import Path

import pytest
from recorded import MACHINES, build, load

from doctor import details

PATH = next(path for path in MACHINES if path.stem == "field-h100-application-clocks-left-low")
WELL = """
GPU 00000000:18:00.0
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
    PCI
        Replays Since Reset               : 312
        Replay Number Rollovers           : 0
    Clocks Event Reasons
        Idle                              : Active
        Sync Boost                        : Not Active
    Applications Clocks
        Graphics                          : 1980 MHz
    Default Applications Clocks
        Graphics                          : 1980 MHz
    Fabric
        State                             : Completed
        Health
            Bandwidth                     : Full
            Route Recovery in progress    : False
            Route Unhealthy               : False
            Incorrect Configuration       : None
"""


def said(tmp_path: Path, answer: str) -> str | None:
    found = details.worst(build({**load(PATH), "smi_q": answer}, tmp_path))
    return found and f"{found.status} {found.seen}; {found.fix}"


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("Pending                           : Enabled", "Pending : Disabled",
         "warn GPU 0: error correction (ECC) is enabled, and will be disabled"),
        ("Single Bit ECC                    : N/A", "Single Bit ECC : 61", "61 pages"),
        (": 312", ": 31200", "had to send 31,200 packets again"),
        ("Boost                        : Not Active", "Boost : Active", "waits for the clocks"),
        ("Graphics                          : 1980 MHz\n    Default",
         "Graphics : 1005 MHz\n    Default", "is set to 1005 MHz, and 1980 is usual"),
        (": Full", ": Degraded", "its NVLink has lost bandwidth; with nothing running: sudo nvid"),
        ("Unhealthy               : False", "Unhealthy : True", "is not well: route unhealthy"),
        (": None", ": Insufficient Resources", "was set up wrongly for it: Insufficient Reso"),
    ],
)  # fmt: skip
def test_each_sign_is_told(tmp_path, old, new, seen) -> None:
    assert old in WELL
    assert seen in str(said(tmp_path, WELL.replace(old, new)))


def test_a_gpu_that_is_well_and_answers_without_sense_are_not_told(tmp_path) -> None:
    assert said(tmp_path / "a", WELL) is None
    assert (
        said(tmp_path / "b", WELL.replace("18:00.0", "99:00.0").replace(": Full", ": Bad")) is None
    )
    for name, answer in (
        ("c", ""),
        ("d", "GPU 0\n : \n:::"),
        ("e", "\n    x : y\nGPU 00000000:18"),
    ):
        assert said(tmp_path / name, answer) is None
