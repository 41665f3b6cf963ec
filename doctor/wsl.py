"""Windows' kernel for Linux, and what is other there."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, plan, visible
from host.machine import Answer, Machine

MANY = 3
"""GPUs; CUDA often starts with no more: https://github.com/microsoft/WSL/issues/10269."""
_DEVICE = "/dev/dxg"
_WSL = "/usr/lib/wsl/lib"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Windows' own has no number of a version; a package's has.
_OWN = re.compile(r"libnvidia-ml\.so\.\d{3}[\d.]*")
_OLD = re.compile(r"(4\.19|5\.4)\.[0-9.]+-microsoft-standard(-wsl2)?$")
_OF_WINDOWS = re.compile("wsl2|^4[.]4[.]0-[0-9]+-microsoft")  # version 2, and version 1
# The driver's packages, and not the container toolkit's.
_PURGE = (
    "sudo apt-get purge '^(lib)?nvidia-(cfg|com|dec|dkms|driver|enc|extra|fbc|gl|headless|kernel"
    "|utils).*' && sudo ldconfig, then open the shell anew; or CPUS=1"
)
_LDCONFIG = (
    "/etc/wsl.conf has [automount] ldconfig = false: nobody tells the loader of /usr/lib/wsl/lib",
    (
        "take that out, then wsl --shutdown in Windows; or echo /usr/lib/wsl/lib | sudo tee"
        " /etc/ld.so.conf.d/ld.wsl.conf && sudo ldconfig"
    ),
)
_UPDATE = (
    "in Windows: install NVIDIA's newest driver, nvidia-smi -i N -dm 0 (WDDM) for each"
    " card as administrator, then wsl --update and wsl --shutdown"
)


def is_windows(machine: Machine) -> bool:
    """Whether this is Windows' kernel for Linux."""
    return "microsoft" in (machine.read("/proc/sys/kernel/osrelease") or "").lower()


def blocked(machine: Machine, answer: Answer) -> Finding | None:
    """Why nvidia-smi lists nothing under WSL 2; None elsewhere, and where Windows has no driver."""
    if answer.code == 127:
        return None
    if not machine.exists(_DEVICE):
        return _without_dxgkrnl(machine)
    rows = [row for row in answer.said.splitlines() if row.strip()]
    seen = (rows or [f"code {answer.code}"])[0][:120]
    own = next((name for name in machine.names(_LIBRARIES) if _OWN.fullmatch(name)), None)
    if own is not None and machine.exists(f"{_WSL}/nvidia-smi"):
        return fail(
            "driver",
            f"WSL 2: a Linux driver is installed beside Windows' own: {_LIBRARIES}/{own}",
            "it hides the libraries that speak to Windows' driver",
            _PURGE,
        )
    if "couldn't find libnvidia-ml" in answer.said and _without_ldconfig(machine):
        return fail("driver", f"WSL 2: nvidia-smi says: {seen}", *_LDCONFIG)
    if not is_windows(machine):
        return fail(
            "driver",
            f"a guest of Hyper-V with a part of a GPU: nvidia-smi says: {seen}",
            "its libraries speak to Windows' driver, and need all of its files: some are not here",
            "copy them anew from the Windows host after each of its driver's upgrades:"
            " C:\\Windows\\System32\\lxss\\lib to /usr/lib/wsl/lib, and"
            " …\\DriverStore\\FileRepository\\nv* whole to /usr/lib/wsl/drivers; or CPUS=1",
        )
    why = "Windows' driver, its kernel for Linux and the libraries from it do not fit each other"
    if "blocked by the operating system" in answer.said:
        why = "Windows does not let WSL use the GPU: the card is in TCC mode, or its driver is old"
    if "device handle" in answer.said:
        why = "one card in TCC mode, or one that does not answer, takes all of them away from WSL"
    return fail("driver", f"WSL 2: nvidia-smi says: {seen}", why, f"{_UPDATE}; or CPUS=1")


def _without_dxgkrnl(machine: Machine) -> Finding | None:
    """A guest of Hyper-V with a part of a GPU, under a kernel that does not know such a part."""
    if is_windows(machine) or not machine.exists(f"{_WSL}/nvidia-smi"):
        return None
    running = (machine.read("/proc/sys/kernel/osrelease") or "").strip()
    names = (name for name in machine.names("/lib/modules") if "dxg" in name and name != running)
    other = next(names, None)
    return fail(
        "driver",
        f"a guest of Hyper-V with Windows' libraries, and without {_DEVICE}",
        "that is the way to Windows' driver, and a kernel with dxgkrnl makes it: this one has none",
        (f"boot {other}" if other else "sudo modprobe dxgkrnl; else build it for this kernel")
        + "; or CPUS=1",
    )


def hidden(machine: Machine) -> Finding | None:
    """Windows' driver answers, and programs would load the libcuda of a Linux one: PyTorch by the
    name with .1, some others by the one without.
    """
    if not is_windows(machine) or not machine.exists(f"{_WSL}/nvidia-smi"):
        return None
    if _without_ldconfig(machine):
        return fail("driver", "WSL 2: the loader does not know Windows' libcuda", *_LDCONFIG)
    own = next(
        (n for n in machine.names(_LIBRARIES) if re.fullmatch(r"libcuda\.so\.\d{3}[\d.]*", n)), None
    )
    cache = machine.run("ldconfig", "-p").out
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    names = ("libcuda.so.1", "libcuda.so")
    firsts = [re.search(rf"{re.escape(name)} .*=> (\S+)/libcuda", cache) for name in names]
    lost = [f is not None and not f.group(1).startswith(_WSL) for f in firsts]
    if own is None or not any(lost) or _WSL in paths:
        return None
    seen = f"WSL 2: a Linux driver is installed beside Windows' own: {_LIBRARIES}/{own}"
    if lost[0]:
        why = "programs load that libcuda, which finds no GPU here (100)"
        return fail("driver", seen, why, _PURGE)
    return warn(
        "driver",
        seen,
        "PyTorch finds Windows' libcuda.so.1; what loads libcuda.so gets the other (no GPU, 100)",
        _PURGE,
    )


