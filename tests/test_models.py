import pytest
import safetensors.torch
import torch
from conftest import DIGITS, one_line
from safetensors.torch import save_file
from torch import nn
from torchvision import models as registry

from host.errors import UsageError
from train.config import Config, Model, Optim
from train.learn import models, pretrained
from train.learn.models import build
from train.learn.nets import OURS
from train.learn.optim import build as build_optimizer
from train.learn.optim import lr_at
from train.learn.registry import AveragePool
from train.learn.weights import contiguous
from train.record.checkpoint import weights_sha256


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_our_nets_take_digits_and_small_pictures(name, shape) -> None:
    model = build(Model(name=name), 7, shape)
    out = model(torch.rand(4, *shape))
    assert out.shape == (4, 7)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "stem", "shape"),
    [
        ("resnet18", "small", (3, 32, 32)),
        ("resnet18", "small", (1, 8, 8)),
        ("resnet18", "standard", (3, 64, 64)),
        ("alexnet", "small", (3, 32, 32)),
        ("alexnet", "standard", (3, 224, 224)),
        ("mobilenet_v3_small", "standard", (1, 32, 32)),
        ("googlenet", "standard", (3, 64, 64)),
    ],
)
def test_torchvision_s_models_by_name(name, stem, shape) -> None:
    model = build(Model(name=name, stem=stem), 5, shape)
    assert model(torch.rand(2, *shape)).shape == (2, 5)
    assert model.training


def test_the_small_stem_keeps_the_size() -> None:
    model = build(Model(name="resnet18", stem="small"), 10, (3, 32, 32))
    assert model.conv1.kernel_size == (3, 3)
    assert model.layer1(model.maxpool(model.conv1(torch.rand(1, 3, 32, 32)))).shape[2:] == (32, 32)


@pytest.mark.parametrize(
    ("options", "shape", "anew"),
    [
        ({"stem": "small"}, (3, 32, 32), "conv1 (model.stem: small), fc (10 classes)"),
        ({}, (1, 64, 64), "conv1 (1 channel), fc (10 classes)"),
        ({}, (3, 64, 64), "fc (10 classes)"),
    ],
)
def test_what_published_weights_do_not_reach_is_said(monkeypatch, options, shape, anew) -> None:
    """Without the weights themselves, which nobody may fetch here."""
    made = registry.get_model
    monkeypatch.setattr(registry, "get_model", lambda name, weights, **k: made(name, **k))
    config = Model(name="resnet18", weights="DEFAULT", **options)
    model = build(config, 10, shape)
    assert [*models.published(config, model)] == [
        f"weights: DEFAULT of resnet18; begun anew: {anew}"
    ]
    for name in ("conv1", "conv1.weight", "fc", "layer1"):
        frozen = config.model_copy(update={"freeze": [name]})
        layer = name.partition(".")[0]
        if layer not in anew:
            part = build(frozen, 10, shape).get_submodule(layer)
            assert not any(p.requires_grad for p in part.parameters())
            continue
        with pytest.raises(UsageError, match=f"names {name}, and {layer} begins with random"):
            build(frozen, 10, shape)


def test_a_frozen_part_has_no_layer_that_begins_anew(monkeypatch) -> None:
    made = registry.get_model
    monkeypatch.setattr(registry, "get_model", lambda name, weights, **k: made(name, **k))
    config = Model(name="mobilenet_v3_small", weights="DEFAULT", freeze=["features"])
    with pytest.raises(UsageError, match=r"names features, and features\.0\.0 begins with random"):
        build(config, 10, (1, 32, 32))


def test_the_same_seed_makes_the_same_weights() -> None:
    def made():
        torch.manual_seed(3)
        return build(Model(name="resnet18", stem="small"), 10, (1, 8, 8)).state_dict()

    one, two = made(), made()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("size", [(6, 6), (7, 7), (1, 1), (2, 5)])
