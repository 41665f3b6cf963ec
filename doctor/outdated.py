"""Descriptions of GPUs (CDI) that are older than what is here now."""

from __future__ import annotations

import re

from doctor import cdi
from doctor.cdi import KIND, in_force
from doctor.finding import Finding, fail, warn
from host import limits, nvidia
from host.machine import Machine


def stale(machine: Machine) -> Finding | None:
    """A description (CDI) of a driver that was there before."""
    found = missing_file(machine) or missing_device(machine) or _missing_socket(machine)
    if found is None:
        return _of_windows(machine) or _incomplete(machine)
    file, path = found
    return fail(
        "toolkit",
        f"{file} hands over {path}, which is not there",
        "no container with GPUs starts: driver, toolkit or their services were changed since",
        f"sudo nvidia-ctk cdi generate --output={file}"
        + "; or sudo systemctl enable --now nvidia-persistenced" * path.endswith("/socket"),
    )


def missing_device(machine: Machine) -> tuple[str, str] | None:
    """One that hands over a GPU's device which is not there any more: file and device."""
    there, screens = machine.names("/dev"), machine.names("/dev/dri")
    for file, text in in_force(machine):
        named = re.findall(
            r"""["']?path["']?\s*:\s*["']?/dev/(nvidia\d+|dri/\w+\d+)(?=["'\s,}\]]|$)""", text
        )
        gone = [name for name in named if name not in (*there, *(f"dri/{n}" for n in screens))]
        if not screens:
            gone = [name for name in gone if "/" not in name]
        if "nvidiactl" in there and gone:
            return file, f"/dev/{gone[0]}"
        caps = re.findall(r"/dev/nvidia-caps/(nvidia-cap\d+)\b", text)
        own = machine.names("/dev/nvidia-caps")
        lost = [name for name in caps if own and name not in own]
        if lost:
            return file, f"/dev/nvidia-caps/{lost[0]}"
    return None


def missing_file(machine: Machine) -> tuple[str, str] | None:
    """One that hands over a file of the driver's which is not there any more, or calls a program
    that is not: both files.
    """
    for file, text in in_force(machine):
        for path in re.findall(
            r"""path["']?\s*:\s*["']?(/[^\s"',]+/nvidia-c(?:di-hook|tk))\b""", text
        ):
            beside = machine.names(path.rpartition("/")[0])
            if beside and path.rpartition("/")[2] not in beside:
                return file, path
        for path in re.findall(r"""hostPath["']?\s*:\s*["']?(/[^\s"',]+)""", text):
            folder, _, name = path.rpartition("/")
            beside = machine.names(folder)
            # Where the driver has others, so that the folder is known to be its.
            known = any(re.match(r"lib(nvidia|cuda)", other) for other in beside)
            if known and re.match("lib", name) and name not in beside:
                return file, path
    return None


def _missing_socket(machine: Machine) -> tuple[str, str] | None:
    """One that hands over the socket of a daemon which does not run: file and socket."""
    socket = "/run/nvidia-persistenced/socket"
    named = rf"""hostPath["']?\s*:\s*["']?{socket}"""
    file = next((file for file, text in in_force(machine) if re.search(named, text)), None)
    if file is None or machine.exists(socket):
        return None
    state = machine.run("systemctl", "is-active", "nvidia-persistenced").out.strip()
    return (file, socket) if state in ("inactive", "failed") else None


def _incomplete(machine: Machine) -> Finding | None:
    """It was made when there were fewer GPUs."""
    texts = [(file, text) for file, text in in_force(machine) if KIND.search(text)]
    listed = len(nvidia.ask(machine)[1])
    every = "\n".join(text for _, text in in_force(machine))
    named = {*re.findall(r"/dev/(nvidia\d+)\b", every)}
    there = [name for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name)]
    new = sorted({*there} - named)
    known = texts and named and new and listed > len(named)
    if not known or limits.in_container(machine.root):
        return None
    return warn(
        "toolkit",
        f"{texts[0][0]} does not have /dev/{new[0]}",
        "containers get the GPUs that were there when it was made",
        f"sudo nvidia-ctk cdi generate --output={texts[0][0]}",
    )


def _of_windows(machine: Machine) -> Finding | None:
    """Of two drivers that Windows has, the one that was there when a description was made."""
    store = "/usr/lib/wsl/drivers"
    drivers = [
        name
        for name in machine.names(store)
        if name.startswith("nv") and machine.exists(f"{store}/{name}/nvidia-smi")
    ]
    used = [name for name in drivers if _is_used(machine, f"{store}/{name}")]
    for file, text in cdi.described(machine):
        named = [name for name in drivers if f"{store}/{name}/" in text]
        gone = {*re.findall(rf"{store}/(nv[^/]+)/", text)} - {*machine.names(store)}
        if gone and drivers and not named:
            named, used = sorted(gone), used or drivers
        if named and used and not set(used) & set(named):
            return warn(
                "toolkit",
                f"{file} hands over {named[0]}, and Windows uses {used[0]}",
                "its driver was upgraded since: CUDA fails in containers",
                f"sudo nvidia-ctk cdi generate --output={file}   # after each upgrade",
            )
    return None


def _is_used(machine: Machine, driver: str) -> bool:
    """Whether WSL has its copy of a program from this one of Windows' drivers."""
    own = "/usr/lib/wsl/lib/nvidia-smi"
    return machine.run("cmp", "-s", own, f"{driver}/nvidia-smi").code == 0
