"""Whether programs reach the driver: which library is loaded, and what stands in its way."""

from __future__ import annotations

import re

from doctor import distribution, kind
from doctor.finding import Finding, fail, ok, warn
from host import limits, nvidia
from host import lines as table
from host.machine import Machine

# Where the driver's libraries lie: of each system, of WSL, of clouds, of NixOS.
_LIBRARIES = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/lib64/nvidia", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/lib"),
    *("/run/opengl-driver/lib", "/usr/lib/x86_64-linux-gnu/nvidia/current"),
)


def misled(machine: Machine, seen: str) -> Finding:
    """The driver answers, and what programs load and turn to is its own."""
    narrow = narrowed(machine, seen)
    if narrow is not None:
        return narrow
    misfit = _misfit(machine)
    if misfit is not None:
        folder, version = misfit
        return fail(
            "driver",
            f"{seen}; the loader finds {folder} first, with libcuda {version}",
            "a stub finds no device (34); a compat library that is older than the driver does not"
            " work with it (803), nor a newer one with a consumer's card (804)",
            f"take {folder} out of /etc/ld.so.conf.d, sudo ldconfig (in an image: RUN rm … &&"
            " ldconfig); or LD_LIBRARY_PATH with the folder of the driver's own libcuda",
        )
    mps, hidden, toolkit = _met(machine), _hidden(machine), _shadowing(machine)
    if mps is not None:
        return warn(
            "driver",
            f"{seen}; the host's MPS daemon is handed into this container: {mps}",
            "CUDA turns to it, and fails (805) where it may not or cannot reach it",
            "CUDA_MPS_PIPE_DIRECTORY=/nowhere; or start the container with --ipc=host; or, on"
            " the host, echo quit | nvidia-cuda-mps-control",
        )
    if hidden is not None:
        return warn(
            "driver",
            f"{seen}; LD_LIBRARY_PATH has {hidden} before the driver's own libcuda",
            "programs load that one: a stub finds no device, a compat library of another version"
            " fails (803, 804)",
            f"take {hidden} out of LD_LIBRARY_PATH",
        )
    if toolkit is not None:
        return warn(
            "driver",
            f"{seen}; LD_LIBRARY_PATH has a CUDA toolkit's libraries: {toolkit}",
            "torch brings its own, and then loads some of each: undefined symbols, or crashes",
            f"take {toolkit} out of LD_LIBRARY_PATH",
        )
    return ok("driver", seen)


def narrowed(machine: Machine, seen: str) -> Finding | None:
    """This container was given what nvidia-smi needs, and nothing to compute with."""
    told = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES", "compute")
    narrow = told != "" and not {"compute", "all"} & {*told.replace(" ", "").split(",")}
    narrow = narrow and limits.in_container(machine.root)
    cuda = _has_cuda(machine)
    # What is described by CDI comes whole, whatever that variable says.
    if cuda or (cuda is None and not narrow):
        return None
    return fail(
        "driver",
        f"{seen}; its libcuda.so.1 is not here, only what nvidia-smi needs",
        "torch finds no driver",
        _whole(machine),
    )


def _has_cuda(machine: Machine) -> bool | None:
    """Whether CUDA's library is here; None where not even nvidia-smi's is seen."""
    paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    names = [name for folder in (*_LIBRARIES, *paths) if folder for name in machine.names(folder)]
    kept = machine.run("ldconfig", "-p").out
    smi, cuda = (
        # A Jetson's have more numbers behind.
        any(name.startswith(f"{library}.so.1") for name in names) or f"{library}.so.1" in kept
        for library in ("libnvidia-ml", "libcuda")
    )
    return True if cuda else (False if smi else None)


def _whole(machine: Machine) -> str:
    """How a program gets all of the driver's libraries."""
    if kind.is_apptainer(machine):
        return "start it with --nv: apptainer exec --nv …"
    few = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES", "compute")
    if kind.is_lxc(machine) and "compute" not in few and few != "all":
        return "on the host: incus (lxc) config set NAME nvidia.driver.capabilities=compute,utility"
    if limits.in_container(machine.root):
        told = machine.environ.get("NVIDIA_DRIVER_CAPABILITIES")
        told = f" (this one was started with {told})" if told else ""
        return (
            "start the container with --gpus all, in Compose capabilities: [gpu], or with"
            f" NVIDIA_DRIVER_CAPABILITIES=compute,utility{told}"
        )
    return distribution.libraries(machine, nvidia.loaded(machine) or "")


def denied(machine: Machine, device: str) -> str | None:
    """The group that a device belongs to, by number, where this user may not open it."""
    group = machine.run("stat", "-c", "%g", device).out.strip()
    if not group.isdecimal() or machine.run("test", "-w", device).code != 1:
        return None
    return None if group in machine.run("id", "-G").out.split() else group


