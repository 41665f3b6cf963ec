"""Where the engine keeps images, and the room that is left there."""

from __future__ import annotations

import re

from doctor import disks, mounts
from doctor.engine import answers, image_here, told
from doctor.finding import Finding, fail, ok, skip, warn
from host import image as images
from host.machine import Machine

_REBUILD = 5e9  # bytes: layers that a build makes anew
_CONTAINERD = "/var/lib/containerd"
LARGER_DISK = "docker system prune, or give Docker a larger disk (data-root in daemon.json)"


def _images(machine: Machine) -> str:
    """The folder that images are in: of the engine, or of containerd, which keeps them for it.

    https://docs.docker.com/engine/storage/containerd/
    """
    root = told(machine, "DockerRootDir")
    by_containerd = "io.containerd.snapshotter" in told(machine, "DriverStatus")
    if (
        not by_containerd
        or machine.free(root) is None
        or "rootless" in told(machine, "SecurityOptions")
    ):
        return root
    said = machine.read("/etc/containerd/config.toml") or ""
    named = re.search(r"""(?m)^root\s*=\s*["'](/[^"']*)["']""", said)
    own = named.group(1) if named else _CONTAINERD
    return own if machine.exists(own) else root  # an engine may have a containerd of its own


def _larger(root: str) -> str:
    """How the engine gets more room where its images are."""
    if "containerd" not in root:
        return LARGER_DISK
    return (
        'docker system prune; or root = "/big/containerd" in /etc/containerd/config.toml, and sudo'
        " systemctl restart containerd docker (data-root moves no images there)"
    )


def room(machine: Machine) -> Finding:
    """The engine's disk has room for what a build takes."""
    if not answers(machine):
        return skip("engine's disk", "no engine")
    root = _images(machine)
    free = machine.free(root) if root else None
    if free is None:
        return skip("engine's disk", "elsewhere: the engine is on another machine")
    seen = f"{free / 1e9:.0f} GB free in {root}"
    system = mounts.kind_of(machine, root)
    rootless = "rootless" in told(machine, "SecurityOptions")
    file = "~/.config/docker/daemon.json" if rootless else "/etc/docker/daemon.json"
    if system in mounts.FAR:
        return warn(
            "engine's disk",
            f"{seen}, which is on {system}",
            "layers cannot be made there: lsetxattr, operation not supported",
            f'"data-root" of a local disk in {file}, and restart Docker',
        )
    if free < images.ROOM and image_here(machine) is None:
        return fail(
            "engine's disk",
            seen,
            f"building the image takes {images.ROOM / 1e9:.0f} GB",
            _larger(root),
        )
    return _little(machine, root, free, seen) or ok("engine's disk", seen)


def _little(machine: Machine, root: str, free: int, seen: str) -> Finding | None:
    """What containers and new images will lack there."""
    files = machine.files(root)
    if files is not None and disks.few(*files):
        return warn(
            "engine's disk",
            f"{seen}, but {files[0]:,} more files at most (inodes)",
            "an image has tens of thousands: `no space left on device`, whatever df says",
            f"docker builder prune -a; on xfs, which knows no such limit: {_larger(root)}",
        )
    if free < _REBUILD:
        return warn(
            "engine's disk",
            seen,
            "containers soon cannot write, and an image that is built anew needs more",
            _larger(root),
        )
    if told(machine, "Driver") == "vfs":
        return warn(
            "engine's disk",
            f"{seen}; the engine's storage driver is vfs",
            "each layer of an image is a whole copy of the one below: a build fills the disk",
            "fuse-overlayfs, or a file system that overlayfs takes (LXC on ZFS: ZFS 2.2 or newer,"
            " or a virtual machine), and storage-driver in /etc/docker/daemon.json",
        )
    return None
