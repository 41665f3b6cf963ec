"""Layers in their order, rates that fall towards the input, and branches that are left out."""

import pytest
import torch
from torch import nn
from torchvision import models as theirs

from host.errors import UsageError
from train.config import Config, Model, Optim
from train.learn import optim
from train.learn.layers import depths
from train.learn.models import build


@pytest.mark.parametrize(
    ("name", "layers"),
    [  # stem, blocks, what lies between stages, head
        ("resnet18", 1 + 8 + 1),
        ("resnet50", 1 + 16 + 1),
        ("vit_b_16", 1 + 12 + 1),
        ("convnext_tiny", 1 + 18 + 3 + 1),
        ("swin_t", 1 + 12 + 3 + 1),
        ("efficientnet_b0", 1 + 16 + 1 + 1),
        ("mobilenet_v2", 1 + 17 + 1 + 1),
        ("efficientnet_v2_s", 1 + 40 + 1 + 1),
        ("googlenet", 3 + 9 + 1),
        ("regnet_y_400mf", 1 + 16 + 1),
        ("squeezenet1_1", 1 + 8 + 1),
        ("alexnet", 5 + 3),
    ],
)
def test_torchvision_s_models_have_as_many_layers_as_their_papers_say(name, layers) -> None:
    old = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    found = depths(theirs.get_model(name, weights=None, **old))
    assert {*found.values()} == {*range(layers)}
    first, *_, last = found.values()
    assert (first, last) == (layers - 1, 0)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "inception_v4", "regnetx_002"])
def test_layers_are_those_that_timm_finds(name) -> None:
    import timm
    from timm.optim import param_groups_layer_decay

    with torch.device("meta"):
        model = timm.create_model(name)
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    own = {id(p): n for n, p in model.named_parameters()}
    found = depths(model)
    assert len(found) == sum(len(group["params"]) for group in groups)
    for group in groups:
        for parameter in group["params"]:
            assert 0.5 ** found[own[id(parameter)]] == group["lr_scale"], own[id(parameter)]


def test_rates_fall_towards_the_input() -> None:
    model = build(Model(), 10, (1, 8, 8))
    optimizer = optim.build(Config(optim=Optim(layer_decay=0.5)), model)
    optim.set_lr(optimizer, 0.3)
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates["15.weight"] == rates["15.bias"] == 0.3
    assert rates["0.weight"] == rates["1.weight"] == rates["1.bias"] == 0.3 / 16
    assert len(rates) == len(names)
    decays = {names[id(p)]: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert {name for name, decay in decays.items() if decay} == {
        name for name, p in model.named_parameters() if p.ndim > 1
    }


def test_what_has_no_layers_has_one() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))

    assert depths(Bare()) == {"weight": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate"), [("convnext_tiny", 0.1), ("swin_t", 0.2)])
def test_branches_are_left_out_as_torchvision_does(name, rate) -> None:
    torch.manual_seed(0)
    model = build(Model(name=name, drop_path=rate), 7, (3, 64, 64))
    torch.manual_seed(0)
    other = theirs.get_model(name, weights=None, num_classes=7)  # its rates are these
    images = torch.rand(6, 3, 64, 64)
    outputs = []
    for each in (model, other.train()):
        torch.manual_seed(1)
        with torch.no_grad():
            outputs.append(each(images))
    assert torch.equal(*outputs)
    torch.manual_seed(2)
    with torch.no_grad():
        assert not torch.equal(model(images), outputs[0])
    whole = build(Model(name=name, drop_path=0), 7, (3, 64, 64))
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(whole(images), whole.eval()(images))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_b_32"])
def test_branches_of_a_model_that_knows_no_stochastic_depth(name) -> None:
    torch.manual_seed(0)
    model = build(Model(name=name, drop_path=0.4), 7, (3, 224, 224))
    blocks = [m for m in model.modules() if type(m).__name__ in ("BasicBlock", "EncoderBlock")]
    last = blocks[-1].bn2 if name == "resnet18" else blocks[-1].mlp
    first = blocks[0].bn2 if name == "resnet18" else blocks[0].mlp
    shape = (4000, 4, 1, 1) if name == "resnet18" else (4000, 2, 768)
    for place, share in ((last, 0.4), (first, 0.0)):
        (hook,) = place._forward_hooks.values()
        kept = hook(place, (), torch.ones(shape)).flatten(1)
        assert ((kept == 0).all(1) | (kept != 0).all(1)).all()  # a sample's branch, or none of it
        deviation = (0.4 * 0.6 / 4000) ** 0.5
        assert (kept[:, 0] == 0).double().mean().item() == pytest.approx(share, abs=5 * deviation)
        assert kept.max().item() == pytest.approx(1 / (1 - share))
    model.eval()
    plain = build(Model(name=name), 7, (3, 224, 224)).eval()
    plain.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))


def test_frozen_norms_do_not_keep_branches_in() -> None:
    names = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]
    model = build(Model(name="resnet18", drop_path=0.9, freeze=names), 7, (3, 64, 64))
    images = torch.rand(4, 3, 64, 64)
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))


@pytest.mark.slow
def test_a_model_without_branches_is_refused() -> None:
    with pytest.raises(UsageError, match="vgg11 has no residual branches"):
        build(Model(name="vgg11", drop_path=0.1), 7, (3, 64, 64))
    with pytest.raises(UsageError, match="convnet has no residual branches"):
        build(Model(drop_path=0.1), 7, (3, 64, 64))
