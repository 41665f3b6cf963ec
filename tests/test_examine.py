"""What the examination of a model finds and refuses, and what lanes do about it."""

import copy
import itertools
import random
from functools import partial

import idioms
import numpy as np
import pytest
import torch
from conftest import DIGITS
from torch import nn
from torch.distributed import all_reduce, get_rank, get_world_size
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from host.errors import UsageError
from train.config import Augment, Config, Data
from train.data import Augmenter, load
from train.lanes import runtime as runtimes
from train.lanes.buffers import Buffers
from train.lanes.seeds import Generators, seed_start
from train.lanes.state import Kept, move, slots
from train.learn.alone import alone
from train.learn.examine import examine
from train.learn.resumption import beginning, check_resume, leave
from train.learn.tries import Samples, Tries
from train.measure import evaluate
from train.process.interrupt import StopFlag


class Base(nn.Module):
    """64 pixels to 4 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 4)

    def forward(self, x):
        return self.linear(x.flatten(1))


class PythonCounter(Base):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + (self.calls > 100))


class Toggle(Base):
    def __init__(self) -> None:
        super().__init__()
        self.odd = False

    def forward(self, x):
        self.odd = not self.odd
        return super().forward(x)


class Closure(Base):
    def __init__(self) -> None:
        super().__init__()
        seen = [0]

        def scale(x):
            seen[0] += 1
            return x

        self.scale = scale

    def forward(self, x):
        return super().forward(self.scale(x))


class Iterator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x):
        next(self.numbers)
        return super().forward(x)


class Memory(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(())

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return super().forward(x)


class Clock(Base):
    def forward(self, x):
        return super().forward(x) + torch.rand(1, generator=torch.Generator().manual_seed(
            random.SystemRandom().randrange(2**40)
        ))  # fmt: skip


class UnseededWeights(Base):
    def __init__(self) -> None:
        super().__init__()
        draws = np.random.default_rng().normal(size=(4, 64))
        self.linear.weight = nn.Parameter(torch.tensor(draws, dtype=torch.float32))


class LateLayer(Base):
    def forward(self, x):
        if not hasattr(self, "head"):
            self.head = nn.Linear(4, 4)
        return self.head(super().forward(x))


class Unfreezes(Base):
    def forward(self, x):
        self.linear.bias.requires_grad_(not self.linear.bias.requires_grad)
        return super().forward(x)


class Unsaved(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return super().forward(x)


class PlaceHolder(Base):
    """Filled when the size is known, as timm's ConViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x):
        x = x.flatten(1)
        if len(self.table) != x.shape[1]:
            self.table = torch.arange(x.shape[1]).cos()
        return self.linear(x * self.table)


class Grows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(1))

    def forward(self, x):
        self.queue = torch.cat([self.queue, x.detach().mean()[None]])
        return super().forward(x)


class ExtraState(Base):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state) -> None:
        pass


class Lossy(Base):
    def state_dict(self, *args, **kwargs):
        return {n: v.half().float() for n, v in super().state_dict(*args, **kwargs).items()}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, sparse=True)

    def forward(self, x):
        return self.embedding((x.flatten(1) > 0).long()).mean(1)


class HiddenAverage(Base):
    """A teacher that nobody registered, and that follows the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [copy.deepcopy(self.linear)]

    def forward(self, x):
        with torch.no_grad():
            for own, other in zip(
                self.teacher[0].parameters(), self.linear.parameters(), strict=True
            ):
                own.lerp_(other, 0.1)
        return super().forward(x) + self.teacher[0](x.flatten(1))


class FusedOnce(Base):
    """Weights that are made ready for evaluations, once."""

    fused = None

    def forward(self, x):
        if self.training:
            return super().forward(x)
        if self.fused is None:
            self.fused = self.linear.weight.detach().clone()
        return x.flatten(1) @ self.fused.T


class UnseededAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.order = np.random.default_rng().permutation(64)

    def forward(self, x):
        return self.linear(x.flatten(1)[:, self.order])


class ReplacedAndLeftOut(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return super().forward(x)

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        state.pop("mean")
        return state

    def load_state_dict(self, state, *args, **kwargs):
        return super().load_state_dict(state, strict=False)


class SwallowsTheRefusal(Base):
    def forward(self, x):
        try:
            scale = 1.0 / get_world_size()
        except Exception:
            scale = 1.0
        return super().forward(x) * scale


class Default(Base):
    def forward(self, x, seen=[0]):  # noqa: B006
        seen[0] += 1
        return super().forward(x)


class Frozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class TwoOutputs(Base):
    def forward(self, x):
        return super().forward(x), x


class Average(Base):
    """The average of inputs, replaced and not changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return super().forward(x)


