"""Where models can be cut into stages: those of libraries as they are, and why others cannot be."""

import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import idioms
import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

from host.errors import UsageError
from host.stages import asked
from train.lanes.packing import pack, unpack
from train.lanes.seeds import equal
from train.lanes.stages import Stages
from train.learn import cutting, seeing, staged
from train.learn.tries import Samples, Tries


def tries(model: nn.Module, size: int = 8, channels: int = 1) -> Tries:
    here: Any = SimpleNamespace(
        accelerator=SimpleNamespace(autocast=nullcontext), device=torch.device("cpu")
    )
    images = torch.randn(4, channels, size, size, generator=torch.Generator().manual_seed(0))
    return Tries(model, Samples(images, torch.arange(4), 10), here)


def chosen(model: nn.Module, told: str, size: int = 8, channels: int = 1) -> Stages:
    torch.manual_seed(0)
    made, wanted = tries(model, size, channels), asked({"STAGES": told})
    assert wanted is not None
    made.train()
    made.train(1)
    return staged.choose(made, wanted, made.traits(), frozenset)


def test_what_comes_after_a_pass_is_none_of_it() -> None:
    """Tensors that are made after it may lie where some of the pass were."""
    made = tries(idioms.ALL["running_max_buffer"](10, (1, 8, 8)))
    made.train()
    for seen in seeing.see(made):
        assert seen.reads == []
        last = max(begun.until for begun in seen.begun.values())
        assert max(used for _, used, _ in seen.crossing) < last


LIBRARIES = [
    "densenet121", "shufflenet_v2_x0_5", "swin_t", "timm cait_xxs24_224", "timm dla34",
    "timm hrnet_w18_small", "timm mobilevit_xxs", "timm eva02_tiny_patch14_224",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_models_of_libraries_as_they_are(name) -> None:
    """`choose` itself compares two lanes and an evaluation with the whole model, bit by bit."""
    torch.set_num_threads(1)
    library, _, name = name.rpartition(" ")
    size = 28 if name.startswith("eva02") else 64
    sized: Any = {"img_size": size} if name.startswith(("eva02", "cait")) else {}
    if library:
        model = timm.create_model(name, num_classes=10, **sized)
    else:
        model = getattr(torchvision.models, name)(num_classes=10)
    found = chosen(model, "3", size, 3)
    assert set(found.owners.values()) == {0, 1, 2}
    assert abs(sum(found.costs) - 1) < 1e-6


class Skip(nn.Module):
    """As a UNet: the last layer needs what the first one gave."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.down, self.middle = nn.Linear(64, 32), nn.Linear(32, 32)
        self.up, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        kept = self.down(self.flat(x))
        return self.head(self.up(torch.cat([kept, self.middle(kept)], 1)))


class Tied(nn.Module):
    """One layer's weight is another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(64, 64),
            nn.Linear(64, 64),
            nn.Linear(64, 10),
        )
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.third(self.second(self.first(x.flatten(1)).relu()).relu())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.last(self.again(self.again(self.first(x.flatten(1)))))


class Looks(nn.Module):
    """What the first layer gives decides what the last one does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.first(x.flatten(1))
        scale = 2.0 if x.mean().item() > 0 else 1.0
        return self.last(x) * scale


class Recurs(nn.Module):
    """torch's recurrent layers keep a list of their weights beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.middle = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        x, _ = self.gru(x[:, 0])
        return self.last(self.middle(x[:, -1]).relu())


