"""Whether Podman gets GPUs into containers: by descriptions of them (CDI)."""

from __future__ import annotations

import re

from doctor import cdi
from doctor.finding import Finding, fail, warn
from host.machine import Machine

_READS_SEVEN = (5, 1)
_KNOWS_CDI = (4, 1)
_HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")


def unread(machine: Machine) -> Finding | None:
    """Podman reads descriptions from 4.1 on, and those of version 0.7.0 from 5.1 on.

    https://github.com/NVIDIA/nvidia-container-toolkit/issues/1860
    """
    ours = ((file, text) for file, text in cdi.in_force(machine) if cdi.KIND.search(text))
    found = next((file for file, text in ours if cdi.SEVEN.search(text)), None)
    told = re.search(r"version (\d{1,4})\.(\d{1,4})", machine.run("podman", "--version").out)
    if (
        told is not None
        and (
            any(cdi.in_force(machine))
            or (machine.has("nvidia-ctk") and not _is_for_others(machine))
        )
        and not _is_hooked(machine)
        and (int(told.group(1)), int(told.group(2))) < _KNOWS_CDI
    ):
        return warn(
            "toolkit",
            f"Podman {told.group(1)}.{told.group(2)} does not know descriptions of GPUs (CDI)",
            "--device nvidia.com/gpu=all ends: no such file or directory",
            "a Podman of 4.1 or newer, better 5; or --hooks-dir with an older toolkit's hook",
        )
    if found is None or told is None or tuple(map(int, told.groups())) >= _READS_SEVEN:
        return None
    return fail(
        "toolkit",
        f"{found} is of version 0.7.0, which Podman reads from 5.1 on: this is"
        f" {told.group(1)}.{told.group(2)}",
        "no container with GPUs starts: unresolvable CDI devices",
        "update Podman; or sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        " --feature-flag no-additional-gids-for-device-nodes; or toolkit 1.18.2",
    )


def undescribed(machine: Machine) -> Finding | None:
    """The toolkit is here, and nobody has had it describe the GPUs."""
    if cdi.of_gpus(machine) is not None or not machine.has("nvidia-ctk") or _is_hooked(machine):
        return None
    if _is_for_others(machine):
        return None
    return warn(
        "toolkit",
        "the GPUs are described nowhere for Podman (CDI)",
        "no container with GPUs starts: unresolvable CDI devices nvidia.com/gpu=all",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, again after each upgrade of"
        " the driver",
    )


def _is_for_others(machine: Machine) -> bool:
    """Whether something else than Podman is what the toolkit is here for."""
    places = (
        "/etc/containerd/config.toml",
        *(f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml" for name in ("k3s", "rke2")),
        *(f"/etc/k0s/containerd.d/{name}" for name in machine.names("/etc/k0s/containerd.d")),
        *(f"/etc/crio/crio.conf.d/{name}" for name in machine.names("/etc/crio/crio.conf.d")),
    )
    pods = any("nvidia" in (machine.read(place) or "") for place in places)
    return pods or any(map(machine.has, ("apptainer", "singularity", "enroot", "incus")))


def _is_hooked(machine: Machine) -> bool:
    """Whether it gets GPUs by the toolkit's hook or runtime, as before there were descriptions."""
    folder = "/etc/containers/containers.conf.d"
    own = f"{machine.environ.get('HOME', '')}/.config/containers/containers.conf"
    more = [f"{folder}/{name}" for name in machine.names(folder)]
    files = ("/etc/containers/containers.conf", own, *more)
    told = "".join(machine.read(file) or "" for file in files)
    if re.search(r"(?m)^\s*(?:runtime|hooks_dir)\s*=.*nvidia", told):
        return True
    return any("nvidia" in name for folder in _HOOKS for name in machine.names(folder))
