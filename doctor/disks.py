"""The folders that a training writes into: their room, how they are mounted, whose they are."""

from __future__ import annotations

import re

from doctor import drives, kind, mounts, wsl
from doctor.finding import Finding, fail, ok, skip, warn
from host import INSIDE, limits
from host.machine import Machine
from host.text import whole

_RUN = 1e9  # bytes: checkpoints of a middling model
_CACHES = ("torch", "huggingface", "triton", "torch_extensions")
_ASKS = {False: "quota -s", True: "lfs quota -u $USER ~"}
_ROOM = "make room, or put runs/ on another disk: ln -s /big/runs runs"
_FILES = 1000  # that a run and its caches make
_LITTLE = 50e6  # bytes
_DRIVE = "/mnt/c"
_LONG = 75  # characters; /pymp-xxxxxxxx/listener-xxxxxxxx comes behind
_MANY_FILES = 500_000  # of some images and their layers, or of a data set of pictures


def disk(machine: Machine) -> Finding:
    """Room where runs, caches and the local environment are written."""
    free = [
        (place, machine.free(place if machine.exists(place) else machine.home))
        for place in _written(machine)
    ]
    known = [(place, room) for place, room in free if room is not None]
    gone = mounts.bucket(machine, [*_written(machine), _data(machine)])
    if not known:
        return gone or skip("disk", "not known on this system")
    place, least = min(known, key=lambda pair: pair[1])
    seen = f"{least / 1e9:.1f} GB free for {place.rsplit('/', 1)[1]}"
    place = machine.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    short = gone or _short(machine, [p for p, _ in known], seen, least)
    short = short or _temporary(machine, place, seen) or _windows(machine, seen)
    short = short or _of_windows(machine, seen)
    if short is not None:
        return short
    # Ours is mounted so: whoever wants to compile there adds :exec. A container has its own.
    inside = machine.exists(str(INSIDE))
    here = machine.environ.get("ENGINE") == "local" or not machine.has("docker")
    if here and not inside and "noexec" in mounts.options(machine, place):
        return warn(
            "disk",
            f"{seen}; {place} is mounted noexec",
            "what --model.compile true builds there cannot be loaded (failed to map segment)",
            f"docker run --tmpfs {place}:exec; or TMPDIR= a folder on another file system"
            if limits.in_container(machine.root)
            else f"sudo mount -o remount,exec {place}; or TMPDIR= a folder on another file system",
        )
    home = machine.environ.get("HOME", "")
    cache = machine.environ.get("TRITON_CACHE_DIR") or home
    if here and not inside and home and "noexec" in mounts.options(machine, cache):
        return warn(
            "disk",
            f"{seen}; {cache} is mounted noexec",
            "what torch.compile and Triton build there cannot be loaded (failed to map segment)",
            "export TRITON_CACHE_DIR= a folder on another file system; or sudo mount -o"
            f" remount,exec {mounts.point(machine, cache)}",
        )
    if least < 5e9:
        return warn("disk", seen, "a few checkpoints or a data set fill it", _ROOM)
    return drives.slow(machine, seen, [*_written(machine), _data(machine)]) or ok("disk", seen)


def _short(machine: Machine, places: list[str], seen: str, least: int) -> Finding | None:
    """What ends a run: a user's quota, inodes, room; or inodes that others may take."""
    for place in places:
        room = _allowed(machine, place)
        if room is not None and room < min(_RUN, least):
            name = place.rsplit("/", 1)[1]
            return fail(
                "disk",
                f"{seen}, and this user's quota has {max(0, room) / 1e9:.1f} GB left for {name}",
                "`Disk quota exceeded` would end the run, whatever df says",
                f"{_ASKS[machine.has('lfs')]}; du -h -d1 ~ | sort -h   # what takes it; or put"
                f" {name} on another disk: ln -s /big/{name} {name}",
            )
    known = [machine.files(p if machine.exists(p) else machine.home) for p in places]
    left, total = min((each for each in known if each is not None), default=(_FILES, 0))
    if left >= _FILES and least < _RUN:
        why = "a checkpoint would not fit, and the run would end there"
        return fail("disk", seen, why, _ROOM)
    if left >= _FILES and not few(left, total):
        return None
    tell = fail if left < _FILES else warn
    return tell(
        "disk",
        f"{seen}, but {left:,} more files at most (inodes)",
        "`No space left on device` would end the run, whatever df says",
        "du --inodes -x -d3 / 2>/dev/null | sort -n | tail   # where they are; or put runs/ on"
        " another disk: ln -s /big/runs runs",
    )


