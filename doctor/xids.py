"""What the driver's numbers for faults mean, and what helps.

https://docs.nvidia.com/deploy/xid-errors/ and what those report whose GPUs said so.
"""

from __future__ import annotations

_RESET = "sudo nvidia-smi --gpu-reset -i {gpu}, or reboot"
_FABRIC = (
    "reboot, since a reset of one GPU does not mend a fabric of several; if it comes back, have the"
    " machine serviced: nvidia-bug-report.sh"
)
REPLACE = "have the card replaced; until then hide it with CUDA_VISIBLE_DEVICES"
_POWER = "power the machine off and on; then look at plugs, riser and cooling"
# Number: what it means, what helps. Those that are missing are mostly faults of a program.
MEANING = {
    46: ("it stopped working on what it was given", _RESET),
    48: ("an error in its memory that could not be corrected", _RESET),
    54: ("its power plugs are not all connected", _POWER),
    61: ("its own controller stopped", _RESET),
    62: ("its own controller stopped", _RESET),
    63: ("a row of its memory is to be replaced by a spare one, at the next reset", _RESET),
    64: ("a row of its memory could not be replaced", REPLACE),
    74: ("an error on NVLink: a bridge, a cable, or the switch", _RESET),
    79: ("the GPU has fallen off the bus: power, heat, riser or the card itself", _POWER),
    92: (
        "very many errors in its memory were corrected",
        (
            "nothing yet: look at nvidia-smi -q -d ECC from time to time; where uncorrected errors"
            " come as well, have the card replaced"
        ),
    ),
    94: ("an error in its memory ended one program", _RESET),
    95: ("an error in its memory that may have reached any program", _RESET),
    109: ("it did not come back from one program to the others", _RESET),
    110: ("it stopped for a fault of its security", _RESET),
    119: (
        "its firmware (GSP) does not answer",
        (
            f"{_RESET}; update the driver; where it comes again, with closed modules: options"
            " nvidia NVreg_EnableGpuFirmware=0 in /etc/modprobe.d, and reboot"
        ),
    ),
    120: ("its firmware (GSP) stopped", f"{_RESET}; update the driver"),
    136: ("NVLink could not be set up", _RESET),
    140: ("errors in its memory that could not be corrected", _RESET),
    143: ("it could not be initialised", _RESET),
    144: ("its NVLink has failed", _RESET),
    145: ("an error on NVLink: GPUs may hang that talk to each other", _FABRIC),
    149: ("its NVLink has failed", _RESET),
    150: ("its NVLink has failed: what steers it has stopped", _RESET),
    156: ("a part of it is to be given up, at the next reset", _RESET),
    157: ("a part of it could not be given up", REPLACE),
    158: ("it did not answer in time", _RESET),
    167: ("its PCIe link has failed", "sudo reboot; if it comes back, seat the card again"),
    168: ("errors in a part of its memory that it keeps for itself", f"{_RESET}; then replace it"),
    146: ("its NVLink has failed", _RESET),
    147: ("its NVLink has failed", _RESET),
    148: ("its NVLink has failed", _RESET),
    151: ("the keys of confidential computing were not renewed", "restart this virtual machine"),
    154: ("the driver asks for a reset or a reboot", _RESET),
    155: ("an error on NVLink", _RESET),
}
