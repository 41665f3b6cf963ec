"""What Compose makes of the files, for each combination, and what is said where a host cannot."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkouts import Checkout
from test_host import A100, V550, V580, smi

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

OVERLAYS = ("gpu", "gpu-ids", "cdi")


def rendered(checkout: Checkout, overlay: str | None, **environ: str) -> dict:
    files = ["-f", "docker-compose.yml"]
    files += ["-f", f"docker-compose.{overlay}.yml"] if overlay else []
    done = checkout.run("docker", "compose", *files, "config", "--format", "json", **environ)
    assert done.code == 0, done.said
    return json.loads(done.said[done.said.index("{") :])


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_every_combination_is_valid(checkout, overlay) -> None:
    settings = itertools.product(("", "4", "all"), ("", "cuda12"), ("", "runs/a"))
    for gpus, cuda, run in settings:
        environ = {"GPUS": gpus, "CUDA": cuda, "RUN": run, "GPU_IDS": "0,1"}
        files = ["-f", f"docker-compose.{overlay}.yml"] if overlay else []
        done = checkout.run(
            "docker", "compose", "-f", "docker-compose.yml", *files, "config", "-q",
            **{name: value for name, value in environ.items() if value},
        )  # fmt: skip
        assert (done.code, done.said) == (0, "")


def test_each_service_gets_the_keys_it_needs(checkout) -> None:
    (checkout.path / ".env").write_text(
        "WANDB_API_KEY=canary1\nHF_TOKEN=canary2\nHTTPS_PROXY=http://u:canary3@h\nMINE=canary4\n"
    )
    key = checkout.path.parent / "key"
    key.write_text("canary5")
    said = {"http_proxy": "http://u:canary6@h", "WANDB_API_KEY_FILE": str(key)}
    services = rendered(checkout, None, **said)["services"]
    (checkout.path / ".env").unlink()
    found = {n: {*re.findall(r"canary\d", json.dumps(s))} for n, s in services.items()}
    assert found["tensorboard"] == set()
    assert found["evaluate"] == {"canary2", "canary3", "canary4"}
    assert found["train"] == found["dev"] == {"canary1", "canary2", "canary3", "canary4"}
    assert services["train"]["environment"]["WANDB_API_KEY_FILE"] == "/run/secrets/wandb_api_key"


def test_a_line_of_env_that_is_taken_is_taken_alike(checkout) -> None:
    """What host/dotenv.py reads, Compose reads so; what it refuses they may read otherwise."""
    from test_dotenv import TAKEN

    for text, value in TAKEN.items():
        (checkout.path / ".env").write_bytes(text.encode())
        services = rendered(checkout, None)["services"]
        # Compose writes a $ twice where it would be read again.
        assert services["train"]["environment"]["A"].replace("$$", "$") == value, text
    (checkout.path / ".env").unlink()


@pytest.mark.parametrize(
    ("overlay", "environ", "asked"),
    [
        (None, {}, None),
        ("gpu", {"GPUS": "1"}, {"driver": "nvidia", "count": 1}),
        ("gpu", {"GPUS": "4"}, {"driver": "nvidia", "count": 4}),
        ("gpu", {"GPUS": "all"}, {"driver": "nvidia", "count": -1}),
        ("gpu", {}, {"driver": "nvidia", "count": -1}),
        ("gpu-ids", {"GPU_IDS": "1,3"}, {"driver": "nvidia", "device_ids": ["1,3"]}),
        ("cdi", {}, {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]}),
    ],
)
def test_the_gpus_that_are_asked_for(checkout, overlay, environ, asked) -> None:
    services = rendered(checkout, overlay, **environ)["services"]
    for name in ("train", "evaluate", "dev", "tensorboard"):
        resources = services[name].get("deploy", {}).get("resources", {})
        devices = resources.get("reservations", {}).get("devices")
        if asked is None or name == "tensorboard":
            assert not devices
        else:
            (device,) = devices
            assert device.items() >= asked.items()
            assert device["capabilities"] == ["gpu"]


def toolkit(folder: Path) -> Path:
    """The toolkit's hook on the path is what an engine asks for."""
    (folder / "nvidia-container-runtime-hook").write_text("#!/bin/sh\n")
    (folder / "nvidia-container-runtime-hook").chmod(0o755)
    return folder