def _windows(machine: Machine, seen: str) -> Finding | None:
    """WSL's disk is a file on Windows', which may be full before it.

    https://learn.microsoft.com/windows/wsl/disk-space
    """
    left = machine.free(_DRIVE) if wsl.is_windows(machine) else None
    if left is None or left >= _RUN * 2 or not _on_drive_c(machine):
        return None
    return warn(
        "disk",
        f"{seen}, and Windows' drive C, on which WSL's disk is mostly a file, has"
        f" {left / 1e9:.1f} GB",
        "as that is full, writing ends with Input/output error, and WSL's disk is read-only",
        "make room on C:; or in Windows wsl --manage DISTRIBUTION --move D:\\wsl; wsl --shutdown,"
        " and Optimize-VHD or diskpart (compact vdisk), give back what WSL no longer uses",
    )


def _of_windows(machine: Machine, seen: str) -> Finding | None:
    """Under WSL, data or checkout on a disk that Windows hands in; the usual place has a row."""
    places = {"data": machine.environ.get("DATA", ""), "checkout": machine.home}
    for name, path in places.items():
        _, told, system = mounts.of(machine, path) if path.startswith("/") else ("", [], "")
        given = system == "drvfs" or (system == "9p" and any("drvfs" in word for word in told))
        usual = name == "checkout" and re.match("/mnt/[a-z]/", path)
        if wsl.is_windows(machine) and given and not usual:
            return warn(
                "disk",
                f"{seen}; the {name} is on Windows' disk",
                "each file takes ten times as long there: the GPU waits",
                "have it below ~, or on a disk of its own: wsl --mount",
            )
    return None


def _on_drive_c(machine: Machine) -> bool:
    """Whether a file of WSL's lies there: a distribution may have been put on another drive."""
    users = "/mnt/c/Users"
    names = [name for name in machine.names(users) if name not in ("Public", "Default")]
    places = [f"{users}/{name}/AppData/Local/wsl" for name in names]
    known = [place for place in places if machine.exists(f"{place.rpartition('/')[0]}")]
    files = [f"{place}/{name}/ext4.vhdx" for place in places for name in machine.names(place)]
    for name in names:
        packages = f"{users}/{name}/AppData/Local/Packages"
        found = machine.names(packages)
        files += [f"{packages}/{package}/LocalState/ext4.vhdx" for package in found]
    return not known or any(map(machine.exists, files))


def _temporary(machine: Machine, place: str, seen: str) -> Finding | None:
    """The folder for temporary files has no room, or too long a name."""
    room = machine.free(place) if machine.exists(place) else None
    if room is not None and room < _LITTLE:
        return warn(
            "disk",
            f"{seen}, and {room / 1e6:.0f} MB in {place}, for temporary files",
            "programs end as they start: No usable temporary directory, or No space left on device",
            f"make room there (du -xh -d1 {place} | sort -h), or export TMPDIR= a folder with room",
        )
    if len(place) > _LONG:
        return warn(
            "disk",
            f"{seen}; TMPDIR has {len(place)} characters",
            "loader processes make sockets in it, whose paths may have 107: AF_UNIX path too long",
            "export TMPDIR=/tmp",
        )
    return None


def few(left: int, total: int) -> bool:
    """Whether so few of all files are left that an image or a large data set takes the rest."""
    return left < total / 100 and left < _MANY_FILES


