"""Why nvidia-smi lists nothing under Windows' kernel for Linux, or in a guest of Hyper-V."""

from __future__ import annotations

import re

from doctor import distribution, wsl
from doctor.finding import Finding, fail, warn
from host.machine import Answer, Machine

_LIBRARIES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"),
    "/usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian's
)
# Windows' own has no number of a version; a package's has.
_OWN = re.compile(r"libnvidia-ml\.so\.\d{3}[\d.]*")
_CRASHED = (-11, 139)
# The driver's packages, and not the container toolkit's.
_PURGE = (
    "sudo apt-get purge '^(lib)?nvidia-(cfg|com|dec|dkms|driver|enc|extra|fbc|gl|headless|kernel"
    "|utils).*' '^libcuda1$' && sudo ldconfig, then open the shell anew; or CPUS=1"
)
_LDCONFIG = (
    "/etc/wsl.conf has [automount] ldconfig = false: nobody tells the loader of /usr/lib/wsl/lib",
    (
        "take that out, then wsl --shutdown in Windows; or echo /usr/lib/wsl/lib | sudo tee"
        " /etc/ld.so.conf.d/ld.wsl.conf && sudo ldconfig"
    ),
)
_UPDATE = (
    "in Windows: install NVIDIA's newest driver, nvidia-smi -i N -dm 0 (WDDM) for each card as"
    " administrator, then wsl --update and wsl --shutdown; or CPUS=1"
)
_CRASH = (
    "GPUs are counted by it; CUDA itself may work all the same",
    (
        "restart Windows (after an upgrade of its driver above all); else install NVIDIA's newest"
        " driver there; or CPUS=1"
    ),
)
_PART = (
    "its libraries speak to Windows' driver, and need all of its files: some are not here",
    (
        "copy them anew from the Windows host after each of its driver's upgrades:"
        " C:\\Windows\\System32\\lxss\\lib and C:\\Program Files\\WSL\\lib (libdxcore, libd3d12)"
        " to /usr/lib/wsl/lib, and"
        " …\\DriverStore\\FileRepository\\nv* whole to /usr/lib/wsl/drivers; or CPUS=1"
    ),
)
# What it says; why; what helps. The last is for all else.
_SAID = (
    (
        "Driver Not Loaded",
        "so it says in a terminal that was opened as administrator",
        f"open it without `Run as administrator`; where it says so there, too: {_UPDATE}",
    ),
    (
        "blocked by the operating system",
        "Windows does not let WSL use the GPU: the card is in TCC mode, or its driver is old",
        _UPDATE,
    ),
    (
        "device handle",
        "one card in TCC mode, or one that does not answer, takes all of them away from WSL",
        _UPDATE,
    ),
    (
        "",
        "Windows' driver, its kernel for Linux and the libraries from it do not fit each other",
        _UPDATE,
    ),
)


def blocked(machine: Machine, answer: Answer) -> Finding | None:
    """Why nvidia-smi lists nothing under WSL 2; None elsewhere, and where Windows has no driver."""
    if answer.code == 127 or not machine.exists(wsl.DEVICE):
        return None if answer.code == 127 else _without_dxgkrnl(machine)
    rows = [row for row in answer.said.splitlines() if row.strip()]
    seen = (rows or [f"code {answer.code}"])[0][:120]
    own = _own(machine, _OWN)
    if own is not None and machine.exists(f"{wsl.LIBRARIES}/nvidia-smi"):
        return fail(
            "driver",
            f"WSL 2: a Linux driver is installed beside Windows' own: {own}",
            "it hides the libraries that speak to Windows' driver",
            _purge(machine),
        )
    if "couldn't find libnvidia-ml" in answer.said and _without_ldconfig(machine):
        return fail("driver", f"WSL 2: nvidia-smi says: {seen}", *_LDCONFIG)
    if not wsl.is_windows(machine):
        return fail(
            "driver", f"a guest of Hyper-V with a part of a GPU: nvidia-smi says: {seen}", *_PART
        )
    if answer.code in _CRASHED:
        return fail("driver", "WSL 2: nvidia-smi crashes, in Windows' libnvidia-ml", *_CRASH)
    why, fix = next((why, fix) for sign, why, fix in _SAID if sign in answer.said)
    return fail("driver", f"WSL 2: nvidia-smi says: {seen}", why, fix)


def _without_dxgkrnl(machine: Machine) -> Finding | None:
    """A guest of Hyper-V with a part of a GPU, under a kernel that does not know such a part."""
    if wsl.is_windows(machine) or not machine.exists(f"{wsl.LIBRARIES}/nvidia-smi"):
        return None
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    names = (name for name in machine.names("/lib/modules") if "dxg" in name and name != running)
    other = next(names, None)
    return fail(
        "driver",
        f"a guest of Hyper-V with Windows' libraries, and without {wsl.DEVICE}",
        "that is the way to Windows' driver, and a kernel with dxgkrnl makes it: this one has none",
        (f"boot {other}" if other else "sudo modprobe dxgkrnl; else build it for this kernel")
        + "; or CPUS=1",
    )


def hidden(machine: Machine) -> Finding | None:
    """Windows' driver answers, and programs would load the libcuda of a Linux one: PyTorch by the
    name with .1, some others by the one without.
    """
    if not wsl.is_windows(machine) or not machine.exists(f"{wsl.LIBRARIES}/nvidia-smi"):
        return None
    if _without_ldconfig(machine):
        return fail("driver", "WSL 2: the loader does not know Windows' libcuda", *_LDCONFIG)
    own = _own(machine, re.compile(r"libcuda\.so\.\d{3}[\d.]*"))
    cache = machine.run("ldconfig", "-p").out
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    names = ("libcuda.so.1", "libcuda.so")
    firsts = [re.search(rf"{re.escape(name)} .*=> (\S+)/libcuda", cache) for name in names]
    lost = [f is not None and not f.group(1).startswith(wsl.LIBRARIES) for f in firsts]
    if own is None or not any(lost) or wsl.LIBRARIES in paths:
        return None
    seen = f"WSL 2: a Linux driver is installed beside Windows' own: {own}"
    if lost[0]:
        why = "programs load that libcuda, which finds no GPU here (100)"
        return fail("driver", seen, why, _purge(machine))
    return warn(
        "driver",
        seen,
        "PyTorch finds Windows' libcuda.so.1; what loads libcuda.so gets the other (no GPU, 100)",
        _purge(machine),
    )


def _own(machine: Machine, sign: re.Pattern[str]) -> str | None:
    """A library of a Linux driver."""
    return next(
        (f"{at}/{name}" for at in _LIBRARIES for name in machine.names(at) if sign.fullmatch(name)),
        None,
    )


def _purge(machine: Machine) -> str:
    """How a Linux driver is removed."""
    dnf = "sudo dnf remove 'xorg-x11-drv-nvidia*' 'nvidia-driver*'"
    ways = {"arch": "sudo pacman -Rdd nvidia-utils", "fedora": dnf, "rhel": dnf}
    own = distribution.of(machine, ways, "")
    return f"{own} && sudo ldconfig, then open the shell anew; or CPUS=1" if own else _PURGE


def _without_ldconfig(machine: Machine) -> bool:
    """Whether WSL was told not to make Windows' libraries known, and nobody else has."""
    if wsl.setting(machine, "automount", "ldconfig") != "false":
        return False
    known = machine.run("ldconfig", "-p").out + machine.environ.get("LD_LIBRARY_PATH", "")
    return wsl.LIBRARIES not in known