@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 3, 6, 6), (2, 2, 3, 3), (1, 1, 13, 12)])
def test_the_average_pool_is_the_adaptive_one(size, shape) -> None:
    x = torch.rand(shape)
    assert torch.allclose(AveragePool(size)(x), nn.AdaptiveAvgPool2d(size)(x), atol=1e-6)


@pytest.mark.slow
def test_no_model_keeps_a_pool_without_a_deterministic_backward_pass() -> None:
    for name in ("alexnet", "vgg11", "resnet18"):
        pools = [
            m.output_size
            for m in build(Model(name=name), 3, (3, 64, 64)).modules()
            if isinstance(m, nn.AdaptiveAvgPool2d)
        ]
        assert set(pools) <= {1, (1, 1)}


def test_a_new_head_for_weights_of_other_classes() -> None:
    from torchvision.models import alexnet, squeezenet1_1

    from train.learn.registry import _new_head

    for made in (alexnet(num_classes=9), squeezenet1_1(num_classes=9)):
        _new_head(made, 4)
        assert made(torch.rand(1, 3, 64, 64)).shape == (1, 4)


def test_channels_last() -> None:
    model = build(Model(name="resnet18", stem="small", channels_last=True), 10, (3, 32, 32))
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_weights_from_a_file_and_a_new_head(tmp_path) -> None:
    source = build(Model(), 10, (1, 8, 8))
    file = tmp_path / "model.safetensors"
    save_file(source.state_dict(), file)
    same = build(Model(weights=str(file)), 10, (1, 8, 8))
    assert all(
        torch.equal(a, b) for a, b in zip(source.parameters(), same.parameters(), strict=True)
    )
    other = build(Model(weights=str(file)), 3, (1, 8, 8))
    assert torch.equal(other[0].weight, source[0].weight)
    assert other[-1].out_features == 3


@pytest.mark.parametrize(
    ("knobs", "shape", "says"),
    [
        ({"name": "resnet81"}, (3, 32, 32), "no model resnet81; did you mean resnet18"),
        ({"name": "convnot"}, (3, 32, 32), "did you mean convnet"),
        ({"name": "convnet", "stem": "small"}, (1, 8, 8), "convnet has one stem"),
        ({"name": "vgg11", "stem": "small"}, (3, 64, 64), "vgg11 has no stem"),
        ({"name": "resnet18", "weights": "NONESUCH"}, (3, 64, 64), "has no weights .NONESUCH"),
        ({"name": "resnet18", "weights": ""}, (3, 64, 64), "has no weights ''"),
        ({"weights": "DEFAULT"}, (1, 8, 8), "convnet has no weights named 'DEFAULT'"),
        ({"weights": "model.pt"}, (1, 8, 8), "so only .safetensors files are"),
        ({"weights": ""}, (1, 8, 8), "no weights named ''"),
        ({"weights": "nowhere.safetensors"}, (1, 8, 8), "cannot read weights nowhere"),
    ],
)
def test_bad_models_say_what_would_do(knobs, shape, says) -> None:
    with pytest.raises(UsageError) as raised:
        build(Model(**knobs), 10, shape)
    assert __import__("re").search(says, str(raised.value)), str(raised.value)


