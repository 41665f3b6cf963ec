"""What NCCL is told on this machine: by the environment, and by its files."""

from __future__ import annotations

import re

from host.machine import Machine


def told(machine: Machine, variable: str) -> str:
    """What a variable of NCCL is here; "" where nothing sets it.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: the environment comes first,
    then the user's file, then the system's.
    """
    return machine.environ.get(variable) or _in_files(machine, variable)[0]


def where(machine: Machine, variable: str) -> str:
    """The file that sets it, in brackets; "" where the environment does."""
    file = "" if machine.environ.get(variable) else _in_files(machine, variable)[1]
    return f" ({file})" if file else ""


def _in_files(machine: Machine, variable: str) -> tuple[str, str]:
    home = machine.environ.get("HOME", "")
    for file in (f"{home}/.nccl.conf", "/etc/nccl.conf"):
        found = re.findall(rf"^\s*{variable}=(\S+)", machine.read(file) or "", re.MULTILINE)
        if found:
            return found[-1], file
    return "", ""
