"""Exported weights give what the checkpoint gives, to whoever reads them as their readers do."""

import base64
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import DIGITS, ROOT, one_line
from fault import harness
from PIL import Image
from safetensors.torch import load_file

from train.config import Data
from train.data import load
from train.export import exporting, place
from train.predictions import table

OWN = '''
import torch
from torch import nn


class Chooses(nn.Module):
    """Goes one way or the other by what it is given."""

    def __init__(self, classes, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, images):
        logits = self.layer(images.flatten(1))
        if logits.sum() > 1e9:
            return -logits
        return logits


class Counts(Chooses):
    """Counts its pictures by Python's own len, which tracing takes for a number."""

    def __init__(self, classes, shape):
        super().__init__(classes, shape)
        self.token = nn.Parameter(torch.zeros(1, classes))

    def forward(self, images):
        return self.layer(images.flatten(1)) + self.token.expand(len(images), -1)


class Lost(Chooses):
    def forward(self, images):
        return self.layer(images.flatten(1)) / float(self.training)


class Draws(Chooses):
    def forward(self, images):
        return self.layer(images.flatten(1)) + torch.rand(images.shape[0], 1) * torch.arange(10)
'''


@pytest.fixture(scope="module")
def exported(finished) -> Path:
    """A run of digits with all that was exported of it, and copies of its checkpoints."""
    folder = finished.parent / "exported"
    if not folder.exists():
        path = finished / "checkpoints" / "step-00000020"
        done = list(
            exporting.export(path, folder, list(place.NAMES), root=None, pictures=[], licence="mit")
        )
        assert [each.file.name for each in done] == list(place.NAMES.values())
        for each in done:
            assert (each.others, each.pictures) == (0, 361)
            assert each.difference < 1e-4
    return folder


def held() -> torch.Tensor:
    return load(Data(source="digits", holdout=0.201)).validation.resident


@pytest.mark.slow
def test_each_file_gives_the_run_s_probabilities(finished, exported) -> None:
    """As a reader has it, and not as the exporter compared it."""
    import onnxruntime

    known = table.read(finished)
    session = onnxruntime.InferenceSession(exported / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["images"]
    (onnx,) = session.run(["logits"], {"images": held().numpy()})
    extra = {"about.json": ""}
    program = torch.export.load(exported / "model.pt2", extra_files=extra).module()
    for logits in (torch.from_numpy(onnx), program(held()).detach()):
        shares = logits.double().softmax(1)
        for row, said in zip(shares, known, strict=True):
            assert str(int(row.argmax())) == said.predicted
            assert float(row.max()) == pytest.approx(said.probability, abs=1e-5)
    about = json.loads(extra["about.json"])
    found = session.get_modelmeta().custom_metadata_map
    assert json.loads(found["classes"]) == about["classes"] == [str(n) for n in range(10)]
    assert json.loads(found["preprocessing"]) == about["preprocessing"]
    result = json.loads((finished / "result.json").read_text())
    assert about["weights_sha256"] == found["weights_sha256"] == result["weights_sha256"]


@pytest.mark.slow
def test_the_card_tells_of_the_run(finished, exported) -> None:
    text = (exported / "README.md").read_text()
    result = json.loads((finished / "result.json").read_text())
    assert text.startswith("---\nlicense: mit\n")
    assert result["weights_sha256"] in text
    assert f"| validation top-1 | {100 * result['metrics']['top1']:.2f} % |" in text
    said = json.loads((exported / "config.json").read_text())
    assert said["library"] == "lockstep"
    assert said["pretrained_cfg"]["input_size"] == [1, 8, 8]
    assert {p.name for p in exported.iterdir()} == {
        "README.md", "config.json", "model.onnx", "model.pt2", "model.safetensors",
    }  # fmt: skip


@pytest.mark.slow
def test_an_earlier_checkpoint_is_not_told_the_figures_of_the_last(finished, cli, tmp_path) -> None:
    path = finished / "checkpoints" / "step-00000005"
    words = ["--checkpoint", path, "--to", tmp_path / "out", "--formats", "safetensors"]
    done = cli("export", *words)
    assert (done.code, done.err) == (0, "")
    assert "largest difference of a logit 0 on 361 pictures, the same class for each" in done.out
    text = (tmp_path / "out" / "README.md").read_text()
    assert "for 5 steps" in text
    assert "top-1" not in text
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "README.md", "config.json", "model.safetensors",
    }  # fmt: skip
    assert "model.pt2" not in text
    # Another export leaves nothing of this one beside its card, and says so.
    words = ["--run", finished, "--to", tmp_path / "out", "--formats", "pt2"]
    one = tmp_path / "one.png"
    Image.fromarray(held()[0, 0].numpy()).save(one)
    done = cli("export", *words, "--pictures", one)  # a single picture will do
    assert done.code == 0, done.err
    assert "on 1 pictures" in done.out
    assert "model.safetensors: it was of other weights" in done.out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "README.md", "config.json", "model.pt2",
    }  # fmt: skip


