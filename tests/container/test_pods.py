"""The pods of deploy/kubernetes/job.yaml as containers: the user, rights, volumes and names it says."""

import os
import subprocess
import time
from typing import Any

import pytest
import yaml
from checkouts import docker
from conftest import ROOT, stated_hash

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

IMAGE = "lockstep:cuda13"
# No registry, no GPU and no data set of its own here.
OTHER = {"configs/cifar10.yaml": "configs/digits.yaml", "runs/cifar10": "runs/pods"}


def words(pod: dict[str, Any], index: int, runs: str) -> list[str]:
    """`docker run`'s words for a pod of the Job."""
    spec = pod["spec"]
    (container,) = spec["containers"]
    user, own = spec["securityContext"], container["securityContext"]
    assert user["runAsNonRoot"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    said = ["--user", f"{user['runAsUser']}:{user['runAsGroup']}", "--read-only"]
    said += ["--group-add", str(user["fsGroup"]), "--security-opt", "no-new-privileges"]
    said += [f"--cap-drop={name}" for name in own["capabilities"]["drop"]]
    for each in container["env"]:
        value = each.get("value")
        if value is None:
            assert "completion-index" in each["valueFrom"]["fieldRef"]["fieldPath"]
            value = str(index)
        if each["name"] != "PRECISION":  # digits computes in FP32
            said += ["--env", f"{each['name']}={value}"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    for mount in container["volumeMounts"]:
        volume, path = volumes[mount["name"]], mount["mountPath"]
        if "persistentVolumeClaim" in volume:
            said += ["--volume", f"{runs}/{mount.get('subPath', '')}:{path}"]
        elif path == "/dev/shm":
            said += ["--shm-size", volume["emptyDir"]["sizeLimit"].replace("Gi", "g")]
        else:
            said += ["--tmpfs", f"{path}:mode=777"]
    return [*said, IMAGE, *(OTHER.get(word, word) for word in container["args"])]


def test_two_pods_are_stopped_and_go_on_to_the_bits_of_one(checkout, tmp_path) -> None:
    service, job = yaml.safe_load_all((ROOT / "deploy/kubernetes/job.yaml").read_text())
    pod, count = job["spec"]["template"], job["spec"]["completions"]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    runs = checkout.path.parent / "volume"
    for folder in (runs, runs / ".cache"):
        folder.mkdir()
        # As Kubernetes gives a volume to fsGroup.
        os.chown(folder, 0, pod["spec"]["securityContext"]["fsGroup"])
        folder.chmod(0o2775)
    names = [f"{job['metadata']['name']}-{index}" for index in range(count)]
    docker("network", "create", "lockstep-pods")

    def start() -> None:
        for index, name in enumerate(names):
            own = ["--detach", "--name", name, "--hostname", name, "--network", "lockstep-pods"]
            own += ["--network-alias", f"{name}.{pod['spec']['subdomain']}", "--env", "CPUS=1"]
            docker("run", *own, *words(pod, index, str(runs)))

    def codes() -> list[int]:
        return [int(docker("wait", name)) for name in names]

    try:
        start()
        metrics = runs / "pods/metrics.jsonl"
        deadline = time.monotonic() + 200
        while not (metrics.exists() and metrics.read_text().count("\n") > 10):
            assert time.monotonic() < deadline, docker("logs", names[0])
            time.sleep(0.2)
        # A drained node's pod; the other one learns of it.
        grace = str(pod["spec"]["terminationGracePeriodSeconds"])
        docker("stop", "--time", grace, names[1])
        assert codes() == [75, 75]
        docker("rm", *names)
        start()
        assert codes() == [0, 0], docker("logs", names[0])
        assert "going on after step" in docker("logs", names[0])
    finally:
        subprocess.run(["docker", "rm", "--force", *names], check=False, capture_output=True)
        docker("network", "rm", "--force", "lockstep-pods")
    result = yaml.safe_load((runs / "pods/result.json").read_text())
    assert result["weights_sha256"] == stated_hash()
