"""What NCCL is told on this machine: by the environment, and by its files."""

from __future__ import annotations

import re

from host.machine import Machine


def told(machine: Machine, variable: str) -> str:
    """What a variable of NCCL is here; "" where nothing sets it.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html: the environment comes first,
    then the user's file, then the system's, and of a file the first line.
    """
    if variable in machine.environ:
        return machine.environ[variable]
    return _in_files(machine, variable)[0]


def undo(machine: Machine, variable: str) -> str:
    """How it is taken away: from the environment, or from the file that sets it."""
    file = "" if variable in machine.environ else _in_files(machine, variable)[1]
    return f"take {variable} out of {file}" if file else f"unset {variable}"


FABRIC = "/sys/class/infiniband"
"""Where the kernel lists the adapters of InfiniBand, RoCE and EFA."""


def _in_files(machine: Machine, variable: str) -> tuple[str, str]:
    own = machine.environ.get("NCCL_CONF_FILE") or f"{machine.environ.get('HOME', '')}/.nccl.conf"
    for file in (own, "/etc/nccl.conf"):
        found = re.findall(rf"^\s*{variable}=(\S.*?)\s*$", machine.read(file) or "", re.MULTILINE)
        if found:
            return found[0], file
    return "", ""


def adapters(machine: Machine, names: list[str]) -> list[str]:
    """The adapters that NCCL_IB_HCA leaves: `=` is for whole names, `^` for all but these."""
    asked = told(machine, "NCCL_IB_HCA")
    if not asked:
        return names
    words = [word.partition(":")[0] for word in asked.lstrip("^=").split(",") if word]
    exact = asked.lstrip("^").startswith("=")
    named = [n for n in names if any(n == w if exact else n.startswith(w) for w in words)]
    return [n for n in names if n not in named] if asked.startswith("^") else named