def owner(machine: Machine) -> Finding:
    """What is written into can be written by the caller."""
    me = kind.user(machine)
    for path in _written(machine):
        name = path.rsplit("/", 1)[1]
        spot = path if machine.exists(path) else machine.home
        still = "ro" in mounts.options(machine, spot) and mounts.point(machine, spot) != "/"
        if not still and (not machine.exists(path) or machine.run("test", "-w", path).code != 1):
            continue
        if still:
            usual = (
                "nothing can be saved there",
                (
                    f"in a container: docker run -v $PWD/{name}:{path}; on a host, not meant:"
                    " sudo dmesg | grep -i 'remounting filesystem read-only'"
                ),
            )
            seen = f"{name}/ is on a file system that is mounted read-only"
            return fail("owner", seen, *(mounts.kept_by_windows(machine, path) or usual))
        user = machine.run("stat", "-c", "%u", path).out.strip() or "somebody else"
        return fail(
            "owner",
            f"{name}/ belongs to UID {user}, and cannot be written by {me}",
            "nothing can be saved there; a container that ran as root leaves this",
            f"sudo chown -R $(id -u):$(id -g) {name}   # if it is yours",
        )
    return _cached(machine, me) or ok("owner", f"UID {me}" if me else "the caller")


def _cached(machine: Machine, me: str) -> Finding | None:
    """Weights or kernels that others have left where programs look for them first."""
    cache = _written(machine)[1]
    for path in (f"{cache}/{name}" for name in _CACHES):
        shut = machine.exists(path) and machine.run("test", "-w", path).code == 1
        if shut and "ro" not in mounts.options(machine, path):  # mounted so on purpose
            user = machine.run("stat", "-c", "%u", path).out.strip() or "somebody else"
            name = path[len(cache) - len(".cache") :] if cache.endswith(".cache") else path
            return warn(
                "owner",
                f"{name} belongs to UID {user}, and cannot be written by {me}",
                "what is downloaded or compiled there ends with Permission denied",
                f"sudo chown -R $(id -u):$(id -g) {path}   # a container's root left it",
            )
    return None


def _data(machine: Machine) -> str:
    """The folder that pictures are read from."""
    place = machine.environ.get("DATA") or "data"
    return place if place.startswith("/") else f"{machine.home}/{place}"


def _written(machine: Machine) -> list[str]:
    """The folders that a training writes into."""
    cache = "/cache" if machine.exists(str(INSIDE)) else f"{machine.home}/.cache"
    return [f"{machine.home}/runs", cache]


def _allowed(machine: Machine, path: str) -> int | None:
    """Bytes that this user's quota leaves on a folder's file system; None without one."""
    if mounts.kind_of(machine, path) == "lustre":  # whose options do not say
        return mounts.lustre_quota(machine, path if machine.exists(path) else machine.home)
    device, told, system = mounts.of(machine, path)
    far = system in ("nfs", "nfs4")  # whose server knows
    if not far and not any(re.match("(u|usr)(j)?quota|quota$", word) for word in told):
        return None
    asks = ("-w",) if far else ("-w", "-l")
    answer = machine.run("quota", *asks, seconds=5)
    said = (answer if answer.out or answer.code == 0 else machine.run("quota", seconds=5)).out
    # Without -w a long name has a line of its own.
    for row in re.sub(r"(?m)^(\s*\S*[:/]\S*)\n\s+", r"\1 ", said).splitlines():
        words = row.split()
        if len(words) < 4 or words[0] != device:
            continue
        used, soft, hard = (whole(word.rstrip("*")) for word in words[1:4])
        # Behind the times that are left; of files, which end a run as bytes do.
        counts = [n for word in words[1:] if (n := whole(word.rstrip("*"))) is not None]
        if len(counts) == 6 and counts[5] and counts[3] >= counts[5]:
            return 0
        over = len(words) > 4 and words[4] == "none"  # the soft one was passed for too long
        if used is not None and (hard or (soft and over)):
            return 0 if over else 1024 * ((hard or 0) - used)
    return None
