"""Windows' kernel for Linux, and what is other there."""

from __future__ import annotations

import re

from doctor import log
from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, meminfo, plan, visible
from host.machine import Machine

MANY = 3
"""GPUs; CUDA often starts with no more: https://github.com/microsoft/WSL/issues/10269."""
DEVICE = "/dev/dxg"
LIBRARIES = "/usr/lib/wsl/lib"
DRIVERS = "/usr/lib/wsl/drivers"
_USERS = "/mnt/c/Users"
_HANDS_GPUS = 1288
_NOBODY = re.compile(
    r"All Users|Default|Default User|Public|desktop\.ini|WsiAccount|defaultuser\d*"
    r"|Administrator|DefaultAppPool|WDAGUtilityAccount"
)
_OLD = re.compile(r"(4\.19|5\.4)\.[0-9.]+-microsoft-standard(-wsl2)?$")
_OF_WINDOWS = re.compile("wsl2|^4[.]4[.]0-[0-9]+-microsoft")  # version 2, and version 1


def is_windows(machine: Machine) -> bool:
    """Whether this is Windows' kernel for Linux."""
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    return "microsoft" in release or "-wsl2" in release  # the second of who builds it himself


def setting(machine: Machine, section: str, key: str) -> str:
    """What /etc/wsl.conf says of a key; "" where it says nothing."""
    said = (machine.read("/etc/wsl.conf") or "").lower()
    part = re.search(rf"^\[{section}\](.*?)(?=^\[|\Z)", said, re.MULTILINE | re.DOTALL)
    found = re.search(rf"^\s*{key}\s*=\s*(\w+)", part.group(1) if part else "", re.MULTILINE)
    return found.group(1) if found else ""


