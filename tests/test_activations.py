"""Activations that are computed again: less is kept, and nothing comes out otherwise."""

import random
import shutil
import weakref

import idioms
import numpy as np
import pytest
import torch
import torchvision
from conftest import DIGITS, one_line
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from host.errors import UsageError
from train.config import Model
from train.lanes.seeds import Generators
from train.lanes.state import same
from train.learn import models
from train.learn.activations import compute_again
from train.learn.models import build
from train.process import memory


class Drawing(nn.Module):
    """A block that draws from every generator there is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.own, self.arrays = torch.Generator(), np.random.default_rng(0)
        self.old, self.pure = np.random.RandomState(0), random.Random(0)

    def forward(self, x):
        noise = torch.rand(x.shape, generator=self.own)
        scale = random.random() + np.random.rand() + self.arrays.random()
        scale += self.old.rand() + self.pure.random()
        return torch.tanh(self.drop(self.layer(x)) * noise * scale)


class Tracing(nn.Module):
    """A block with a buffer that follows what it sees, and that what it gives depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)
        self.register_buffer("trace", torch.zeros(1))

    def forward(self, x):
        self.trace.mul_(0.9).add_(x.detach().mean())
        return torch.sigmoid(self.layer(x) * (1 + self.trace.clone()))


def plain() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*layers, nn.GELU(), nn.Flatten(), nn.Linear(128, 10))


def blocks(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), *inner, nn.Flatten(), nn.Linear(288, 10))


MODELS = {
    "a sequence": plain,
    "what draws": lambda: blocks(Drawing(), Drawing()),
    "buffers that move": lambda: blocks(Tracing(), Tracing()),
    "spectral norm": lambda: blocks(
        nn.Sequential(spectral_norm(nn.Conv2d(8, 8, 3, padding=1)), nn.Sigmoid()),
        nn.Sequential(spectral_norm(nn.Conv2d(8, 8, 3, padding=1)), nn.Sigmoid()),
    ),
    "residual blocks": lambda: build(Model(name="resnet18", stem="small"), 10, (1, 8, 8)),
    "attention": lambda: build(Model(name="timm:test_vit"), 10, (1, 160, 160)),
    "all features again": lambda: build(Model(name="densenet121"), 10, (1, 32, 32)),
}
SIDES = {"attention": 160, "all features again": 32}


def passed(make, side: int, *, again: bool) -> dict[str, torch.Tensor]:
    """What a step leaves behind: gradients, buffers, and the next number of each generator."""
    torch.manual_seed(0)
    model = make()
    if again:
        compute_again(model, [name for name, _ in model.named_buffers()])
    generators = Generators(model)
    generators.seed_lane(0, 0, 0)
    images = torch.rand(4, 1, side, side)
    # Twice, as two lanes: what the first one leaves is what the second one finds.
    for _ in range(2):
        model(images).square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    found |= {name: b.clone() for name, b in model.named_buffers()}
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]
    drawn += [torch.rand(1, generator=g).item() for g in generators._own if hasattr(g, "device")]
    drawn += [float(g.random()) for g in generators._own if not hasattr(g, "device")
              and hasattr(g, "random")]  # fmt: skip
    return found | {"drawn": torch.tensor(drawn, dtype=torch.float64)}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_leaves_the_same_behind(name) -> None:
    make, side = MODELS[name], SIDES.get(name, 8)
    usual, found = (passed(make, side, again=again) for again in (False, True))
    assert usual.keys() == found.keys()
    assert [key for key in usual if not same(usual[key], found[key])] == []


def kept(again: bool) -> int:
    """How many layers' outputs are still there after a forward pass."""
    model = torchvision.models.resnet18()
    if again:
        compute_again(model, [])
    seen: list[weakref.ref] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, _g, out: seen.append(weakref.ref(out)))
    loss = model(torch.rand(2, 3, 32, 32)).sum()
    there = sum(each() is not None for each in seen)
    loss.backward()
    return there


def test_what_blocks_compute_is_gone_after_the_forward_pass() -> None:
    # The stem is no block.
    assert kept(again=False) > 10
    assert kept(again=True) <= 1


@pytest.mark.parametrize(
    ("name", "share"),
    [("vit_b_16", 0.2), ("resnet50", 0.6), ("swin_t", 0.35), ("vgg16", 0.8), ("googlenet", 0.55)],
)
def test_the_estimate_knows_of_it(name, share) -> None:
    shape = (3, 224, 224)
    with torch.device("meta"):
        model = build(Model(name=name), 1000, shape)
    usual = memory.saved(model, 8, shape)
    assert memory.saved(model, 8, shape, again=True) < share * usual
    assert memory.saved(model, 8, shape) == usual


@pytest.mark.slow
def test_a_run_has_the_same_bits_and_may_change_its_mind(cli, tmp_path) -> None:
    words = ["fit", *DIGITS, "--batch_size", 96, "--max_steps", 4, "--checkpoint.every", 2]
    words += ["--run"]
    on = ["--model.activation_checkpointing", "true"]
    whole, again = (cli(*words, tmp_path / run, *more) for run, more in (("1", []), ("2", on)))
    assert hash_of(whole) == hash_of(again)
    (tmp_path / "1/result.json").unlink()
    for newest in (tmp_path / "1/checkpoints").glob("*4"):
        shutil.rmtree(newest)
    assert hash_of(cli(*words, tmp_path / "1", "--resume", *on)) == hash_of(again)


def hash_of(done) -> str:
    assert done.code == 0, done.err
    assert "weights " in done.out, done.out
    return done.out.split("weights ")[1].split()[0]


class Writing(nn.Module):
    """A block that begins by writing over its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.layer(x.mul_(2).sin())


def test_what_cannot_be_computed_again_is_refused(cli, tmp_path, monkeypatch) -> None:
    (tmp_path / "written_nets.py").write_text(
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_activations import Writing, blocks\n"
        "def writing(classes, shape): return blocks(Writing(), Writing())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["fit", *DIGITS, "--model.activation_checkpointing", "true", "--run", tmp_path / "run"]
    for more, said in (
        (["--model.name", "written_nets:writing"], "cannot be computed again"),
        (["--model.compile", "true", "--numerics", "native"], "drop one of the two"),
    ):
        done = cli(*words, *more)
        assert done.code == 2, done.out
        assert said in one_line(done.err)


def test_a_model_without_blocks_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    with pytest.raises(UsageError, match="has no blocks"):
        compute_again(Bare(), [])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_what_the_trainer_watches_is_left_alone(cli, tmp_path, monkeypatch) -> None:
    """A frozen norm of one's own, whose averages are buffers that nothing may write to; a scripted
    module, which cannot be left half-way.
    """
    monkeypatch.setitem(
        models.OURS, "frozen", idioms.ALL["frozen_batchnorm_buffers_versioned_load"]
    )
    monkeypatch.setitem(models.OURS, "scripted", idioms.ALL["torchscript_submodule"])
    for name in ("frozen", "scripted"):
        words = ["fit", *DIGITS, "--numerics", "native", "--batch_size", 32, "--max_steps", 2]
        words += ["--model.name", name, "--run"]
        on = ["--model.activation_checkpointing", "true"]
        usual, again = (cli(*words, tmp_path / f"{name}{len(m)}", *m) for m in ([], on))
        assert hash_of(usual) == hash_of(again)
