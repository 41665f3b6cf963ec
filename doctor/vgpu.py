"""A part of a GPU that a hypervisor hands out (vGPU): its profile and its licence."""

from __future__ import annotations

import re

from doctor import kind
from doctor.finding import Finding, fail, ok, skip
from host import limits, nvidia
from host.machine import Machine

_ENABLED = ("systemctl", "is-enabled", "nvidia-gridd")
# A word of nvidia-gridd's; what it means, what helps.
_SAYS = (
    (
        (
            "not able to (resolve|reach)|couldn't (resolve|connect)|could not resolve|timed? ?out"
            "|network communication failure|failed to connect|connection refused"
        ),
        "its licence server is not reached",
        "let this machine reach it: DNS, port 443, firewall, proxy",
    ),
    (
        "allowed time to process response has expired",
        "its clock is wrong, or its client token too old",
        "set the clock (timedatectl), and take a new token from the licence server",
    ),
    (
        (
            r"(no|not enough|insufficient).{0,40}(feature|licen[sc]e)s?.{0,30}(available|found"
            "|pool)|feature.{0,40}not available"
        ),
        "the server has none of the kind that this one asks for",
        (
            "FeatureType=1 in /etc/nvidia/gridd.conf asks for what its profile needs; or have such"
            " licences put on the server"
        ),
    ),
)
_SOON = 1200  # seconds after a start in which it works without a licence


def licence(machine: Machine) -> Finding:
    """A virtual GPU has the licence without which it slows down and refuses work."""
    _, gpus = nvidia.ask(machine)
    if not any(gpu.is_virtual for gpu in gpus):
        return skip("vGPU licence", "no virtual GPU")
    desktop = next((gpu.name for gpu in gpus if re.search(r"-[0-9]+[AB][0-9]?$", gpu.name)), None)
    if desktop is not None:
        return fail(
            "vGPU licence",
            f"{desktop} is a profile for desktops (series A and B)",
            "such a virtual GPU has no CUDA: torch finds no device",
            "have this machine given a profile of series Q or C (-8Q, -8C)",
        )
    said = machine.run("nvidia-smi", "-q").out
    status = re.findall(r"License Status\s*: (.*)", said)
    if not any("Unlicensed" in each for each in status):
        return ok("vGPU licence", status[0] if status else "not known")
    seen = next(each for each in status if "Unlicensed" in each)
    if "Unrestricted" in seen and (machine.uptime() or _SOON) < _SOON:
        return ok("vGPU licence", "not yet: it is asked for in the first minutes after a start")
    fix = (
        "sudo systemctl restart nvidia-gridd; its token: /etc/nvidia/ClientConfigToken, or your"
        " cloud's image brings it"
    )
    said = machine.run(*_ENABLED).said + machine.run("systemctl", "status", "nvidia-gridd").err
    if re.search("no such file|not-found|could not be found", said, re.IGNORECASE):
        seen += ", and there is no nvidia-gridd.service, which asks for one"
        fix = (
            "install the guest's vGPU (GRID) driver anew, of a release that brings the service"
            " (Azure's 550 does not, 535.161.08 does), and sudo systemctl enable --now nvidia-gridd"
        )
    else:
        seen, fix = _asked(machine, seen, fix)
    inside = limits.in_container(machine.root) or kind.is_lxc(machine)
    if inside or kind.is_apptainer(machine):
        fix = f"on the virtual machine itself (the node), not in this container: {fix}"
    return fail(
        "vGPU licence",
        seen,
        "without a licence it slows down, and after a day CUDA is busy or unavailable",
        fix,
    )


def _asked(machine: Machine, seen: str, usual: str) -> tuple[str, str]:
    """What nvidia-gridd says of the licence that it asked for, and what helps."""
    folder = "/etc/nvidia/ClientConfigToken"
    named = re.search(
        r'^ *ClientConfigTokenPath *= *"?([^"\s]+)',
        machine.read("/etc/nvidia/gridd.conf") or "",
        re.MULTILINE,
    )
    mode = machine.run("stat", "-c", "%a", folder).out.strip()
    hidden = re.fullmatch("[0-7]{3,4}", mode) is not None and not int(mode[-1]) & 4
    if named is None and machine.exists(folder) and not hidden and not machine.names(folder):
        return (
            f"{seen}, and {folder} is empty",
            (
                "copy the token of your licence server there (client_configuration_token_….tok,"
                " chmod 744), and sudo systemctl restart nvidia-gridd"
            ),
        )
    said = machine.run("journalctl", "-u", "nvidia-gridd", "-b", "--no-pager").out[-20_000:]
    for sign, what, fix in _SAYS:
        if re.search(sign, said, re.IGNORECASE):
            return f"{seen}: {what}", f"{fix}; then sudo systemctl restart nvidia-gridd"
    return seen, usual