def wsl(machine: Machine) -> Finding:
    """It is of version 2, and the checkout is on its own disk."""
    if not is_windows(machine):
        return skip("WSL", "not Windows")
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    without = _without_device(machine, release)
    if without is not None:
        return without
    if "wsl2" not in release and not machine.exists(DEVICE):
        return fail(
            "WSL",
            "version 1",
            "it has no GPUs, no cgroups and no containers",
            "in Windows: wsl --set-version <distribution> 2",
        )
    if not machine.has("nvidia-smi") and machine.exists(f"{LIBRARIES}/nvidia-smi"):
        return warn(
            "WSL",
            f"Windows' driver is here, and {LIBRARIES} is not in PATH",
            "programs do not find the GPU, and train on the CPU",
            f"export PATH=$PATH:{LIBRARIES}",
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
    if setting(machine, "gpu", "enabled") == "false" and not machine.exists(
        f"{LIBRARIES}/nvidia-smi"
    ):
        return warn(
            "WSL",
            "/etc/wsl.conf switches the GPU off: [gpu] enabled = false",
            "Windows hands over no GPU: it trains on the CPU",
            "take it out; then wsl --shutdown in Windows",
        )
    if not machine.exists(DEVICE) and _OLD.match(release):
        return warn(
            "WSL",
            f"Windows' kernel for Linux is an old one, {release.strip()}",
            f"it has no {DEVICE}, the way to Windows' driver",
            "in Windows: update it (21H2 or newer), install NVIDIA's newest driver, wsl --update,"
            " wsl --shutdown",
        )
    # All of Windows 10 from 2004 on call themselves 19041; 21H2 began with this revision.
    row = log.last(machine, "Host Build:") or ""
    build = re.search(r"Host Build:19041-10\.0-\d+-\d+\.(\d+)", row)
    if not machine.exists(DEVICE) and build and int(build.group(1)) < _HANDS_GPUS:
        return warn(
            "WSL",
            "this Windows 10 is older than 21H2",
            "it hands no GPU to WSL: it trains on the CPU",
            "in Windows: update it (21H2 or newer), install NVIDIA's newest driver, wsl --update,"
            " wsl --shutdown",
        )
    if not machine.exists(DEVICE) and not _OF_WINDOWS.search(release):
        return fail(
            "WSL",
            f"its kernel, {release.strip()}, has no {DEVICE}",
            "that is the way to Windows' driver: a kernel of one's own may be built without",
            "take kernel= out of .wslconfig in Windows, or build it with CONFIG_DXGKRNL=y; then"
            " wsl --shutdown",
        )
    return None


def ignored(machine: Machine) -> Finding | None:
    """Windows' file says how much memory there is to be, and there is another amount.

    https://github.com/microsoft/WSL/issues/7851
    """
    if not is_windows(machine):
        return None
    users = [name for name in machine.names(_USERS) if not _NOBODY.fullmatch(name)]
    said = machine.read(f"{_USERS}/{users[0]}/.wslconfig") or "" if len(users) == 1 else ""
    # It may have two bytes a letter.
    size = re.search(
        r"(?mi)^\s*memory\s*=\s*(\d{1,15})\s*([TGM]?)B?[ \t\r]*$", said.replace("\0", "")
    )
    names = (".wslconf", ".wslconfig.txt", "wslconfig", ".wslconfig.ini")
    home = f"{_USERS}/{users[0]}" if len(users) == 1 else ""
    other = next((name for name in names if home and machine.exists(f"{home}/{name}")), "")
    if other and not machine.exists(f"{home}/.wslconfig"):
        return warn(
            "memory",
            f"Windows' user has a file {other}, which WSL does not read",
            "what it says of memory and processors is passed over",
            "rename it to .wslconfig (Explorer: show extensions of names), and wsl --shutdown",
        )
    if not said and re.search(
        r"(?ms)^\[wsl2\][^\[]*^memory\s*=", machine.read("/etc/wsl.conf") or ""
    ):
        return warn(
            "memory",
            "/etc/wsl.conf has [wsl2] memory=, which WSL reads from .wslconfig alone",
            "what it says of memory and processors is passed over: Unknown key 'wsl2.memory'",
            "have it in C:\\Users\\NAME\\.wslconfig, and wsl --shutdown",
        )
    total = meminfo.total(machine.root)
    if size is None or total is None:
        return None
    told = int(size.group(1)) << {"T": 40, "G": 30, "M": 20}.get(size.group(2).upper(), 0)
    if not told or 0.85 * told <= total <= 1.05 * told:
        return None
    return warn(
        "memory",
        f".wslconfig says {size.group().strip()}, and there are {total / 2**30:.0f} GiB",
        "WSL has not read it so, or Windows has less than that",
        "save it as UTF-8 without a mark at its start (BOM), with [wsl2] above that line; then wsl"
        " --shutdown",
    )


def _device(machine: Machine) -> Finding:
    """Windows hands a GPU over, of whichever maker; without CUDA here nobody may want one."""
    if machine.exists(DEVICE):
        many = len(visible.seen(machine)) > MANY
        note = "; where CUDA says error 2, show it fewer GPUs: CUDA_VISIBLE_DEVICES=0,1,2"
        return ok("WSL", f"version 2: the driver is Windows'; install none inside{note * many}")
    if limits.in_container(machine.root) or plan.on_cpu(machine.environ):
        return ok("WSL", f"version 2, without a GPU ({DEVICE})")
    if machine.exists(f"{LIBRARIES}/nvidia-smi"):
        return warn(
            "WSL",
            f"Windows has NVIDIA's driver, and hands over no GPU ({DEVICE} is missing)",
            "a card in TCC mode is not handed over (Teslas start in it), nor any with"
            " gpuSupport=false in .wslconfig, nor with Windows 10 before 21H2",
            "in Windows: nvidia-smi shows TCC or WDDM, and nvidia-smi -i N -dm 0 changes it (some"
            " Teslas need a Quadro driver for that); then wsl --update, wsl --shutdown",
        )
    wanted = any(name.startswith("cuda") for name in machine.names("/usr/local"))
    if not wanted:
        return ok("WSL", f"version 2, without a GPU ({DEVICE})")
    return warn(
        "WSL",
        f"version 2, with CUDA and without {DEVICE}: Windows hands over no GPU",
        "Windows 10 does so from 21H2 on; its driver or WSL may be too old as well",
        "in Windows: update it, install NVIDIA's newest driver, wsl --update, wsl --shutdown;"
        " no driver inside",
    )