def test_another_format_of_the_same_weights_leaves_those_that_are_there(
    finished, cli, tmp_path
) -> None:
    words = ["export", "--run", finished, "--to", tmp_path, "--formats"]
    assert cli(*words, "safetensors").code == 0
    done = cli(*words, "pt2")
    assert (done.code, "removed" in done.out) == (0, False), done.err
    card = (tmp_path / "README.md").read_text()
    for name in ("model.safetensors", "model.pt2"):
        assert (tmp_path / name).exists()
        assert name in card
    # The same weights under another name stay what they are.
    done = cli(*words, "safetensors", "--checkpoint", "step-00000020")
    assert (done.code, "removed" in done.out) == (0, False), done.err


@pytest.mark.parametrize(
    "name", ["README.md", "model.safetensors", "config.json", "model.onnx.data"]
)
def test_what_no_export_wrote_is_not_overwritten(finished, cli, tmp_path, name) -> None:
    (tmp_path / name).write_text("mine")
    done = cli("export", "--run", finished, "--to", tmp_path, "--formats", "safetensors")
    assert done.code == 2
    assert f"holds {name}, which no export wrote → name another folder: --to" in one_line(done.err)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_checkpoint_is_named_by_its_run(finished, cli, tmp_path) -> None:
    for name in ("step-00000005", finished / "checkpoints/step-00000005"):
        done = cli("evaluate", "--run", finished, "--checkpoint", name)
        assert json.loads(done.out)["step"] == 5, done.err
    done = cli("evaluate", "--run", tmp_path, "--checkpoint", finished / "checkpoints/best")
    assert done.code == 2
    assert f"is no checkpoint of {tmp_path}" in one_line(done.err)


def isolated(code: str, where: Path) -> str:
    """What code prints where the packages of the lock are, and this one is not."""
    place = sysconfig.get_path("purelib")
    # -S: nobody reads the .pth file by which this package is found.
    code = f"import sys\nsys.path.append({place!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=where, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def snippets() -> list[str]:
    blocks = (ROOT / "docs/export.md").read_text().split("```python\n")[1:]
    return [block.split("```")[0] for block in blocks]


@pytest.mark.slow
def test_this_package_is_not_where_snippets_are_tested(tmp_path) -> None:
    code = "try:\n import train\nexcept ImportError:\n print('none')\nimport torch"
    assert isolated(code, tmp_path) == "none\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_page_s_snippets_say_what_the_run_said(finished, exported, tmp_path, number) -> None:
    shutil.copytree(exported, tmp_path / "runs/exported/export")
    (tmp_path / "data/new").mkdir(parents=True)
    Image.fromarray(held()[7, 0].numpy()).save(tmp_path / "data/new/zero.pgm")
    said = table.read(finished)[7]
    words = isolated(snippets()[number], tmp_path).split()
    assert words[0] == said.predicted
    if number == 0:
        assert float(words[1]) == pytest.approx(said.probability, abs=1e-6)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("models")
    (home / "own.py").write_text(OWN)
    return home


def trained(home: Path, name: str, *words) -> Path:
    run = home / "runs" / name.replace(":", "-")
    if not run.exists():
        few = [
            "--data.source",
            "digits",
            "--data.holdout",
            0.201,
            "--batch_size",
            64,
            "--lanes",
            2,
            "--max_steps",
            3,
        ]
        done = harness.processes(
            1, "fit", "--model.name", name, *few, *words, "--run", run, where=home
        )
        assert done.code == 0, done.err
    return run