def test_weights_of_another_model_are_refused(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(build(Model(name="mlp"), 10, (1, 8, 8)).state_dict(), file)
    with pytest.raises(UsageError, match="of another model"):
        build(Model(weights=str(file)), 10, (1, 8, 8))
    file.write_bytes(b"no weights")
    with pytest.raises(UsageError, match="cannot read weights"):
        build(Model(weights=str(file)), 10, (1, 8, 8))


def test_biases_and_norms_do_not_decay() -> None:
    model = build(Model(), 10, (1, 8, 8))
    decay, none = build_optimizer(Config(optim=Optim(weight_decay=0.1)), model).param_groups
    assert {p.ndim for p in decay["params"]} == {2, 4}
    assert {p.ndim for p in none["params"]} == {1}
    assert (decay["weight_decay"], none["weight_decay"]) == (0.1, 0.0)
    assert len(decay["params"]) + len(none["params"]) == len(list(model.parameters()))


def test_the_rate_follows_the_experiment() -> None:
    assert lr_at(Optim(lr=0.4, warmup=10), 4, 100, 7) == 0.2
    assert lr_at(Optim(lr=0.4, warmup_epochs=2), 6, 100, 7) == 0.2


def test_tied_weights_of_a_file_that_has_them_once(tmp_path) -> None:
    config = Model(name="mlp")
    model = build(config, 10, (1, 8, 8))
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    layers[0].weight = nn.Parameter(torch.randn(4, 4))
    layers[1].weight = layers[0].weight
    safetensors.torch.save_model(model, str(tmp_path / "tied.safetensors"))
    with torch.no_grad():
        layers[0].weight.zero_()
    pretrained.load(model, Model(name="mlp", weights=str(tmp_path / "tied.safetensors")))
    assert layers[1].weight.abs().min() > 0


def test_sgd_without_momentum() -> None:
    config = Config(optim=Optim(momentum=0.0))
    optimizer = build_optimizer(config, build(Model(name="mlp"), 10, (1, 8, 8)))
    assert optimizer.param_groups[0]["nesterov"] is False


@pytest.mark.parametrize("prefix", ["module.", "model.", "model._orig_mod.", "net.backbone."])
@pytest.mark.parametrize("name", ["convnet", "shufflenet_v2_x0_5"])
def test_weights_of_a_wrapped_model(tmp_path, prefix, name) -> None:
    """As DDP, Lightning and torch.compile name them; said, and taken off where that is asked."""
    shape = (3, 64, 64)
    model = build(Model(name=name), 10, shape)
    file = tmp_path / "wrapped.safetensors"
    tensors = {f"{prefix}{n}": t for n, t in contiguous(model.state_dict()).items()}
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(UsageError, match=f"all begin with {prefix} → add --model.prefix {prefix}"):
        build(Model(name=name, weights=str(file)), 10, shape)
    with pytest.raises(UsageError, match=f"add --model.prefix {prefix}"):
        build(Model(name=name, weights=str(file), prefix="x."), 10, shape)
    found = build(Model(name=name, weights=str(file), prefix=prefix), 10, shape)
    assert weights_sha256(found) == weights_sha256(model)
    with pytest.raises(UsageError, match="of another model"):
        build(Model(name="mlp", weights=str(file)), 10, shape)
    bare = tmp_path / "bare.safetensors"
    safetensors.torch.save_file(contiguous(model.state_dict()), bare)
    with pytest.raises(
        UsageError, match=r"do not all begin with module\. → take model.prefix away"
    ):
        build(Model(name=name, weights=str(bare), prefix="module."), 10, shape)


def test_whole_numbers_are_no_weights(tmp_path) -> None:
    """A quantised file would have been taken for what it rounds to."""
    model = build(Model(), 10, (1, 8, 8))
    tensors = contiguous(model.state_dict())
    tensors["0.weight"] = (100 * tensors["0.weight"]).to(torch.int8)
    safetensors.torch.save_file(tensors, tmp_path / "q.safetensors")
    with pytest.raises(UsageError, match=r"0\.weight does not fit"):
        build(Model(weights=str(tmp_path / "q.safetensors")), 10, (1, 8, 8))


def test_a_memory_format_for_no_convolution() -> None:
    with pytest.raises(UsageError, match=r"no convolutions, so model\.channels_last does"):
        build(Model(name="mlp", channels_last=True), 10, (1, 8, 8))


def test_frozen_parts_are_not_trained_and_their_batch_norm_stays() -> None:
    model = build(Model(freeze=["0", "1", "7.weight"]), 10, (1, 8, 8))
    fixed = {"0.weight", "1.weight", "1.bias", "7.weight"}
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == fixed
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = build_optimizer(Config(), model)
    for training in (True, False, True):
        model.train(training)
        assert (model[1].training, model[4].training) == (False, training)
    for _ in range(3):
        model(torch.rand(8, 1, 8, 8)).sum().backward()
        made.step()
    after = model.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == fixed | {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    with pytest.raises(UsageError, match="no part convv → name parts of it, such as 0, 1, 2"):
        build(Model(freeze=["convv"]), 10, (1, 8, 8))
    with pytest.raises(UsageError, match="did you mean layer1"):
        build(Model(name="resnet18", freeze=["layr1"]), 10, (3, 64, 64))
    nothing = build(Model(freeze=[str(n) for n in range(16)]), 10, (1, 8, 8))
    with pytest.raises(UsageError, match="no parameter of the model can be trained"):
        build_optimizer(Config(), nothing)


def test_what_a_model_took_of_a_file_is_said(tmp_path) -> None:
    source = build(Model(), 10, (1, 8, 8))
    file = tmp_path / "model.safetensors"
    save_file({f"module.{n}": t for n, t in source.state_dict().items()}, file)
    config = Model(weights=str(file), prefix="module.")
    assert [*pretrained.taken(config, build(config, 10, (1, 8, 8)))] == [
        f"weights: 26 of 26 tensors from {file}"
    ]
    assert [*pretrained.taken(config, build(config, 3, (1, 8, 8)))] == [
        f"weights: 24 of 26 tensors from {file}; made anew:",
        "  15.weight: 3×64, there 10×64",
        "  15.bias: 3, there 10",
    ]
    assert [*pretrained.taken(Model(), source)] == []


def test_weights_without_a_head_or_counters(tmp_path) -> None:
    """As backbones are published, and as PyTorch wrote batch norm before it counted batches."""
    source = build(Model(name="resnet18"), 1000, (3, 64, 64))
    tensors = contiguous(source.state_dict())
    kept = {n: t for n, t in tensors.items() if not n.endswith("tracked") and n[:3] != "fc."}
    file = tmp_path / "backbone.safetensors"
    save_file(kept, file)
    config = Model(name="resnet18", weights=str(file))
    model = build(config, 37, (3, 64, 64))
    assert all(torch.equal(model.state_dict()[n], t) for n, t in kept.items())
    assert [*pretrained.taken(config, model)] == [
        f"weights: {len(kept)} of {len(kept) + 2} tensors from {file}; made anew:",
        "  fc.weight: 37×512, not there",
        "  fc.bias: 37, not there",
    ]
    for missing in ("layer1.0.conv1.weight", "bn1.running_mean"):
        save_file({n: t for n, t in kept.items() if n != missing}, file)
        with pytest.raises(UsageError, match=f"{missing} does not fit"):
            build(config, 37, (3, 64, 64))
    save_file({**kept, "projector.weight": torch.zeros(3)}, file)
    with pytest.raises(UsageError, match=r"projector\.weight does not fit"):
        build(config, 37, (3, 64, 64))


def test_a_run_in_place_of_its_weights_is_refused_with_the_file(finished, cli, tmp_path) -> None:
    best = finished / "checkpoints/best"
    averaged = tmp_path / "latest"
    averaged.mkdir()
    for name in ("model", "ema"):
        (averaged / f"{name}.safetensors").touch()
    for folder, file in (
        (finished, best / "model.safetensors"),
        (best, best / "model.safetensors"),
        (averaged, averaged / "ema.safetensors"),  # which is what was measured
    ):
        done = cli("fit", *DIGITS, "--model.weights", folder, "--run", tmp_path / "run")
        assert done.code == 2
        assert f"{folder} is a folder → name the file in it: {file}" in one_line(done.err)


def test_weights_of_other_channels_are_told_apart_by_their_sizes(tmp_path) -> None:
    grey = build(Model(), 10, (1, 8, 8)).state_dict()
    safetensors.torch.save_file(contiguous(grey), tmp_path / "grey.safetensors")
    said = r"0\.weight does not fit: it is 32×3×3×3 here, and 32×1×3×3 there → .* data\.channels"
    with pytest.raises(UsageError, match=said):
        build(Model(weights=str(tmp_path / "grey.safetensors")), 10, (3, 8, 8))
