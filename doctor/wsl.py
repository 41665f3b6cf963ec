"""Windows' kernel for Linux, and what is other there."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import limits, plan
from host.machine import Answer, Machine

_DEVICE = "/dev/dxg"
_WSL = "/usr/lib/wsl/lib"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Windows' own has no number of a version; a package's has.
_OWN = re.compile(r"libnvidia-ml\.so\.\d{3}[\d.]*")
_OF_WINDOWS = re.compile("wsl2|^4[.]4[.]0-[0-9]+-microsoft")  # version 2, and version 1
# The driver's packages, and not the container toolkit's.
_PURGE = (
    "sudo apt-get purge '^(lib)?nvidia-(cfg|com|dec|dkms|driver|enc|extra|fbc|gl|headless|kernel"
    "|utils).*' && sudo ldconfig, then open the shell anew; or CPUS=1"
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
    if not machine.exists(_DEVICE) or answer.code == 127:
        return None
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


def hidden(machine: Machine) -> Finding | None:
    """Windows' driver answers, and programs would load the libcuda of a Linux one: PyTorch by the
    name with .1, some others by the one without.
    """
    if not is_windows(machine) or not machine.exists(f"{_WSL}/nvidia-smi"):
        return None
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


def wsl(machine: Machine) -> Finding:
    """It is of version 2, and the checkout is on its own disk."""
    if not is_windows(machine):
        return skip("WSL", "not Windows")
    release = (machine.read("/proc/sys/kernel/osrelease") or "").lower()
    if not machine.exists(_DEVICE) and not _OF_WINDOWS.search(release):
        return fail(
            "WSL",
            f"its kernel, {release.strip()}, has no {_DEVICE}",
            "that is the way to Windows' driver: a kernel of one's own may be built without",
            "take kernel= out of .wslconfig in Windows, or build it with CONFIG_DXGKRNL=y; then"
            " wsl --shutdown",
        )
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


def _device(machine: Machine) -> Finding:
    """Windows hands a GPU over, of whichever maker; without CUDA here nobody may want one."""
    if machine.exists(_DEVICE):
        return ok("WSL", "version 2: the driver is Windows'; install none inside")
    wanted = any(name.startswith("cuda") for name in machine.names("/usr/local"))
    if not wanted or limits.in_container(machine.root) or plan.on_cpu(machine.environ):
        return ok("WSL", f"version 2, without a GPU ({_DEVICE})")
    return warn(
        "WSL",
        f"version 2, with CUDA and without {_DEVICE}: Windows hands over no GPU",
        "Windows 10 does so from 21H2 on; its driver or WSL may be too old as well",
        "in Windows: update it, install NVIDIA's newest driver, wsl --update, wsl --shutdown;"
        " no driver inside",
    )