COLOUR = ["--data.channels", 3, "--optim.lr", 0.01]
KINDS = {
    "resnet18": [*COLOUR, "--model.stem", "small"],
    "mobilenet_v3_small": [*COLOUR, "--data.size", 32],
    "timm:vit_tiny_patch16_224": [*COLOUR, "--data.size", 32, "--optim.name", "adamw"],
    "timm:test_efficientnet": [*COLOUR, "--data.size", 40, "--eval.crop", 32, "--optim.ema", 0.5],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_models_go_into_all_formats(models, name) -> None:
    run = trained(models, name, *KINDS[name])
    done = harness.processes(1, "export", "--run", run, where=models, seconds=200)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 3
    assert all("on 361 pictures, the same class for each" in line for line in lines), lines
    said = json.loads((run / "export/config.json").read_text())
    assert said["library"] == ("timm" if name.startswith("timm:") else "torchvision")


@pytest.mark.slow
def test_timm_takes_its_model_and_its_preprocessing_from_there(models) -> None:
    import timm
    from timm.data import create_transform, resolve_model_data_config

    run = trained(models, "timm:test_efficientnet", *KINDS["timm:test_efficientnet"])
    done = harness.processes(
        1, "export", "--run", run, "--formats", "safetensors", where=models, seconds=200
    )
    assert done.code == 0, done.err
    model = timm.create_model(f"local-dir:{run / 'export'}", pretrained=True).eval()
    change = create_transform(**resolve_model_data_config(model), is_training=False)
    known = table.read(run)
    right = 0
    for image, said in zip(held()[:60, 0], known, strict=False):
        picture = Image.fromarray(image.numpy()).convert("RGB")
        with torch.no_grad():
            shares = model(change(picture)[None]).double().softmax(1)[0]
        assert float(shares.max()) == pytest.approx(said.probability, abs=2e-3)
        right += model.pretrained_cfg["label_names"][int(shares.argmax())] == said.predicted
    assert right == 60


@pytest.mark.slow
def test_what_a_format_does_not_take_is_named_and_the_others_are_written(models) -> None:
    run = trained(models, "own:Chooses", "--reproducibility", "fast")
    done = harness.processes(1, "export", "--run", run, where=models)
    assert done.code == 2
    line = one_line(done.err)
    assert "this model does not go into onnx, pt2: " in line
    # In the words of what was raised first, and not of the exporter's steps.
    assert "GuardOnDataDependentSymNode: " in line
    assert "step 1/3" not in line
    assert "; the others are written → in its forward pass, compute for all samples and" in line
    assert line.endswith("; or --formats safetensors")
    folder = run / "export"
    assert {p.name for p in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.slow
def test_a_number_of_pictures_that_is_fixed_is_told(models) -> None:
    run = trained(models, "own:Counts")
    done = harness.processes(1, "export", "--run", run, "--formats", "onnx,pt2", where=models)
    assert done.code == 2
    assert "this model does not go into onnx, pt2: it takes one number of pictures" in done.err
    assert " → in its code, say x.shape[0] where it says len(x) or " in one_line(done.err)


@pytest.mark.slow
def test_files_of_other_code_do_not_stay_beside_those_of_new_code(models, tmp_path) -> None:
    shutil.copytree(models, tmp_path / "home", ignore=shutil.ignore_patterns("runs"))
    home = tmp_path / "home"
    plain = (
        f"{OWN}\n\nclass Plain(Chooses):\n    forward = lambda self, x: self.layer(x.flatten(1))\n"
    )
    (home / "own.py").write_text(plain)
    run = trained(home, "own:Plain")
    words = ["export", "--run", run, "--to", home / "out", "--formats"]
    assert harness.processes(1, *words, "pt2", where=home).code == 0
    (home / "own.py").write_text(plain + "\n# changed\n")
    done = harness.processes(1, *words, "safetensors", where=home)
    assert done.code == 0, done.err
    assert "removed out/model.pt2: it was of other weights, or other code" in done.out


@pytest.mark.slow
def test_what_gives_no_numbers_is_not_written(models) -> None:
    run = trained(models, "own:Lost", "--reproducibility", "fast")
    done = harness.processes(1, "export", "--run", run, "--formats", "pt2", where=models)
    assert done.code == 2
    assert "this model does not go into pt2: it gives other logits, by nan" in one_line(done.err)
    assert not list((run / "export").iterdir())
    again = harness.processes(1, "report", "--run", run, where=models)  # losses that are no numbers
    assert again.code == 0, again.err


@pytest.mark.slow
def test_what_gives_something_else_is_not_written(models) -> None:
    run = trained(models, "own:Draws", "--reproducibility", "fast")
    done = harness.processes(1, "export", "--run", run, "--formats", "pt2", where=models)
    assert done.code == 2
    assert "this model does not go into pt2: it gives other logits" in one_line(done.err)
    assert not list((run / "export").iterdir())


@pytest.mark.slow
def test_other_pictures_will_do_where_the_data_is_gone(folder, cli, tmp_path) -> None:
    data = shutil.copytree(folder, tmp_path / "data")
    words = ["--data.source", "folder", "--data.root", data, "--data.size", 12, "--batch_size", 8]
    more = ["--lanes", 2, "--model.name", "convnet", "--epochs", 1, "--run", tmp_path / "run"]
    assert cli("fit", *words, *more).code == 0
    shutil.rmtree(data)
    asked = ["export", "--run", tmp_path / "run", "--formats", "pt2"]
    done = cli(*asked)
    assert done.code == 3
    assert "no pictures to check with" in one_line(done.err)
    assert "--pictures FILE" in done.err
    assert not (tmp_path / "run/export").exists()
    done = cli(*asked, "--pictures", folder / "validation")
    assert done.code == 0, done.err
    assert "on 9 pictures" in done.out
    assert cli(*asked, "--data.root", folder).code == 0
    (tmp_path / "none.png").write_bytes(b"")
    done = cli(*asked, "--pictures", tmp_path / "none.png")
    assert done.code == 3
    assert "none of the pictures can be used" in one_line(done.err)


def test_an_exported_checkpoint_is_the_average_where_there_is_one(tmp_path, cli) -> None:
    words = [*DIGITS, "--max_steps", 4, "--optim.ema", 0.5, "--run", tmp_path / "run"]
    assert cli("fit", *words).code == 0
    assert cli("export", "--run", tmp_path / "run", "--formats", "safetensors").code == 0
    path = tmp_path / "run/checkpoints/step-00000004"
    weights = load_file(tmp_path / "run/export/model.safetensors")
    now = load_file(path / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.ndim == 4)
    assert not torch.equal(weights[name], now[name])
    assert "the average of the weights" in (tmp_path / "run/export/README.md").read_text()
    assert np.isfinite(weights[name].numpy()).all()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--formats", "onx"], "no format 'onx'; did you mean onnx?"),
        (["--formats", ""], "no format ''"),
        (["--to", "{file}"], "cannot make"),
        (["--data.root", "/x", "--pictures", "x.png"], "--data.root does nothing"),
        (["--data.root", "/x"], "--data.root does nothing with data.source: digits"),
    ],
)
def test_wrong_words_are_answered_on_a_line(finished, cli, tmp_path, words, says) -> None:
    (tmp_path / "file").touch()
    words = [word.format(file=tmp_path / "file" / "out") for word in words]
    done = cli("export", "--run", finished, *words)
    assert done.code == 2
    assert says in one_line(done.err)