def path(checkout: Checkout, name: str) -> Path:
    folder = checkout.path.parent / name
    folder.mkdir(exist_ok=True)
    return folder


def shown(folder: Path) -> str:
    return f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.skipif(bool(shutil.which("nvidia-smi")), reason="there are GPUs to hand over")
def test_make_asks_for_the_gpus_and_the_line_that_fits(checkout) -> None:
    """There is no GPU here: the engine refuses what it is asked for, in words that the README explains."""
    folder = toolkit(smi(path(checkout, "four"), V580, [A100] * 4))
    done = checkout.run("make", "train", "GPUS=4", "RUN=runs/gpus", PATH=shown(folder))
    assert re.search(
        r"GPUS=4 .*docker compose -f docker-compose.yml -f docker-compose.gpu.yml run", done.said
    )
    assert "could not select device driver" in done.said
    assert " build " not in done.said
    for asked, ids in (("1,3", "1,3"), ("free:2", "0,1")):
        done = checkout.run("make", "train", f"GPUS={asked}", PATH=shown(folder))
        assert re.search(rf"GPUS=2 .*GPU_IDS={ids} docker compose .*gpu-ids.yml run", done.said)
        assert "could not select device driver" in done.said


def test_a_refusal_comes_before_anything_is_built(checkout) -> None:
    two = toolkit(smi(path(checkout, "two"), V580, [A100] * 2))
    done = checkout.run("make", "train", "GPUS=4", "BASE_IMAGE=none/such", PATH=shown(two))
    assert "error: GPUS=4, and 2 GPUs can be seen here → use GPUS=2" in done.said
    assert "docker compose" not in done.said
    old = smi(path(checkout, "old"), V550, [A100])
    done = checkout.run("make", "train", "CUDA=cuda13", PATH=shown(old))
    assert "which cuda13 needs → use CUDA=cuda12, or upgrade the driver to 580" in done.said
    assert "docker compose" not in done.said


def test_without_the_toolkit_the_cpu_trains_and_it_is_said(checkout) -> None:
    if shutil.which("nvidia-container-runtime-hook"):
        pytest.skip("the toolkit is here")
    folder = smi(path(checkout, "bare"), V580, [A100])
    done = checkout.run("make", "train", "RUN=runs/cpu", "ARGS=--max_steps 5", PATH=shown(folder))
    assert done.code == 0, done.said
    assert (
        "training on the CPU: 1 GPU is here, and Docker has no NVIDIA Container Toolkit → "
        in done.said
    )
    asked = checkout.run("make", "train", "GPUS=1", PATH=shown(folder))
    assert (
        "error: 1 GPU is here, and Docker has no NVIDIA Container Toolkit → install it"
        in asked.said
    )


def test_a_base_image_that_cannot_be_fetched(checkout) -> None:
    done = checkout.run("make", "train", "CPUS=1", "BASE_IMAGE=registry.invalid/cuda:13")
    assert done.code == 2  # make's own
    assert (
        "error: the base image registry.invalid/cuda:13 cannot be fetched → check the network"
        in done.said
    )
    assert "Error 6" in done.said


def test_an_engine_that_is_not_allowed_to_this_user(checkout) -> None:
    """The real engine's real words: the socket belongs to a group that the caller is not in."""
    if checkout.uid == 0 or not Path("/var/run/docker.sock").exists():
        pytest.skip("needs another user and the default socket")
    for wanted, says in (
        ("docker", "error: this user may not use Docker → `sudo usermod"),
        ("auto", "engine: local"),
    ):
        done = subprocess.run(
            ["python3", "-m", "host.docker", wanted], cwd=checkout.path, user=checkout.uid,
            group=checkout.uid, extra_groups=[], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr.startswith(says), done.stderr
