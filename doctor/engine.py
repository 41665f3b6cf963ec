"""Docker: whether its engine answers, and what it says of itself."""

from __future__ import annotations

import re
from dataclasses import replace

from doctor import distribution, log
from doctor.finding import Finding, fail, ok, skip, warn
from host import cuda, docker
from host import image as images
from host.errors import LockstepError
from host.machine import Machine

_THREADS_SINCE = (20, 10, 10)


def engine(machine: Machine) -> Finding:
    """Docker and Compose answer to this user."""
    wanted = machine.environ.get("ENGINE") or "auto"
    if wanted == "local":
        return skip("engine", "ENGINE=local")
    try:
        version = docker.answers(machine)
    except LockstepError as error:
        if wanted == "auto" and (old := _old(machine)):
            return old
        if wanted == "docker":
            return fail("engine", error.problem, "ENGINE=docker asks for it", error.fix)
        if not machine.has("docker"):
            return skip("engine", f"{error.problem}: training runs in a local environment")
        why = "training falls back to a local environment"
        fix = error.fix
        if log.last(machine, r'operation="userns_create".*comm="rootlesskit"'):
            why = "AppArmor lets rootless Docker make no user namespace: operation not permitted"
            fix = (
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and the same in"
                " /etc/sysctl.d; or an AppArmor profile for rootlesskit's own path; then systemctl"
                f" --user start docker; {fix}"
            )
        elif machine.environ.get("DOCKER_HOST", "").startswith("unix:///run/user/"):
            fix = (
                "systemctl --user start docker; so that it stays after you log out: sudo loginctl"
                f" enable-linger $USER; where it does not start, journalctl --user -u docker; {fix}"
            )
        return warn("engine", error.problem, why, fix)
    return (
        _old(machine) or _unforwarded(machine) or ok("engine", f"Docker {version}{_where(machine)}")
    )


def _old(machine: Machine) -> Finding | None:
    try:
        version = docker.of(machine)
    except LockstepError:
        return None
    if not _starts_no_threads(machine, version):
        return None
    return warn(
        "engine",
        f"Docker {version}{_where(machine)}, older than 20.10.10",
        "programs of newer systems may start no thread in its containers (clone3)",
        "update Docker Engine, with docker-compose-plugin; or train without a container:"
        " ENGINE=local",
    )


def _unforwarded(machine: Machine) -> Finding | None:
    """The kernel hands nothing on between networks, as hardening has it: images cannot be built.

    https://docs.docker.com/engine/network/packet-filtering-firewalls/
    """
    shut = (machine.read("/proc/sys/net/ipv4/ip_forward") or "").strip() == "0"
    own = machine.environ.get("DOCKER_HOST") or not machine.names("/etc/docker")
    # Desktop's engine and one without root have networks of their own.
    if not shut or own or "rootless" in told(machine, "SecurityOptions") or image_here(machine):
        return None
    return warn(
        "engine",
        "net.ipv4.ip_forward is 0: containers reach no network",
        "the image is not built: its packages are not found, or not in time",
        "sudo sysctl -w net.ipv4.ip_forward=1, and mend what sets it to 0 in /etc/sysctl.conf or"
        " /etc/sysctl.d",
    )


def _starts_no_threads(machine: Machine, version: str) -> bool:
    """Whether this engine says "not permitted" to a call that glibc 2.34 and newer start threads
    with, where later ones say that there is none: https://github.com/moby/moby/pull/42681.
    """
    # Distributions that mended theirs: Debian says so in the version, Ubuntu does not.
    own = "ubuntu" in machine.run("docker", "--version").out or not machine.has("docker")
    if version == "20.10.7" and "ubuntu" in distribution.names(machine) and own:
        return False
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(-ce)?$", version)
    return found is not None and tuple(map(int, found.groups()[:3])) < _THREADS_SINCE


def _where(machine: Machine) -> str:
    """Which engine it is, where it is not the usual one: each has images of its own."""
    place = machine.environ.get("DOCKER_HOST")
    if place:
        return f" at {place}"
    context = machine.run("docker", "context", "show").out.strip()
    return f" in the context {context}" if context not in ("", "default") else ""


def answers(machine: Machine) -> bool:
    """Whether an engine answers that is to be used, be it without the Compose that we need."""
    if machine.environ.get("ENGINE") == "local":
        return False
    try:
        return bool(docker.of(machine))
    except LockstepError:
        return False


def trains(machine: Machine) -> bool:
    """Whether training runs in a container: where Compose is too old, it does not."""
    try:
        return answers(machine) and bool(docker.answers(machine))
    except LockstepError:
        return False


def weighed(machine: Machine, found: Finding) -> Finding:
    """What containers lack, which stops nothing where none trains yet."""
    asked = machine.environ.get("ENGINE") == "docker"
    if found.status != "fail" or asked or not answers(machine) or trains(machine):
        return found
    return replace(found, status="warn")


def told(machine: Machine, field: str) -> str:
    """A field of what the engine says of itself."""
    return machine.run("docker", "info", "--format", f"{{{{.{field}}}}}").out.strip()


def image_here(machine: Machine) -> str | None:
    """The image that would train here, where it is built; current or not."""
    try:
        line = cuda.fitting_line(machine.environ, cuda.look(machine), any_host=True).name
    except LockstepError:
        return None
    image = images.name("train", line)
    answer = machine.run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    return image if answer.code == 0 else None