class BehindTheBack(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count.data += 1
        return super().forward(x)


class LimitNotReached(Base):
    """CLIP's: it begins at 2.7, and may grow to 4.6."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.7))

    def forward(self, x):
        with torch.no_grad():
            self.scale.clamp_(0, 4.6)
        return super().forward(x) * self.scale


class LimitBehindTheBack(Base):
    """EEGNet's: it acts on weights that are larger than the first ones."""

    def forward(self, x):
        self.linear.weight.data = torch.renorm(self.linear.weight.data, 2, 0, 1.0)
        return super().forward(x)


class ClampsItsWeights(Base):
    def forward(self, x):
        self.linear.weight.data.clamp_(-0.01, 0.01)
        return super().forward(x)


class OwnGenerators(Base):
    def __init__(self) -> None:
        super().__init__()
        self.torchs = torch.Generator()
        self.others = [np.random.default_rng(), np.random.RandomState(), random.Random()]

    def forward(self, x):
        own = [float(one.random()) for one in self.others]
        own += [float(torch.rand(1, generator=self.torchs)), float(torch.rand(1))]
        draws = [*own, random.random(), np.random.rand()]
        return super().forward(x * sum(draws))


class Reentrant(Base):
    def forward(self, x):
        logits = checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)
        return logits + checkpoint(super().forward, x, use_reentrant=True)


class LateInEvaluation(Base):
    """Its evaluations change a buffer once it has trained a step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
        elif self.steps > 0:
            self.seen += x.mean()
        return super().forward(x)


class FromTheSecondBatch(Base):
    """As a quantiser that leaves its first batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        logits = self.norm(super().forward(x))
        if self.training and self.norm.num_batches_tracked > 1:
            self.largest.copy_(torch.maximum(self.largest, logits.detach().max()))
        return logits


class KeepsActivations(Base):
    def forward(self, x):
        self.last, self.size = x, len(x)
        return super().forward(x)


@pytest.fixture(scope="module")
def samples() -> Samples:
    generator = torch.Generator().manual_seed(1)
    return Samples(torch.randn(4, 1, 8, 8, generator=generator), torch.arange(4), 4)


def tried(kind, samples):
    built = []
    for _ in range(2):
        seed_start(0)
        built.append(kind())
    model, other = built
    with runtimes.start(Config()) as runtime:
        begun, looked = (
            beginning(model),
            Tries(model, samples, runtime, partial(alone, launched=True)),
        )
        examine(looked)
        left = leave(looked)
        found = looked.traits()
        check_resume(left, begun, Tries(other, samples, runtime, alone))
        return found


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (PythonCounter, "remembers something in calls"),
        (Toggle, "remembers something in odd"),
        (Closure, r"remembers something in scale \(seen\)\[0\]"),
        (Iterator, "remembers something in numbers"),
        (Memory, "remembers something in mean"),
        (Clock, "the model gives something else when it is asked again"),
        (UnseededWeights, "linear.weight does not begin with the same numbers"),
        (LateLayer, "head.(weight|bias) appears in a forward pass"),
        (Unfreezes, "freezes or unfreezes parameters"),
        (Unsaved, "remembers something in mean"),
        (Grows, "queue changes its shape"),
        (ExtraState, "state_dict holds _extra_state, which is no tensor"),
        (Lossy, "would not give linear.weight back as it was"),
        (Sparse, "the gradient of embedding.weight is sparse"),
        (HiddenAverage, r"remembers something in teacher\[0\]|after a resume"),
        (FusedOnce, "gives something else after a resume"),
        (UnseededAttribute, "order is not the same when the model is built again"),
        (ReplacedAndLeftOut, "would not give mean back"),
        (SwallowsTheRefusal, "the model talks to other processes, or asks how many"),
        (Default, "remembers something in Default.forward's defaults"),
        (Frozen, "no parameter of the model has a gradient"),
        (TwoOutputs, "the model returns a tuple for 4 images"),
    ],
)
def test_what_would_not_come_out_again_is_refused_by_name(kind, says, samples) -> None:
    with pytest.raises(UsageError, match=says):
        tried(kind, samples)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dead_code_restart_unseeded", "code comes out as something else when it is asked again"),
        ("inner_optimizer_with_momentum", r"remembers something in inner\.state\[0\]"),
        ("mean_of_first_batch_attribute", "after a resume, after other images"),
        ("noise_of_first_use", "after a resume, after other images"),
        ("draws_cached_by_batch_size", "after a resume, after other images"),
        ("grad_norm_read_in_forward", "reads or changes the gradient of"),
        ("zero_grad_in_forward", "reads or changes the gradient of body.weight"),
        ("counter_of_evaluations", "remembers something in n:"),
        ("scale_if_distributed", "or as another process"),
        ("world_group_all_reduce", "the model talks to other processes"),
        ("rank_from_environment_in_forward", "or as another process"),
        ("counter_in_slots", r"remembers something in step\['count'\]"),
        ("counter_in_a_namespace_of_the_file", r"remembers something in idioms.STATE\['step'\]"),
        ("counts_by_tuple_keys", r"remembers something in counts\[key 0\]"),
        ("sparse_adjacency_buffer", "adjacency is a sparse tensor"),
    ],
)
def test_what_a_reader_thought_would_slip_through_is_refused(name, says, samples) -> None:
    with pytest.raises(UsageError, match=says):
        tried(lambda: idioms.ALL[name](4, (1, 8, 8)), samples)


