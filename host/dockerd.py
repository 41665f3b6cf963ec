"""Why no Docker engine answers."""

from __future__ import annotations

import json
import re

from host import limits
from host.errors import HostError
from host.machine import Machine

LOCAL = "or train without a container: ENGINE=local"
_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system")
# What dockerd takes by a flag or in daemon.json, and not by both.
_FLAGS = {
    "-H": "hosts",
    "--host": "hosts",
    "--add-runtime": "runtimes",
    "--default-runtime": "default-runtime",
    "--data-root": "data-root",
    "--log-driver": "log-driver",
    "--storage-driver": "storage-driver",
    "--exec-opt": "exec-opts",
    "--dns": "dns",
    "--bip": "bip",
}

_NO_SETS = "failed to create ipset"  # as 28.0.0 says on a Jetson, whose kernel has none
# What the engine says as it ends, why, and what helps.
_SAID = (
    # https://github.com/jetsonhacks/install-docker
    (
        _NO_SETS,
        "Docker 28.0.0 wants ip_set of the kernel, which this one was built without",
        (
            "`sudo apt-get install --allow-downgrades docker-ce='5:27.5.1-1~*'"
            " docker-ce-cli='5:27.5.1-1~*'`, `sudo apt-mark hold docker-ce docker-ce-cli`"
        ),
    ),
    (
        r"iptables table .raw'",
        "this kernel has no table `raw` of iptables, for which Docker asks from 28 on",
        (
            "`sudo systemctl edit docker`: [Service] Environment=DOCKER_INSECURE_NO_IPTABLES_RAW=1"
            " (28.0.2 or newer), `sudo systemctl restart docker`; or docker-ce 27.5"
        ),
    ),
    (
        r"swarm component could not be started.*cannot assign requested address",
        "its swarm is bound to an address that this machine has no more",
        (
            "`sudo systemctl stop docker.socket docker`, `sudo rm -rf /var/lib/docker/swarm`, which"
            " forgets that swarm, `sudo systemctl start docker`, and docker swarm init anew"
        ),
    ),
    (
        r"ip_tables not found|can't initialize iptables table",
        "this kernel has no ip_tables, for which the old iptables asks",
        (
            "`sudo update-alternatives --set iptables /usr/sbin/iptables-nft`, or boot a kernel"
            " that has it, then `sudo systemctl restart docker`"
        ),
    ),
)


def unanswered(machine: Machine, said: str) -> HostError:
    """Why no engine tells its version."""
    if "permission denied" in said.lower():
        return HostError("this user may not use Docker", f"{_allowed(machine)}, {LOCAL}")
    if "could not be found in this WSL" in said:
        return HostError(
            "Docker Desktop does not hand its engine to this distribution of WSL",
            "start Docker Desktop; Settings, Resources, WSL integration: tick it; then a new shell;"
            f" {LOCAL}",
        )
    new = re.search(
        r"client version \S+ is too new. Maximum supported API version is ([\d.]+)", said
    )
    if new:
        return HostError(
            f"Docker's command is newer than its engine, which knows API {new.group(1)} at most",
            f"upgrade docker-ce; until then DOCKER_API_VERSION={new.group(1)}, {LOCAL}",
        )
    if re.search(r"client version \S+ is too old", said):
        return HostError(
            "Docker's command is older than its engine takes",
            f"upgrade docker-ce-cli and docker-compose-plugin, {LOCAL}",
        )
    shown = machine.run("docker", "context", "show")
    context = shown.out.strip() if shown.code == 0 else ""
    if context not in ("", "default"):
        return HostError(
            f"no Docker engine answers in the context {context}",
            f"`docker context use default`, or start that engine, {LOCAL}",
        )
    return _stopped(machine)