def _hidden(machine: Machine) -> str | None:
    """A folder of LD_LIBRARY_PATH with CUDA's stub of the driver's library, or a compat one."""
    for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":"):
        stub = re.search(r"/(stubs|compat)(?:/lib)?/?$", folder)
        # A shell of Nix has the driver of its own channel.
        nix = re.match(r"/nix/store/[^/]*nvidia-x11-", folder)
        names = machine.names(folder) if stub or nix else []
        if not any(name.startswith("libcuda.so") for name in names):
            continue
        version, own = _version(names), nvidia.loaded(machine)
        if version is not None and version == own:
            continue
        able = all(nvidia.takes_newer_cuda(gpu.name) for gpu in nvidia.ask(machine)[1])
        # Made for that: a newer CUDA on a data centre's card, or some workstations', under an older
        # driver.
        meant = version and own and _numbers(version) > _numbers(own) and able
        if not meant or not re.search("/compat(/lib)?/?$", folder):
            return folder
    return None


def _version(names: list[str]) -> str | None:
    """The release of the libcuda among a folder's names."""
    found = [re.fullmatch(r"libcuda\.so\.(\d[\d.]+\d)", name) for name in names]
    return next((each.group(1) for each in found if each and "." in each.group(1)), None)


def _misfit(machine: Machine) -> tuple[str, str] | None:
    """A folder of compat libraries that the loader knows of before the driver's own, and their
    version, where that does not work with it.
    """
    listed = machine.run("ldconfig", "-p").out
    first = re.search(r"libcuda\.so\.1 .*=> (\S+)/libcuda", listed)
    told = machine.environ.get("LD_LIBRARY_PATH", "")  # which is said first
    if first is not None and "/stubs" in first.group(1) and first.group(1) not in told:
        return first.group(1), "of a toolkit's stub"
    if first is None or "/compat" not in first.group(1):
        return None
    folder, own = first.group(1), nvidia.loaded(machine)
    version = _version(machine.names(folder))
    if version is None or not own or version == own:
        return None
    newer = _numbers(version) > _numbers(own)
    able = all(nvidia.takes_newer_cuda(gpu.name) for gpu in nvidia.ask(machine)[1])
    return None if newer and (folder in told or able) else (folder, version)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


_CUDNN = 10  # the minor version that our wheels bring at the least: requirements/cuda12.txt
_OF_HOST = "ipc:[4026531839]"  # the machine's first space of names
_CLASHES = re.compile(r"lib(?:(?:nvJitLink|cublas|cusparse)\.so\.1[23]\b|cudnn\w*\.so\.9\b)")


def _shadowing(machine: Machine) -> str | None:
    """A folder of LD_LIBRARY_PATH with a CUDA toolkit's libraries, which torch brings itself."""
    if kind.is_jetson(machine):  # whose torch brings none
        return None
    for folder in machine.environ.get("LD_LIBRARY_PATH", "").split(":"):
        # What a torch here brings lies there for others, such as CTranslate2.
        own = folder.startswith(f"{machine.home}/.venv/")
        names = machine.names(folder) if folder and not own else []
        # PyTorch of today asks for those of CUDA 12 or 13, by number; newer ones serve it as well.
        if any(_CLASHES.match(name) for name in names) and not _is_as_new(machine, folder, names):
            return folder
    return None


def _is_as_new(machine: Machine, folder: str, names: list[str]) -> bool:
    """Whether a toolkit is as new as what a line of ours has of its CUDA, or newer."""
    cudnn = [re.match(r"libcudnn\w*\.so\.9\.(\d{1,4})\.", name) for name in names]
    if any(re.match(r"libcudnn\w*\.so\.9\b", name) for name in names):
        # Which has a number of its own.
        newest = max((int(each.group(1)) for each in cudnn if each), default=0)
        if newest < _CUDNN:
            return False
    folder = machine.real(folder)
    libraries = (re.match(r"lib(?:nvJitLink|cublas)\.so\.(\d+\.\d+)\.", name) for name in names)
    told = [each.group(1) for each in libraries if each] or re.findall(r"cuda-(\d+\.\d+)", folder)
    own = [_numbers(line.image)[:2] for line in table.lines()]
    release = _numbers(told[0]) if told else []
    return any(release >= each for each in own if release[:1] == each[:1])


def _met(machine: Machine) -> str | None:
    """The folder of an MPS daemon that is somebody else's: of the host, seen from a container."""
    folder = machine.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108
    # Kubernetes' device plugin shares GPUs by a daemon of its own below /mps.
    if folder.startswith("/mps/") or "control" not in machine.names(folder):
        return None
    if not limits.in_container(machine.root):
        return None
    if machine.real("/proc/self/ns/ipc").endswith(_OF_HOST):
        return None  # --ipc=host: it reaches it
    number = (machine.read(f"{folder}/nvidia-cuda-mps-control.pid") or "").strip()
    return None if number.isdecimal() and machine.exists(f"/proc/{number}") else folder