def _setting(machine: Machine, section: str, key: str) -> str:
    """What /etc/wsl.conf says of a key; "" where it says nothing."""
    said = (machine.read("/etc/wsl.conf") or "").lower()
    part = re.search(rf"^\[{section}\](.*?)(?=^\[|\Z)", said, re.MULTILINE | re.DOTALL)
    found = re.search(rf"^\s*{key}\s*=\s*(\w+)", part.group(1) if part else "", re.MULTILINE)
    return found.group(1) if found else ""


def _without_ldconfig(machine: Machine) -> bool:
    """Whether WSL was told not to make Windows' libraries known, and nobody else has."""
    if _setting(machine, "automount", "ldconfig") != "false":
        return False
    known = machine.run("ldconfig", "-p").out + machine.environ.get("LD_LIBRARY_PATH", "")
    return _WSL not in known


def wsl(machine: Machine) -> Finding:
    """It is of version 2, and the checkout is on its own disk."""
    if not is_windows(machine):
        return skip("WSL", "not Windows")
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    without = _without_device(machine, release)
    if without is not None:
        return without
    if "wsl2" not in release and not machine.exists(_DEVICE):
        return fail(
            "WSL",
            "version 1",
            "it has no GPUs, no cgroups and no containers",
            "in Windows: wsl --set-version <distribution> 2",
        )
    if not machine.has("nvidia-smi") and machine.exists(f"{_WSL}/nvidia-smi"):
        return warn(
            "WSL",
            f"Windows' driver is here, and {_WSL} is not in PATH",
            "programs do not find the GPU, and train on the CPU",
            f"export PATH=$PATH:{_WSL}",
        )
    if re.match(r"/mnt/[a-z]/", machine.home):
        return warn(
            "WSL",
            f"the checkout is on Windows' disk: {machine.home}",
            "each file takes ten times as long there, and permissions are not kept",
            "git clone it again under ~",
        )
    return _device(machine)


def _without_device(machine: Machine, release: str) -> Finding | None:
    """It was told to have no GPU, or its kernel cannot have one."""
    if _setting(machine, "gpu", "enabled") == "false" and not machine.exists(f"{_WSL}/nvidia-smi"):
        return warn(
            "WSL",
            "/etc/wsl.conf switches the GPU off: [gpu] enabled = false",
            "Windows hands over no GPU: it trains on the CPU",
            "take it out; then wsl --shutdown in Windows",
        )
    if not machine.exists(_DEVICE) and _OLD.match(release):
        return warn(
            "WSL",
            f"Windows' kernel for Linux is an old one, {release.strip()}",
            f"it has no {_DEVICE}, the way to Windows' driver",
            "in Windows: update it (21H2 or newer), install NVIDIA's newest driver, wsl --update,"
            " wsl --shutdown",
        )
    if not machine.exists(_DEVICE) and not _OF_WINDOWS.search(release):
        return fail(
            "WSL",
            f"its kernel, {release.strip()}, has no {_DEVICE}",
            "that is the way to Windows' driver: a kernel of one's own may be built without",
            "take kernel= out of .wslconfig in Windows, or build it with CONFIG_DXGKRNL=y; then"
            " wsl --shutdown",
        )
    return None


def _device(machine: Machine) -> Finding:
    """Windows hands a GPU over, of whichever maker; without CUDA here nobody may want one."""
    if machine.exists(_DEVICE):
        many = len(visible.seen(machine)) > MANY
        note = "; where CUDA says error 2, show it fewer GPUs: CUDA_VISIBLE_DEVICES=0,1,2"
        return ok("WSL", f"version 2: the driver is Windows'; install none inside{note * many}")
    if limits.in_container(machine.root) or plan.on_cpu(machine.environ):
        return ok("WSL", f"version 2, without a GPU ({_DEVICE})")
    if machine.exists(f"{_WSL}/nvidia-smi"):
        return warn(
            "WSL",
            f"Windows has NVIDIA's driver, and hands over no GPU ({_DEVICE} is missing)",
            "a card in TCC mode is not handed over (Teslas start in it), nor any with"
            " gpuSupport=false in .wslconfig, nor with Windows 10 before 21H2",
            "in Windows: nvidia-smi shows TCC or WDDM, and nvidia-smi -i N -dm 0 changes it (some"
            " Teslas need a Quadro driver for that); then wsl --update, wsl --shutdown",
        )
    wanted = any(name.startswith("cuda") for name in machine.names("/usr/local"))
    if not wanted:
        return ok("WSL", f"version 2, without a GPU ({_DEVICE})")
    return warn(
        "WSL",
        f"version 2, with CUDA and without {_DEVICE}: Windows hands over no GPU",
        "Windows 10 does so from 21H2 on; its driver or WSL may be too old as well",
        "in Windows: update it, install NVIDIA's newest driver, wsl --update, wsl --shutdown;"
        " no driver inside",
    )