def test_a_damaged_checkpoint_is_refused(finished, cli, tmp_path) -> None:
    run = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    file = run / "checkpoints/step-00000020/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    done = cli("export", "--run", run)
    assert done.code == 4
    assert "model.safetensors" in one_line(done.err)


class Hub(BaseHTTPRequestHandler):
    """As much of huggingface.co as it takes to put files there, which it keeps."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[dict[str, object]]] = []
    refuses = False

    def do_GET(self) -> None:
        listed = [{"type": "file", "path": name, "size": 1, "oid": "1" * 40} for name in self.files]
        self._answer(listed if "/tree/" in self.path else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_mine" or self.refuses:
            self._answer({"error": "you may not"}, 403)
        elif self.path == "/api/repos/create":
            self.asked.append(json.loads(body))
            self._answer({"url": f"http://{self.headers['Host']}/some/net"})
        elif "/preupload/" in self.path:
            said = [{**each, "uploadMode": "regular"} for each in json.loads(body)["files"]]
            self._answer({"files": [{**each, "shouldIgnore": False} for each in said]})
        elif "/commit/" in self.path:
            for row in map(json.loads, body.splitlines()):
                value = row["value"]
                if row["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif row["key"] == "deletedFile":
                    del self.files[value["path"]]
            url = f"http://{self.headers['Host']}/some/net/commit/1"
            self._answer({"commitUrl": url, "commitOid": "1" * 40})
        else:  # whether a card's head is YAML
            self._answer({})

    def _answer(self, content: object, code: int = 200) -> None:
        said = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.slow
def test_it_goes_to_the_hub_when_asked_and_nothing_stale_stays_there(finished, tmp_path) -> None:
    Hub.files = {"model.onnx": b"of another training", "notes.md": b"mine"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    environ = {
        **os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_TOKEN": "hf_mine", "HF_HOME": str(tmp_path / "hf"),
    }  # fmt: skip
    words = ["--run", finished, "--formats", "safetensors", "--to", tmp_path / "to"]

    def export(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "train", "export", *map(str, words), "--push", "some/net"]
        return subprocess.run(
            command, cwd=ROOT, env={**environ, **more}, capture_output=True, text=True, check=False
        )

    try:
        done = export()
        assert done.returncode == 0, done.stderr
        assert "on the hub: http://127.0.0.1" in done.stdout
        assert Hub.asked == [{"name": "net", "organization": "some", "visibility": "private"}]
        here = {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()}
        assert {**here, "notes.md": b"mine"} == Hub.files
        assert {"model.safetensors", "config.json", "README.md"} == {*here}
        Hub.refuses = True
        refused = export()
        assert refused.returncode == 6
        assert "the hub does not take some/net" in one_line(refused.stderr)
    finally:
        Hub.refuses = False
        server.shutdown()
        server.server_close()


def test_what_cannot_be_pushed_is_told_before_anything_is_exported(
    finished, cli, tmp_path, monkeypatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    for name, says in (("net", "--push net is no repository"), ("some/net", "no HF_TOKEN")):
        done = cli("export", "--run", finished, "--to", tmp_path / "to", "--push", name)
        assert done.code == 2
        assert says in one_line(done.err)
    assert not (tmp_path / "to").exists()
