"""timm's models by name, its optimizers, and weights from the hub."""

import hashlib
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
import torch
from conftest import ROOT
from fault import harness
from safetensors.torch import save_file

from host.errors import UsageError
from train.config import Config, Model, Optim
from train.learn import optim
from train.learn.models import build
from train.learn.weights import contiguous
from train.record.stateful import OptimizerState


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("test_resnet", (1, 48, 48)),
        ("test_vit", (3, 64, 64)),
        ("test_efficientnet", (3, 64, 64)),
        ("test_convnext", (1, 64, 64)),
        ("test_byobnet", (3, 64, 64)),
        ("mobilenetv3_small_050", (3, 64, 64)),
        ("levit_128s", (3, 224, 224)),
    ],
)
def test_models_of_timm_by_name(name, shape) -> None:
    model = build(Model(name=f"timm:{name}"), 5, shape)
    out = model(torch.rand(4, *shape))
    assert out.shape == (4, 5)
    assert model.training


@pytest.mark.parametrize(
    ("knobs", "shape", "says"),
    [
        ({"name": "timm:resnet81"}, (3, 32, 32), r"no model resnet81; did you mean .*resnet"),
        ({"name": "timm:vgg11", "drop_path": 0.1}, (3, 32, 32), r"model\.drop_path"),
        ({"name": "timm:test_resnet", "stem": "small"}, (3, 32, 32), "one stem only"),
        ({"name": "timm:test_resnet", "weights": "V1"}, (3, 32, 32), "has no weights 'V1'"),
        (
            {"name": "timm:test_resnet.none", "weights": "DEFAULT"},
            (3, 32, 32),
            r"no weights named none → there are test_resnet\.r160_in1k",
        ),
    ],
)
def test_what_timm_has_not_is_said(knobs, shape, says) -> None:
    with pytest.raises(UsageError, match=says):
        build(Model(**knobs), 5, shape)


def test_a_name_of_weights_that_are_not_asked_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names weights, and model\.weights is null"):
        Config(model=Model(name="timm:resnet50.a1_in1k"))


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_optimizers_of_timm_go_on_to_the_bit(name) -> None:
    """LAMB counts its steps for a group; without the count it would go otherwise."""
    config = Config(optim=Optim(name=name, lr=0.01))

    def learner() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = build(Model(), 10, (1, 8, 8))
        return model, optim.build(config, model)

    def steps(model, optimizer, count: range) -> None:
        for number in count:
            torch.manual_seed(number)
            model.zero_grad()
            model(torch.rand(8, 1, 8, 8)).square().mean().backward()
            optimizer.step()

    one, optimizer = learner()
    steps(one, optimizer, range(3))
    held = OptimizerState(optimizer, optim.slots(config.optim)).state_dict()
    held = {slot: value.clone() for slot, value in held.items()}
    weights = {n: t.clone() for n, t in one.state_dict().items()}
    steps(one, optimizer, range(3, 6))

    other, again = learner()
    other.load_state_dict(weights)
    state = OptimizerState(again, optim.slots(config.optim))
    state.load_state_dict(held)
    steps(other, again, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

    if name == "lamb":
        lacking = {slot: value for slot, value in held.items() if slot != "group0.step"}
        with pytest.raises(ValueError, match=r"group0\.step is missing"):
            state.load_state_dict(lacking)
        with pytest.raises(ValueError, match=r"group9\.step belongs to no group"):
            state.load_state_dict({**held, "group9.step": held["group0.step"]})


def test_muon_moves_matrices_and_adamw_the_rest() -> None:
    config = Config(optim=Optim(name="muon", lr=0.01))
    model = build(Model(), 10, (1, 8, 8))
    optimizer = optim.build(config, model)
    model(torch.rand(8, 1, 8, 8)).square().mean().backward()
    optimizer.step()
    kept = {n: {*optimizer.state[p]} - {"use_muon"} for n, p in model.named_parameters()}
    momentum, adam = optim.slots(config.optim)
    assert kept["3.weight"] == momentum
    assert kept["1.weight"] == kept["15.bias"] == adam


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_they_are_not_portable(name) -> None:
    with pytest.raises(UsageError, match=f"portable with optim.name: {name}"):
        Config(numerics="portable", optim=Optim(name=name))


class Hub(BaseHTTPRequestHandler):
    """As much of huggingface.co as it takes to download a file."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.slow
def test_weights_from_the_hub(tmp_path, monkeypatch) -> None:
    """A backbone without a head, from a server that answers as the hub does."""
    source = build(Model(name="timm:test_resnet"), 3, (1, 8, 8))
    tensors = contiguous(source.state_dict())
    del tensors["fc.weight"], tensors["fc.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    Hub.files = {f"/some/net/resolve/{rev}/model.safetensors": content for rev in ("main", "v1")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    words = [
        "fit", "--config", ROOT / "configs/digits.yaml", "--numerics", "native", "--max_steps", 2,
        "--model.name", "timm:test_resnet", "--data.size", 32,
    ]  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def trained(*more: object) -> subprocess.CompletedProcess[str]:
        """A process that has not read before where the hub is."""
        command = [sys.executable, "-m", "train", *map(str, [*words, *more])]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    try:
        run = tmp_path / "run"
        done = trained("--model.weights", "some/net@v1", "--run", run)
        assert done.returncode == 0, done.stderr
        assert "tensors from some/net@v1; made anew:" in done.stdout
        assert "fc.weight: 10×" in done.stdout
        assert "not there" in done.stdout
        wrong = trained("--model.weights", "some/other", "--run", tmp_path / "wrong")
        assert wrong.returncode == 2
        assert "model.safetensors of some/other cannot be had" in wrong.stderr
    finally:
        server.shutdown()
        server.server_close()
    measured = harness.processes(1, "evaluate", "--run", run)  # which needs no hub
    result = json.loads((run / "result.json").read_text())
    assert json.loads(measured.out)["loss"] == result["metrics"]["loss"]