@pytest.mark.parametrize(
    ("model", "told", "words"),
    [
        (Skip, "middle", "middle, which is not given all that is needed of what comes before it"),
        (Tied, "second", "second, which uses first.weight, which is used before it as well"),
        (Twice, "again", "again, which is called 2 times in a forward pass"),
        (Twice, "nothing", "nothing, which it does not have"),
        (Skip, "flat", "flat, which has nothing before it"),
        (Skip, "head,up", "head,up do not begin in this order"),
        (Looks, "last", "cannot be cut at last"),
        (Recurs, "middle", "cut at middle: the recurrent layer gru stands before that"),
        (Skip, "5", "the model has not so many places where it can be cut"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model, told, words) -> None:
    with pytest.raises(UsageError) as raised:
        chosen(model(), told)
    assert words in raised.value.problem


class Draws(nn.Module):
    """Dropout on both sides; a tuple, a mask, a word and nothing at all cross the cut."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, pair, word, *, mask=None, nothing=None):
            assert (word, nothing) == ("a", None)
            one, other = pair
            one.add_(1)  # what it is given, in place
            return torch.dropout(self.layer(one * mask) + other, 0.5, self.training)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(64, 64), self.Part(), nn.Linear(32, 10)
        self.positions = nn.Parameter(torch.randn(64))
        self.register_buffer("mask", (torch.arange(32) % 3 > 0), persistent=False)

    def forward(self, x):
        x = torch.dropout(self.first(x.flatten(1)) + self.positions, 0.5, self.training)
        pair = (x[:, :32] * 2, x[:, 32:])
        return self.last(self.part(pair, "a", mask=self.mask.clone(), nothing=None))


def test_whatever_a_module_is_given_crosses_the_cut() -> None:
    found = chosen(Draws(), "part")
    assert found.owners["positions"] == found.owners["mask"] == 0
    assert found.owners["part.layer.weight"] == found.owners["last.bias"] == 1


class Width(nn.Module):
    """Python draws how wide a layer is, and the shape says it to what comes after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        width = random.choice([16, 32]) if self.training else 32
        x = functional.linear(x.flatten(1), self.first.weight[:width], self.first.bias[:width])
        x = functional.linear(x, self.middle.weight[:, : x.shape[1]], self.middle.bias)
        return self.last(x) * (32 / width)


class Rare(nn.Module):
    """A layer that is left out now and then, by Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.first(x.flatten(1)).relu()
        if not self.training or random.random() < 0.3:
            x = self.middle(x)
        return self.last(x)


def test_what_python_draws_is_the_same_on_all_stages() -> None:
    for model in (Width(), Rare()):
        found = chosen(model, "last")
        assert found.elsewhere == ((), ())
        assert found.owners["middle.weight"] == 0
        assert found.owners["last.weight"] == 1


class Counts(nn.Module):
    """The shape of a tensor says to Python what was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = torch.dropout(self.first(x.flatten(1)), 0.5, self.training)
        count = len(torch.nonzero(torch.rand(2) < 0.015))
        return self.last(x) * (1 - 0.5 * count)


def test_no_cut_comes_after_python_has_read_a_number() -> None:
    with pytest.raises(UsageError, match="last, which comes after Python has read numbers of"):
        chosen(Counts(), "last")


def test_the_longest_stage_is_as_short_as_can_be() -> None:
    seen = seeing.Seen(seconds=10.0)
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(6)))
    for n, seconds in enumerate((0, 1, 2, 6, 7, 9)):
        seen.begun[str(n)] = seeing.Begun(str(n), n, set(), n + 1, seconds=float(seconds))
        seen.uses[model[n].weight.untyped_storage().data_ptr()] = (n, n)
    assert cutting.best(model, [seen], 2, frozenset()) == ("3",)
    assert cutting.best(model, [seen], 2, frozenset(["3"])) == ("4",)
    assert cutting.best(model, [seen], 3, frozenset()) == ("2", "3")
    assert cutting.best(model, [seen], 7, frozenset()) is None


def test_states_of_generators_come_back_as_they_were() -> None:
    kinds = [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]
    random.gauss(0, 1)
    states = [
        random.getstate(), np.random.get_state(), torch.get_rng_state(),
        *(np.random.default_rng(kind(3)).bit_generator.state for kind in kinds),
        np.random.RandomState(3).get_state(), random.Random(3).getstate(),
        torch.Generator().manual_seed(2).get_state(), None, (1, 2.5, "a", True), torch.bfloat16,
    ]  # fmt: skip
    assert equal(unpack(pack(states)), states)
    random.setstate(unpack(pack(states))[0])
    np.random.set_state(unpack(pack(states))[1])
    torch.set_rng_state(unpack(pack(states))[2])