@pytest.mark.parametrize(
    "name",
    ["blocks_with_ids", "dropout_by_a_parameter", "fake_quant_per_tensor",
     "forward_hook_in_constructor", "frozen_bn_beside_a_center", "generator_in_a_helper_object",
     "generator_of_the_file", "group_lstm_over_rows", "masks_of_the_class_by_shape",
     "rotary_table_filled_when_used", "stochastic_depth_over_spectral_norm",
     "transformer_encoder_with_padding_mask"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_good_is_not_refused(name, samples) -> None:
    tried(lambda: idioms.ALL[name](4, (1, 8, 8)), samples)


def test_what_moves_only_after_some_steps_is_found(samples) -> None:
    """In the passes that begin with other weights and buffers than a new model's."""
    assert "seen" in tried(LateInEvaluation, samples).measured
    assert "largest" in tried(FromTheSecondBatch, samples).moving


def test_a_frozen_norm_stays_beside_other_things_that_move(samples) -> None:
    found = tried(lambda: idioms.ALL["frozen_bn_beside_a_center"](4, (1, 8, 8)), samples)
    assert found.moving == {"center"}


def test_weights_that_are_merged_for_evaluations_come_back_as_they_were(samples) -> None:
    def build():
        model = idioms.ALL["lora_merged_in_eval"](10, (1, 8, 8))
        model.body.B.data.normal_()
        return model

    found = tried(build, Samples(samples.images, samples.labels, 10))
    assert "body.weight" in found.measured
    assert "body.weight" not in found.moving
    data, model = load(Data(source="digits")), build()
    augmenter = Augmenter(Augment(), data.mean, data.std, torch.device("cpu"))
    before = model.body.weight.clone()
    config = Config(data={"source": "digits"}, batch_size=64, lanes=1)
    with runtimes.start(config) as runtime:
        what = model, data, augmenter, runtime, config
        figures = [evaluate(*what, stop=StopFlag(), moving=found.measured) for _ in range(2)]
    assert figures[0] == figures[1]
    assert torch.equal(model.body.weight, before)


@pytest.mark.parametrize(
    ("kind", "moving", "late"),
    [
        (Base, set(), set()),
        (OwnGenerators, set(), set()),
        (KeepsActivations, set(), set()),
        (PlaceHolder, set(), set()),
        (Average, {"mean"}, set()),
        (BehindTheBack, {"count"}, set()),
        (ClampsItsWeights, {"linear.weight"}, set()),
        (LimitNotReached, {"scale"}, set()),
        (LimitBehindTheBack, {"linear.weight"}, set()),
        (Reentrant, set(), {"linear.weight", "linear.bias"}),
        (lambda: nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(64, 4))),
         {"1.parametrizations.weight.0._u", "1.parametrizations.weight.0._v"}, set()),
        (lambda: nn.Sequential(nn.BatchNorm2d(1), Base()),
         {"0.running_mean", "0.running_var", "0.num_batches_tracked"}, set()),
    ],
)  # fmt: skip
def test_what_a_model_does_is_found(kind, moving, late, samples) -> None:
    found = tried(kind, samples)
    assert (found.moving, found.late) == (moving, late)


def test_a_lane_starts_from_the_step_s_buffers_and_the_first_one_s_stay(samples) -> None:
    model = Average()
    buffers = Buffers(model, {"mean"})
    first = model.mean
    for lane in range(3):
        buffers.begin()
        assert model.mean == 0
        model(torch.full((2, 64), float(lane + 1)))
        assert model.mean != 0
        buffers.end(0.5)
    buffers.settle([], 1)
    assert model.mean is first
    assert model.mean == pytest.approx(0.1)


def test_an_empty_lane_is_not_the_first(samples) -> None:
    model = Average()
    buffers = Buffers(model, {"mean"})
    buffers.begin()
    buffers.end(0.0)
    buffers.begin()
    model(torch.ones(2, 64))
    buffers.end(1.0)
    buffers.settle([], 1)
    assert model.mean == pytest.approx(0.1)


def test_a_buffer_that_begins_to_change_later_is_refused() -> None:
    model = Average()
    buffers = Buffers(model)
    buffers.begin()
    model(torch.ones(2, 64))
    with pytest.raises(UsageError, match="begins to change its own mean"):
        buffers.end(1.0)


