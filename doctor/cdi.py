"""What a CDI description of NVIDIA's GPUs hands over to a container, and what is wrong with it."""

from __future__ import annotations

import re
from typing import Iterator

from doctor.finding import Finding, fail
from host.machine import Machine

FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
SEVEN = re.compile(r"""cdiVersion["']?\s*:\s*["']?0\.7""")
_READS_SEVEN = (26, 1)
KIND = re.compile(r"""kind["']?\s*:\s*["']?nvidia\.com/gpu(?=["'\s,}]|$)""")
_NODE = re.compile(
    r"""["']?path["']?\s*:\s*["']?(/dev/nvidia-(?:uvm|caps)[\w/-]*)["']?,?\s*"""
    r"""(?:["']?\w+["']?\s*:\s*["']?[\w/-]+["']?,?\s*){0,4}?["']?major["']?\s*:\s*(\d+)"""
)


def described(machine: Machine) -> Iterator[tuple[str, str]]:
    """All files of descriptions, and what they say."""
    for folder in FOLDERS:
        for name in machine.names(folder):
            yield f"{folder}/{name}", machine.read(f"{folder}/{name}") or ""


def in_force(machine: Machine) -> Iterator[tuple[str, str]]:
    """The same without those of /etc/cdi that one below /run describes anew: later folders win.

    https://github.com/cncf-tags/container-device-interface (SPEC.md, priority of directories)
    """
    every = list(described(machine))
    again = any(
        KIND.search(text) is not None for file, text in every if not file.startswith(FOLDERS[0])
    )
    for file, text in every:
        if not (again and file.startswith(FOLDERS[0]) and KIND.search(text)):
            yield file, text


def of_gpus(machine: Machine) -> str | None:
    """The file of one of NVIDIA's GPUs."""
    found = (file for file, text in described(machine) if "nvidia.com/gpu" in text)
    return next(found, None)


def other_number(machine: Machine) -> tuple[str, str, str, str] | None:
    """One that hands over a device by a number that the kernel gave to another one since: the file,
    the device, the number it has there, and its own.
    """
    devices = machine.read("/proc/devices") or ""
    given = re.findall(r"^\s*(\d+) (nvidia-(?:uvm|caps))$", devices, re.MULTILINE)
    own = {name: number for number, name in given}
    for file, text in in_force(machine):
        for device, number in _NODE.findall(text):
            kind = "nvidia-uvm" if "uvm" in device else "nvidia-caps"
            if own.get(kind, number) != number:
                return file, device, number, own[kind]
    return None


def too_new(machine: Machine) -> tuple[str, str] | None:
    """Why the engine cannot read a description, and what helps: 0.7.0 wants newer ones."""
    found = next((file for file, text in described(machine) if SEVEN.search(text)), None)
    engine = machine.run("docker", "version", "--format", "{{.Server.Version}}").out
    told = re.match(r"(\d{1,4})\.(\d{1,4})", engine)
    if found is None or told is None or tuple(map(int, told.groups())) >= _READS_SEVEN:
        return None
    return (
        f"{found} is of version 0.7.0, which Docker reads from 26.1 on: this is {engine.strip()}",
        (
            "update Docker Engine; or sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
            " --feature-flag no-additional-gids-for-device-nodes"
        ),
    )


def without_memory_device(machine: Machine) -> str | None:
    """The file of one that hands over GPUs, and not the device for their memory."""
    for file, text in described(machine):
        whole = all(word in text for word in ("nvidia.com/gpu", "/dev/nvidiactl", "/dev/nvidia0"))
        if whole and not any(word in text for word in ("nvidia-uvm", "/dev/dxg")):
            return file
    return None


def unlisted(machine: Machine) -> Finding | None:
    """A description of the GPUs in a folder where podman is told not to look."""
    home = machine.environ.get("HOME", "/root")
    files = ("/usr/share", "/etc", f"{home}/.config")  # the last one that says it holds
    said = [machine.read(f"{file}/containers/containers.conf") or "" for file in files]
    told = re.findall(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", "\n".join(said), re.MULTILINE)
    found = [file for file, text in described(machine) if "nvidia.com/gpu" in text]
    if not (machine.has("podman") and told and found):
        return None
    folders = re.findall(r'"([^"]+)"', told[-1])
    if any(file.rpartition("/")[0] in folders for file in found):
        return None
    own = found[-1].rpartition("/")[0]
    return fail(
        "toolkit",
        f"the GPUs are described in {found[-1]} (CDI), and podman looks in {', '.join(folders)}",
        "no container with GPUs starts: unresolvable CDI devices",
        f'in containers.conf, [engine]: cdi_spec_dirs = ["/etc/cdi", "{own}"];'
        f" or podman --cdi-spec-dir={own}",
    )


def denied(machine: Machine) -> Finding | None:
    """A description (CDI) that whoever trains may not read."""
    for folder in FOLDERS:
        for name in machine.names(folder):
            file = f"{folder}/{name}"
            if not name.endswith((".yaml", ".json")):
                continue
            if file in machine.run("find", "-L", file, "!", "-readable").out.split():
                return fail(
                    "toolkit",
                    f"you may not read {file} (CDI)",
                    "your containers do not start with GPUs: unresolvable CDI devices",
                    f"sudo chmod 644 {file}; a newer nvidia-container-toolkit writes it so",
                )
    return None


def wrong(machine: Machine, way: str) -> Finding | None:
    """What is wrong with the descriptions (CDI) of what containers get."""
    lacking = without_memory_device(machine) if way == "cdi" else None
    if lacking is not None:
        return fail(
            "toolkit",
            f"{lacking} hands over GPUs, and not /dev/nvidia-uvm",
            "in containers nvidia-smi works, and CUDA does not start: it was made too early",
            "sudo nvidia-modprobe -u -c=0 && sudo nvidia-ctk cdi generate"
            " --output=/etc/cdi/nvidia.yaml",
        )
    other = other_number(machine)
    if other is not None:
        file, device, theirs, own = other
        return fail(
            "toolkit",
            f"{file} hands over {device} as device {theirs}, and it is {own} since this boot",
            "in containers nvidia-smi works, and CUDA does not start (999): numbers change",
            f"sudo nvidia-ctk cdi generate --output={file}; where it stays so, at each boot"
            " (nvidia-cdi-refresh)",
        )
    return None
