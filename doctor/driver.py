"""Whether the NVIDIA driver works, why not, and which CUDA line fits it."""

from __future__ import annotations

import re

from doctor.finding import Finding, fail, ok, skip, warn
from host import cuda, nvidia, pci
from host import lines as table
from host.errors import LockstepError
from host.machine import Machine

_REBOOT = "sudo reboot"
_WSL = "/usr/lib/wsl/lib"
_CPU = "or train on the CPU: CPUS=1"


# What nvidia-smi says, what it means, and what helps.
_COMPLAINTS = (
    (
        r"insufficient permissions",
        "this user may not open /dev/nvidia*: no program of yours sees a GPU",
        "sudo usermod -aG video,render $USER   # and log in again",
    ),
    (
        r"device handle|gpu is lost|fallen off the bus",
        "a GPU stopped answering: power, heat, riser or the card itself",
        f"sudo dmesg | grep -i xid; then {_REBOOT}",
    ),
    (
        r"no devices were found",
        "a card did not start: power plug, address space (BIOS: Above 4G decoding), or too old",
        "sudo dmesg | grep -iE 'nvrm|xid'",
    ),
    (
        r"failed to initialize nvml: unknown error",
        "the devices were taken away from this container (systemctl daemon-reload does it)",
        "start it anew; for good, native.cgroupdriver=cgroupfs in the engine's daemon.json, or CDI",
    ),
)


def driver(machine: Machine) -> Finding:
    """The driver answers; or the one reason why it does not."""
    answer, gpus = nvidia.ask(machine)
    said = answer.said
    # A GPU that is lost is complained of between the rows of the others, who may do without it.
    if gpus and ("device handle" not in said or "CUDA_VISIBLE_DEVICES" in machine.environ):
        return ok("driver", gpus[0].row["driver_version"])
    if "version mismatch" in said:
        library = re.search(r"NVML library version: ([\d.]+)", said)
        loaded = machine.read("/sys/module/nvidia/version") or "another"
        return fail(
            "driver",
            f"library {library.group(1) if library else 'new'}, kernel module {loaded}",
            "the driver was upgraded and the old module is still loaded: nothing starts on a GPU",
            f"{_REBOOT}   # {_CPU}",
        )
    if "no devices were found" in said.lower() and not _devices(machine):
        return skip("driver", "this job or container was given no GPU")
    for sign, why, fix in _COMPLAINTS:
        if re.search(sign, said, re.IGNORECASE):
            seen = next(row for row in said.splitlines() if re.search(sign, row, re.IGNORECASE))
            return fail("driver", seen, why, fix)
    cards = pci.cards(machine)
    if cards and not gpus:
        return _not_loaded(machine, cards)
    # nvidia-smi without a card: an image's, or a virtual machine's that lost it.
    return skip("driver", "no NVIDIA GPU on this machine")


def _not_loaded(machine: Machine, cards: list[pci.Card]) -> Finding:
    """A GPU is on the bus, and NVIDIA's module does not hold it."""
    on_bus = f"{len(cards)} GPU{'s' * (len(cards) != 1)} on the bus"
    # Whoever did not ask for GPUs trains on the CPU then, as on any machine without.
    unwell = fail if machine.environ.get("GPUS") else warn
    if any(card.driver == "nouveau" for card in cards):
        return unwell(
            "driver",
            f"{on_bus}, held by nouveau",
            "nouveau cannot compute: it trains on the CPU",
            "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/no-nouveau.conf;"
            " sudo update-initramfs -u; sudo ubuntu-drivers install --gpgpu && sudo reboot",
        )
    if any(card.driver == "vfio-pci" for card in cards):
        return unwell(
            "driver",
            f"{on_bus}, held by vfio-pci",
            "set aside for a virtual machine",
            f"sudo driverctl unset-override {cards[0].address}",
        )
    held = any(card.driver == "nvidia" for card in cards)
    if not machine.has("nvidia-smi"):
        if held and _devices(machine):
            return unwell(
                "driver",
                f"{on_bus}, given to this container without nvidia-smi",
                "GPUs are counted by nvidia-smi: without it, it trains on the CPU",
                "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            )
        if held:  # sysfs shows the host's cards in every container
            return skip("driver", "the host's GPUs are not given to this container")
        return unwell(
            "driver",
            f"{on_bus}, and no driver installed",
            "without it, it trains on the CPU",
            "sudo ubuntu-drivers install --gpgpu   # or your distribution's package",
        )
    return _silent(machine, on_bus, held)


def _silent(machine: Machine, on_bus: str, held: bool) -> Finding:
    """The driver is installed, and does not answer."""
    if held:
        answer, _ = nvidia.ask(machine)
        rows = [row for row in answer.said.splitlines() if row.strip()]
        return fail(
            "driver",
            f"{on_bus}, and nvidia-smi says: {(rows or ['nothing'])[-1][:120]}",
            "the driver is loaded and does not answer, as with a GPU that hangs",
            f"sudo dmesg | grep -iE 'nvrm|xid'; then {_REBOOT}; {_CPU}",
        )
    if _secure_boot(machine):
        return fail(
            "driver",
            f"{on_bus}; installed, not loaded, and Secure Boot is on",
            "the kernel refuses a module whose key it does not know",
            "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der && sudo reboot   # and enrol"
            f" the key in the blue screen; {_CPU}",
        )
    return fail(
        "driver",
        f"{on_bus}; installed, and not loaded",
        "after a kernel upgrade its module may not have been built",
        f"sudo modprobe nvidia || dkms status   # {_CPU}",
    )


def _devices(machine: Machine) -> bool:
    """Whether there is a device file of a GPU."""
    return any(re.fullmatch(r"nvidia\d+", name) for name in machine.names("/dev"))


def _secure_boot(machine: Machine) -> bool:
    folder = "/sys/firmware/efi/efivars"
    names = [n for n in machine.names(folder) if n.startswith("SecureBoot-")]
    # Four bytes of attributes, then the value.
    return any((machine.read(f"{folder}/{name}") or "")[-1:] == "\x01" for name in names)


def line(machine: Machine) -> Finding:
    """A CUDA line fits driver and GPUs: the table of the Dockerfile."""
    host = cuda.look(machine)
    if host is None:
        return skip("CUDA line", "no GPU")
    wanted = machine.environ.get("CUDA") or "auto"
    try:
        chosen = cuda.choose(table.lines(), host, wanted)
    except LockstepError as error:
        return fail("CUDA line", error.problem, "its kernels would not start there", error.fix)
    newest = table.lines()[0]
    if chosen == newest or wanted != "auto":
        return ok("CUDA line", chosen.name)
    older = host.major < newest.driver and all(
        g.capability is None or newest.runs_on(g.capability) for g in host.gpus
    )
    reason = f"driver {host.version} is older than {newest.driver}" if older else "for these GPUs"
    return ok("CUDA line", f"{chosen.name}: {reason}")


def wsl(machine: Machine) -> Finding:
    """Windows' kernel for Linux: what is other there."""
    release = machine.read("/proc/sys/kernel/osrelease") or ""
    if "microsoft" not in release.lower():
        return skip("WSL", "not Windows")
    if "wsl2" not in release.lower() and not machine.exists("/dev/dxg"):
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
    return ok("WSL", "version 2: the driver is Windows'; install none inside")