def _allowed(machine: Machine) -> str:
    """How a user gets to use the engine."""
    if machine.environ.get("DOCKER_HOST", "").startswith("ssh://"):
        return "ssh-add your key, which that machine refused, or unset DOCKER_HOST"
    if limits.in_container(machine.root):
        return (
            "start this container with --group-add the number of the socket's group (stat -c %g"
            " /var/run/docker.sock)"
        )
    socket = machine.run("stat", "-c", "%G", "/var/run/docker.sock").out.strip()
    if machine.names("/snap/docker") and socket == "root":
        return (
            "`sudo addgroup --system docker; sudo snap disable docker; sudo snap enable docker`,"
            " then `sudo usermod -aG docker $USER` and log in again; Docker's own packages in place"
            " of the snap do that by themselves"
        )
    if machine.exists("/run/ostree-booted"):
        return (
            "`grep ^docker: /usr/lib/group | sudo tee -a /etc/group; sudo usermod -aG docker $USER`"
            " and log in again"
        )
    return "`sudo usermod -aG docker $USER` and log in again"


def _stopped(machine: Machine) -> HostError:
    """Why no engine runs."""
    settings = "/etc/docker/daemon.json"
    try:
        json.loads(machine.read(settings) or "{}")
    except ValueError as error:
        return HostError(
            f"no Docker engine answers, and {settings} is no JSON: {error}",
            f"mend it, then `sudo systemctl restart docker`, {LOCAL}",
        )
    if machine.run("systemctl", "is-active", "docker").out.strip() == "failed":
        return _failed(machine, settings)
    start = "`sudo systemctl start docker`"
    if machine.run("systemctl", "is-enabled", "docker").out.strip() == "masked":
        start = (
            "`sudo systemctl unmask docker.service docker.socket`, `sudo systemctl start docker`"
        )
    if "not been booted with systemd" in machine.run("systemctl", "is-active", "docker").said:
        start = (
            "`sudo service docker start`; under WSL for good [boot] systemd=true in /etc/wsl.conf,"
            " and wsl --shutdown"
        )
    return HostError("no Docker engine answers", f"{start}, check DOCKER_HOST, {LOCAL}")


def _failed(machine: Machine, settings: str) -> HostError:
    """Why its service has failed."""
    twice = _said_twice(machine, settings)
    if twice is not None:
        flag, key, file = twice
        return HostError(
            f"no Docker engine answers: {file} says {flag}, and {settings} says {key}",
            f"say it in one of them (sudo systemctl edit docker), then `sudo systemctl"
            f" daemon-reload`, `sudo systemctl restart docker`; {LOCAL}",
        )
    said = machine.run("journalctl", "-u", "docker", "-n", "50", "-q", "--no-pager").out
    jetson = machine.exists("/etc/nv_tegra_release")
    if jetson and "version 28.0.0" in machine.run("docker", "--version").out:
        said += _NO_SETS
    known = next((rest for sign, *rest in _SAID if re.search(sign, said)), None)
    if known is not None:
        why, fix = known
        return HostError(f"no Docker engine answers: {why}", f"{fix}; {LOCAL}")
    legacy = (
        "; a Jetson's kernel wants `sudo update-alternatives --set iptables"
        " /usr/sbin/iptables-legacy`"
        if jetson and "nf_tables" in machine.run("iptables", "--version").out
        else ""
    )
    last = re.findall(r"(?:failed to start daemon|Error starting daemon)[:,] (.+)", said)
    told = f": {last[-1][:160]}" if last else ""
    return HostError(
        f"no Docker engine answers: its service has failed{told}",
        f"`sudo journalctl -u docker -n 20` says why{legacy}; {LOCAL}",
    )


def _said_twice(machine: Machine, settings: str) -> tuple[str, str, str] | None:
    """What dockerd is told by a flag and in its file, which it does not take: flag, key, unit."""
    told = json.loads(machine.read(settings) or "{}")
    units = [f"{folder}/docker.service" for folder in _UNITS]
    for folder in _UNITS:
        drops = f"{folder}/docker.service.d"
        units += [f"{drops}/{name}" for name in sorted(machine.names(drops))]
    for unit in reversed(units):
        lines = re.findall(r"^ExecStart=(.+)$", machine.read(unit) or "", re.MULTILINE)
        for flag, key in _FLAGS.items() if lines and isinstance(told, dict) else ():
            if key in told and re.search(rf" {flag}[= ]", f"{lines[-1]} "):
                return flag, key, unit
        if lines:  # the last one counts
            break
    return None
