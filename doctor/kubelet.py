"""Whether Kubernetes' agent runs on its node: without it no pod starts there."""

from __future__ import annotations

import re

from doctor.finding import Finding, warn
from host import limits
from host.machine import Machine

_LOG = ("journalctl", "-u", "kubelet", "-n", "50", "-q", "--no-pager")
# What the last row says, and what helps.
_KNOWN = {
    r"running with swap on is not supported|--fail-swap-on": (
        "swap is on, and it refuses to start so",
        (
            "sudo swapoff -a, and take swap out of /etc/fstab; or failSwapOn: false in"
            " /var/lib/kubelet/config.yaml"
        ),
    ),
    r"unknown service runtime\.v1": (
        "containerd's part for Kubernetes does not answer",
        (
            "take cri out of disabled_plugins in /etc/containerd/config.toml (Docker's package puts"
            " it there), sudo systemctl restart containerd"
        ),
    ),
    r"misconfiguration: kubelet cgroup driver": (
        "it and the engine name cgroups in two ways (cgroup driver)",
        (
            "cgroupDriver: systemd in /var/lib/kubelet/config.yaml, and SystemdCgroup = true in"
            " containerd's configuration (Docker: native.cgroupdriver=systemd)"
        ),
    ),
    r"certificate has expired|part of the existing bootstrap client certificate": (
        "its certificate has expired",
        (
            "sudo kubeadm certs check-expiration on the control plane, and kubeadm certs renew all;"
            " a worker joins again"
        ),
    ),
}


def fallen(machine: Machine) -> Finding | None:
    """A node whose agent does not stay up."""
    node = machine.exists("/var/lib/kubelet/config.yaml") and machine.has("kubelet")
    if limits.in_container(machine.root) or not node:
        return None
    state = machine.run("systemctl", "is-active", "kubelet").out.strip()
    if state not in ("failed", "activating"):
        return None
    said = machine.run(*_LOG).out
    failed = re.findall(r"(?m)^.*\b[EF]\d{4} .*$", said) or [""]
    if state == "activating" and not failed[-1]:  # it may just be starting
        return None
    known = [words for sign, words in _KNOWN.items() if re.search(sign, failed[-1])]
    words = re.search(r'err="((?:[^"\\]|\\.){1,160})', failed[-1])
    why = words.group(1).replace('\\"', "'") if words else "its log says why"
    why, fix = known[0] if known else (why, "sudo journalctl -u kubelet -n 50")
    return warn(
        "toolkit",
        f"Kubernetes' kubelet does not run on this node ({state}): {why}",
        "no pod starts here",
        f"{fix}; then sudo systemctl restart kubelet",
    )
