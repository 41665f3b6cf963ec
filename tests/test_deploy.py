"""The files of deploy/: read as a cluster reads them, and run where that can be."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from conftest import ROOT, stated_hash

DEPLOY = ROOT / "deploy"
pytestmark = pytest.mark.slow

_KUBERNETES = """
import sys, yaml, kubernetes_validate
for version in sys.argv[2:]:
    for document in yaml.safe_load_all(open(sys.argv[1])):
        kubernetes_validate.validate(document, version, strict=True)
"""
# What a field does not know, it drops: so what comes back is compared.
_KUBEFLOW = """
import json, sys, yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
print(json.dumps(TrainerV1alpha1TrainJob.from_dict(yaml.safe_load(open(sys.argv[1]))).to_dict()))
"""
_SKYPILOT = """
import json, sky, sys
task = sky.Task.from_yaml(sys.argv[1])
(asked,) = task.resources
print(json.dumps({
    "run": task.run, "setup": task.setup, "nodes": task.num_nodes, "envs": task.envs,
    "spot": asked.use_spot, "recovery": asked.job_recovery, "bucket": list(task.storage_mounts),
}))
"""


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages that read such files."""
    place = tmp_path_factory.mktemp("readers")
    uv = ROOT / ".venv/bin/uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, place / "venv"], check=True)
    words = ["pip", "sync", "--quiet", "--require-hashes", "--python", place / "venv/bin/python"]
    subprocess.run([uv, *words, ROOT / "requirements/deploy.txt"], check=True)
    return place / "venv/bin/python"


def read(readers: Path, script: str, *words: Any) -> str:
    """What a script prints of a file."""
    environ = {**os.environ, "HOME": str(readers.parent.parent.parent)}
    line = [readers, "-c", script, *map(str, words)]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kubernetes_takes_the_job(readers, tmp_path) -> None:
    versions = [f"1.{minor}" for minor in range(31, 38)]
    job = DEPLOY / "kubernetes/job.yaml"
    for file in (job, DEPLOY / "kubernetes/volume.yaml"):
        read(readers, _KUBERNETES, file, *versions)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(job.read_text().replace("completionMode", "completionMood"))
    with pytest.raises(AssertionError, match="completionMood"):
        read(readers, _KUBERNETES, wrong, "1.37")


def test_kubeflow_takes_the_train_job(readers) -> None:
    job = DEPLOY / "kubernetes/trainjob.yaml"
    assert json.loads(read(readers, _KUBEFLOW, job)) == yaml.safe_load(job.read_text())


def test_skypilot_takes_the_task(readers) -> None:
    said = json.loads(read(readers, _SKYPILOT, DEPLOY / "skypilot/train.yaml").splitlines()[-1])
    assert said["run"] == "bash deploy/skypilot/run.sh"  # a bucket keeps no right to run it
    assert said["spot"] is True
    assert said["recovery"]["recover_on_exit_codes"] == [75]
    assert said["bucket"] == ["/bucket"]


def writers(run: Path) -> list[psutil.Process]:
    """Processes that train in a checkout."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(run.parent.parent) and "train" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_goes_on_from_the_bucket_on_another_disk(local_copy, tmp_path, number) -> None:
    """What SkyPilot runs on a machine that is taken away, with notice and without."""
    words = ["bash", "deploy/skypilot/run.sh", "--checkpoint.every", "20"]
    environ = {
        **os.environ, "BUCKET": str(tmp_path / "bucket"), "KEEP_EVERY": "1", "CPUS": "1",
        "CONFIG": "configs/digits.yaml", "RUN": "runs/sky",
    }  # fmt: skip
    kept = tmp_path / "bucket/runs/sky/checkpoints"
    with subprocess.Popen(words, cwd=local_copy, env=environ, start_new_session=True) as first:
        deadline = time.monotonic() + 120
        while not list(kept.glob("step-*/SHA256SUMS")):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if number == signal.SIGTERM:
            first.send_signal(number)
            assert first.wait(120) == 75
        else:
            os.killpg(first.pid, number)
    while writers(local_copy / "runs/sky"):  # they save, when their launcher is gone
        time.sleep(0.1)
    shutil.move(local_copy / "runs/sky", tmp_path / "lost")
    again = subprocess.run(
        words, cwd=local_copy, env=environ, check=True, timeout=200, capture_output=True, text=True
    )
    assert "going on after step" in again.stdout
    for run in (local_copy / "runs/sky", tmp_path / "bucket/runs/sky"):
        assert json.loads((run / "result.json").read_text())["weights_sha256"] == stated_hash()