def test_a_frozen_norm_layer_stays_as_it_is() -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), nn.BatchNorm2d(1).eval())
    buffers = Buffers(model)
    buffers.begin()
    model(torch.randn(8, 1, 4, 4))
    buffers.end(1.0)
    buffers.settle([average + 1 for average in buffers.averages], 1)
    assert [int(norm.num_batches_tracked) for norm in model] == [1, 0]
    assert model[1].running_mean == 0


def test_all_generators_follow_the_seed() -> None:
    seed_start(0)
    model = OwnGenerators()
    generators = Generators(model)
    drawn = []
    for seed, step, lane in ((1, 2, 3), (1, 2, 4), (1, 2, 3)):
        generators.seed_lane(seed, step, lane)
        drawn.append(model(torch.ones(1, 64)).sum().item())
    assert drawn[0] == drawn[2] != drawn[1]


def test_what_was_kept_is_put_back_bit_by_bit() -> None:
    model = Average()
    model.mean = torch.tensor(float("nan"))
    kept = Kept(slots(model))
    assert kept.moved() == []
    model(torch.ones(1, 64))
    model.linear.weight.data.zero_()
    assert {slot.name for slot in kept.moved()} == {"linear.weight"}
    kept.put_back()
    assert kept.moved() == []


@pytest.mark.parametrize("moving", [None, {"count"}])
def test_an_evaluation_does_not_depend_on_the_batches_before(moving) -> None:
    """A model that counts in evaluations as well, and draws: each batch is as if it were alone."""

    class Noisy(Base):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return super().forward(x) * self.count + torch.rand(len(x), 10)

    data = load(Data(source="digits"))
    augmenter = Augmenter(Augment(), data.mean, data.std, torch.device("cpu"))
    model = Noisy()
    model.linear = nn.Linear(64, 10)
    untouched = copy.deepcopy(model)
    config = Config(data={"source": "digits"}, batch_size=64, lanes=1)
    with runtimes.start(config) as runtime:
        found = [
            evaluate(one, data, augmenter, runtime, config, stop=StopFlag(), moving=moving)
            for one in (model, model if moving else copy.deepcopy(untouched))
        ]
    assert found[0] == found[1]
    assert model.count == 0 or moving is None


def test_a_model_that_talks_to_other_processes_is_stopped() -> None:
    """Where it is tried, nobody would answer."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for ask in (lambda: all_reduce(torch.ones(2)), get_world_size, get_rank):
            with pytest.raises(UsageError, match="talks to other processes"), alone():
                ask()
            ask()
    finally:
        torch.distributed.destroy_process_group()


def test_a_lane_of_one_sample_is_too_few_for_some_models(cli, tmp_path) -> None:
    words = ["--model.name", "resnet18", "--model.stem", "small", "--batch_size", 8]
    done = cli("fit", *DIGITS, *words, "--lanes", 8, "--run", tmp_path / "run")
    assert done.code == 2
    assert "batch norm cannot do with the 1 sample that a lane has → use --lanes 1" in done.err


@pytest.mark.parametrize(
    ("knobs", "warned"),
    [
        (["--batch_size", 8, "--lanes", 8], True),
        (["--batch_size", 8], False),
        (["--batch_size", 64, "--lanes", 8], False),
        (["--batch_size", 8, "--lanes", 8, "--model.name", "mlp"], False),
    ],
)
def test_few_samples_for_batch_norm_are_warned_of(cli, tmp_path, knobs, warned) -> None:
    done = cli("fit", *DIGITS, *knobs, "--max_steps", 2, "--run", tmp_path / "run")
    assert done.code == 0, done.err
    assert ("batch norm sees a lane at a time, and a lane has 1 of the" in done.out) == warned
    assert ("--lanes 1, or a larger --batch_size" in done.out) == warned


class Shared(Base):
    """One buffer by two names: the one is written to, and the other is read."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()
        self.register_buffer("mean", torch.zeros(4))
        self.norm.register_buffer("mean", self.mean)

    def forward(self, x):
        x = super().forward(x)
        if self.training:
            self.norm.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean


def test_one_buffer_in_two_places_is_one_on_a_device_as_well() -> None:
    """torch makes two of it where it copies: to cpu:0, which the processes of a launcher have."""
    images = torch.randn(4, 1, 8, 8)
    parted = Shared().to("cpu:0")
    assert parted.norm.mean is not parted.mean
    model = move(Shared(), torch.device("cpu:0"))
    assert model.norm.mean is model.mean
    kept = Kept(slots(model))
    model(images)
    after = model.mean.clone()
    kept.renew()
    assert model.norm.mean is model.mean
    assert not model.mean.any()
    model(images)
    assert torch.equal(model.mean, after)
    kept.put_back()
    assert model.norm.mean is model.mean
    assert not model.mean.any()
