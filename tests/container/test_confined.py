"""What a container may do, what an image holds, and that no secret gets into either."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkouts import docker

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

IMAGE = "lockstep:cuda13"
BARE = ("--read-only", "--cap-drop=ALL", "--security-opt", "no-new-privileges", "--network=none")
SHORT = ("fit", "--config", "configs/digits.yaml", "--max_steps", "20")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "run", "--rm", *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def runs(checkout, tmp_path_factory) -> Path:
    """A folder for runs that UID 1234 owns; its parents let others in."""
    folder = checkout.path.parent / "confined"
    subprocess.run(["install", "-d", "-m", "755", folder], check=True)
    subprocess.run(["chown", f"{checkout.uid}:{checkout.uid}", folder], check=True)
    return folder


@pytest.mark.parametrize("mounts", ["runs", "runs and cache", "runs, cache and tmp"])
def test_it_trains_read_only_without_capabilities_and_network(runs, checkout, mounts) -> None:
    words = ["--user", f"{checkout.uid}:{checkout.uid}", "-v", f"{runs}:/lockstep/runs"]
    if "cache" in mounts:
        words += ["-v", f"{checkout.path / '.cache'}:/cache"]
    if "tmp" in mounts:
        words += ["--tmpfs", "/tmp"]
    name = mounts.replace(" ", "-")
    done = run(*BARE, *words, "-e", "CPUS=2", IMAGE, *SHORT, "--run", f"runs/{name}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stat().st_uid for path in (runs / name).rglob("*")} == {checkout.uid}


def test_root_becomes_the_owner_of_the_runs_with_no_way_back(runs, checkout) -> None:
    caps = ("--cap-drop=ALL", "--cap-add=SETUID", "--cap-add=SETGID", "--cap-add=SETPCAP")
    words = ("--user", "0", *caps, "-v", f"{runs}:/lockstep/runs", IMAGE)
    done = run(*words, "grep", "-E", "^(Uid|Gid|Groups|Cap|NoNewPrivs)", "/proc/self/status")
    said = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
    assert set(said["Uid"].split()) == set(said["Gid"].split()) == {str(checkout.uid)}
    assert not said["Groups"].strip()
    assert {said[f"Cap{kind}"].strip("0") for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {""}
    assert said["NoNewPrivs"] == "1"


def test_the_image_s_own_user_is_not_root() -> None:
    assert docker("inspect", "--format", "{{.Config.User}}", IMAGE).strip() == "1000:1000"
    assert run(IMAGE, "id", "-u").stdout.strip() == "1000"


def test_runs_that_cannot_be_written_are_one_line(checkout) -> None:
    done = run("--user", "4321", "-v", f"{checkout.path / 'runs'}:/lockstep/runs", IMAGE, *SHORT)
    assert done.returncode == 6
    assert done.stderr.startswith("error: /lockstep/runs cannot be written by UID 4321")
    assert len(done.stderr.splitlines()) == 1


def test_torch_compile_works_in_the_image(runs, checkout) -> None:
    mounts = ("-v", f"{runs}:/lockstep/runs", "-v", f"{checkout.path / '.cache'}:/cache")
    words = (*BARE, "--user", f"{checkout.uid}", *mounts, IMAGE)
    done = run(
        *words,
        *SHORT,
        "--max_steps",
        "2",
        "--numerics",
        "native",
        "--model.compile",
        "true",
        "--run",
        "runs/compiled",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_say_what_it_is(checkout) -> None:
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", IMAGE))
    manifest = checkout.read("runs/first/run.json")
    assert labels["dev.lockstep.lock"] == manifest["lock_sha256"]
    assert manifest["versions"]["torch"].startswith(labels["dev.lockstep.torch"])
    assert labels["dev.lockstep.cuda"] == "cuda13"
    assert labels["dev.lockstep.driver"] == "580"
    assert labels["org.opencontainers.image.revision"]


def test_the_image_is_the_environment_and_at_most_400_mb(checkout) -> None:
    base = docker(
        "inspect",
        "--format",
        '{{index .Config.Labels "org.opencontainers.image.base.name"}}',
        IMAGE,
    )
    base = base.strip()
    if run("--entrypoint", "true", base).returncode:  # a builder keeps no name of what it fetched
        docker("pull", "--quiet", base)
    whole, below = (int(docker("inspect", "--format", "{{.Size}}", i)) for i in (IMAGE, base))
    environment = int(run(IMAGE, "du", "--summarize", "--bytes", "/opt/venv").stdout.split()[0])
    assert whole - below - environment < 400e6


def test_no_secret_gets_into_the_image_the_logs_or_a_run(checkout) -> None:
    """A canary in .env, in the environment of the build and of the run, and in a stray file."""
    canary = "canary-5f0c2d"
    (checkout.path / ".env").write_text(f"WANDB_API_KEY={canary}\nHF_TOKEN={canary}\n")
    for stray in ("secret.key", "train/.env", "configs/.secret"):
        (checkout.path / stray).write_text(canary)
    try:
        secrets = {"WANDB_API_KEY": canary, "HF_TOKEN": canary, "AWS_SECRET_ACCESS_KEY": canary}
        words = ("docker", "compose", "build", "--progress=plain", "train")
        build = checkout.run(
            *words, IGNORED="1", CUDA="cuda13", **secrets, COMPOSE_PROJECT_NAME="canary"
        )
        assert build.code == 0, build.said
        train = checkout.run(
            "make", "train", "CPUS=1", "RUN=runs/canary", "ARGS=--max_steps 5", **secrets
        )
        assert train.code == 0, train.said
    finally:
        (checkout.path / ".env").unlink()
        for stray in ("secret.key", "train/.env", "configs/.secret"):
            (checkout.path / stray).unlink()
    # The command that is printed names no secret; the container has them.
    assert canary not in build.said + train.said
    assert canary not in docker("history", "--no-trunc", IMAGE)
    assert canary not in docker("inspect", IMAGE)
    found = [
        p
        for p in (checkout.path / "runs/canary").rglob("*")
        if p.is_file() and canary.encode() in p.read_bytes()
    ]
    assert found == []
    # Nothing of it is in the files that a container has, nor in what a build is given at all, from
    # which a layer further down could have taken it. (To save the image and read its layers says
    # the same, and moves seven gigabytes.)
    places = ("/lockstep", "/etc", "/home", "/root", "/tmp", "/usr/local", "/var")
    looked = run("--user=0", "--entrypoint=grep", IMAGE, "-rlF", canary, *places)
    assert (looked.returncode, looked.stdout) == (1, ""), looked.stderr
    hits, files = 0, 0
    for text in given(checkout.path):
        hits += canary.encode() in text
        files += 1
    assert files > 50
    assert hits == 0


def given(context: Path) -> Iterator[bytes]:
    """Each file that a build in this folder is given."""
    words = ["docker", "build", "--quiet", "--file=-", "--output=type=tar,dest=-", str(context)]
    done = subprocess.run(words, input=b"FROM scratch\nCOPY . /\n", capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                yield content.read()


def test_a_secret_of_the_env_file_reaches_the_trainer(checkout) -> None:
    (checkout.path / ".env").write_text("WANDB_API_KEY=from-the-file\n")
    try:
        done = checkout.run(
            "docker", "compose", "run", "--rm", "train", "printenv", "WANDB_API_KEY"
        )
    finally:
        (checkout.path / ".env").unlink()
    assert done.said.splitlines()[-1] == "from-the-file"
