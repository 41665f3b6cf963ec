"""What portable.py has computed on each CPU: digests of random models, and of torch's operations.

    python benchmarks/portable_parts.py models OUT.json FIRST LAST
    python benchmarks/portable_parts.py operations OUT.json FIRST LAST

Each line of OUT is a mapping of one model or operator: what it is, and digests by name.
"""

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from host.errors import UsageError
from train.numerics import convolutions

ELEMENTS = 1 << 19
"""Of an activation at most: an emulated CPU takes its time."""
SAMPLES = 12
"""Of an operator's inputs, of those that torch's own tests have."""


def digest(leaves: Any) -> str:
    """Of tensors and plain values; NaN is NaN, whatever its payload."""
    found = hashlib.sha256()
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            found.update(repr(leaf).encode())
            continue
        found.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
        plain = leaf.detach()
        if plain._is_zerotensor():  # zeros without memory, which NumPy would read
            plain = torch.zeros(plain.shape, dtype=plain.dtype)
        plain = plain.resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        if plain.is_floating_point():
            plain = torch.where(plain.isnan(), torch.full_like(plain, 12345.0), plain)
        found.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


# Random models.


def layer(draw: random.Random, channels: int) -> tuple[nn.Module, int]:
    """One layer that keeps pictures pictures, and its channels."""
    kind = draw.choice(["conv"] * 4 + ["depthwise", "transposed", "norm", "act", "pool", "mix"])
    out = draw.choice([1, 2, 3, 5, 8, 12, 16, 24, 31, 32, 48, 64, 96, 127, 128, 256, 512])
    kernel = draw.choice([1, 1, 2, 3, 3, 3, 5, 7])
    stride, dilation = draw.choice([1, 1, 1, 2, 3]), draw.choice([1, 1, 1, 2])
    padding, bias = draw.choice([0, kernel // 2, kernel]), draw.random() < 0.5
    if kind == "conv":
        both = [g for g in (1, 2, 3, 4, 8, 16, 32) if channels % g == 0 and out % g == 0]
        groups = draw.choice(both)
        words = {"padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
        return nn.Conv2d(channels, out, kernel, stride, **words), out
    if kind == "depthwise":
        return nn.Conv2d(
            channels, channels, kernel, stride, padding, groups=channels, bias=bias
        ), channels
    if kind == "transposed":
        out = min(out, 64)
        return nn.ConvTranspose2d(channels, out, kernel, stride, bias=bias), out
    if kind == "norm":
        norms = [nn.BatchNorm2d(channels), nn.GroupNorm(1, channels), nn.InstanceNorm2d(channels)]
        return draw.choice(norms), channels
    if kind == "act":
        acts = [nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.ELU, nn.Softplus]
        acts += [nn.Mish, nn.LogSigmoid, nn.Softsign, nn.SELU, nn.CELU, nn.Softmax2d]
        return draw.choice(acts)(), channels
    if kind == "pool":
        return draw.choice([nn.MaxPool2d, nn.AvgPool2d])(2, 2, ceil_mode=True), channels
    return Mix(channels, draw), channels


class Mix(nn.Module):
    """Attention, or a perceptron, over places."""

    def __init__(self, channels: int, draw: random.Random) -> None:
        super().__init__()
        heads = draw.choice([h for h in (1, 2, 4, 8) if channels % h == 0])
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm, self.attends = nn.LayerNorm(channels), draw.random() < 0.5
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Mix."""
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        if self.attends:
            tokens = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return x + functional.gelu(self.linear(tokens)).transpose(1, 2).reshape(x.shape)


def model(number: int) -> tuple[nn.Module, Tensor]:
    """Random model `number`, and what goes in."""
    draw = random.Random(number)
    channels, side = draw.choice([1, 3, 3, 8, 16, 64]), draw.choice([4, 7, 8, 9, 14, 16, 28, 33])
    batch = draw.choice([1, 2, 3, 4, 7, 8, 16, 17, 32, 64])
    torch.manual_seed(number)
    x = torch.randn(batch, channels, side, side)
    layers: list[nn.Module] = []
    y = x
    for _ in range(draw.choice([1, 2, 3, 4, 5])):
        for _ in range(50):
            one, out = layer(draw, channels)
            size = 0
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                try:
                    size = max(s.numel() for s in (y, one.eval()(y[:1])))
                except (RuntimeError, ValueError):
                    continue
            places = y[0, 0].numel()
            if not size or size * batch > ELEMENTS or (isinstance(one, Mix) and places > 200):
                continue
            layers.append(one.train())
            channels = out
            with torch.no_grad():
                y = one.eval()(y)
            break
    whole = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    whole.append(nn.Dropout(draw.choice([0.0, 0.3])))
    whole.append(nn.Linear(channels, 10))
    if draw.random() < 0.25:
        whole, x = (t.to(memory_format=torch.channels_last) for t in (whole, x))
    return whole.train(), x


def models(first: int, last: int) -> Iterator[dict[str, Any]]:
    """What each gives: three updates by one of the optimizers, all tensors on the way."""
    for number in range(first, last):
        whole, x = model(number)
        adam = number % 2
        words = {"lr": 0.01, "fused": True}
        optimizer: Any = (
            torch.optim.AdamW(whole.parameters(), **words)
            if adam
            else torch.optim.SGD(whole.parameters(), momentum=0.9, nesterov=True, **words)
        )
        found = {"weights": digest(whole.state_dict().values()), "input": digest([x])}
        with convolutions.seen() as computed:
            found |= _trained(whole, x, optimizer)
        try:
            convolutions.check(computed)
        except UsageError as error:
            found = {"refused": str(error)}
        yield {"name": str(number), "found": found}


def _trained(whole: nn.Module, x: Tensor, optimizer: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    labels = torch.arange(len(x)) % 10
    try:
        for step in range(3):
            seen: list[tuple[str, Tensor]] = []
            hooks = [
                m.register_forward_hook(lambda m, _, y, seen=seen: seen.append((str(m), y)))
                for m in whole
            ]
            logits = whole(x)
            for hook in hooks:
                hook.remove()
            functional.cross_entropy(logits, labels, label_smoothing=0.1).backward()
            for place, (name, y) in enumerate(seen):
                found[f"step {step}, {place} {name[:90]}"] = digest([y])
            for name, p in reversed(list(whole.named_parameters())):
                found[f"step {step}, gradient of {name}"] = digest([p.grad])
            nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found[f"step {step}, update"] = digest(whole.state_dict().values())
    except ValueError as error:  # one value a channel
        found["fails"] = type(error).__name__
    return found


# Operations.


class Calls(TorchDispatchMode):
    """Notes digests of what goes into each operation, and of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        given = self._digest((args, kwargs, torch.get_rng_state() if drawn else None))
        out = func(*args, **kwargs)
        if given is not None and "empty" not in str(func):
            # What is changed in place comes out as well.
            came = self._digest((out, args))
            if came is not None:
                key = f"{func} {given}"
                self.found[key] = came if self.found.get(key, came) == came else "random"
        return out

    @staticmethod
    def _digest(tree: Any) -> str | None:
        try:
            with _disable_current_modes():
                every = tree_leaves(tree)
                return digest(leaf for leaf in every if not isinstance(leaf, torch.Generator))
        except (RuntimeError, NotImplementedError, TypeError):  # sparse ones and their like
            return None


def lstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.LSTM(20, 24, 2, batch_first=True, dropout=0.1), (torch.randn(5, 9, 20),)


def gru() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.GRU(20, 24, bidirectional=True), (torch.randn(5, 9, 20),)


def encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Whose evaluation takes a short cut."""
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(block, 2), (torch.randn(3, 17, 32),)


def attention() -> tuple[nn.Module, tuple[Tensor, ...]]:
    x = torch.randn(3, 19, 48)
    return nn.MultiheadAttention(48, 6, batch_first=True, dropout=0.1), (x, x, x)


def weight_norm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.utils.weight_norm(nn.Conv2d(6, 14, 3)), (torch.randn(2, 6, 9, 9),)


def normed_embedding() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Embedding(50, 24, max_norm=1.0), (torch.arange(40),)


class Drawn(nn.Module):
    """What is drawn, sorted and spread on the way."""

    def forward(self, x: Tensor) -> Tensor:
        """Mix."""
        x = x[torch.randperm(len(x))] / (x.std() + 1) + torch.randint(3, x.shape)
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True) + torch.rand_like(x)


def drawn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Drawn(), (torch.randn(33, 41, requires_grad=True),)


def quantised() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    return nn.Sequential(nn.Linear(20, 30), fake), (torch.randn(7, 20),)


class Wide(nn.Module):
    """Functions of one number over all its sizes: torch's own samples are a few dozen numbers."""

    POSITIVE = ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "lgamma", "digamma")
    ANY = ("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "atan")
    ANY += ("erf", "erfc", "sigmoid", "sinc", "i0")
    UNIT = ("asin", "acos", "atanh", "erfinv")

    def forward(self, positive: Tensor, wide: Tensor) -> Tensor:
        """All of them."""
        for name in self.POSITIVE:
            getattr(torch, name)(positive)
        for name in self.ANY:
            getattr(torch, name)(wide)
        for name in self.UNIT:
            getattr(torch, name)((wide / 4).clamp(-0.999, 0.999))
        for exponent in (-1.5, -0.5, 0.25, 0.75, 1.5, 1.7, 2.5):
            positive.clamp(1e-8, 1e8).pow(exponent)
        torch.atan2(wide, wide.flip(0))
        torch.hypot(wide, wide.flip(0))
        rows = wide[:4096].view(64, 64)
        torch.cdist(rows, rows.flip(0))
        functional.pdist(rows)
        torch.linalg.cholesky(rows @ rows.T + 99 * torch.eye(64, dtype=rows.dtype))
        return functional.normalize(rows).sum() + positive.sum() * 0


def wide() -> tuple[nn.Module, tuple[Tensor, ...]]:
    places = torch.arange(1 << 17)
    dtype = (torch.float32, torch.float64)[torch.initial_seed() % 2]
    bits = ((places * 32771 + 7) % 0x7F000000).int().view(torch.float32)
    positive = bits[(bits > 1e-30) & (bits < 1e30)].to(dtype)
    spread = (((places * 40503 >> 3) % 20011 - 10005).float() / 2500).to(dtype)
    return Wide(), (positive.requires_grad_(), spread)


EXTRAS = (wide, lstm, gru, encoder, attention, weight_norm, normed_embedding, drawn, quantised)
"""What torch's own samples do not call."""


def operations(first: int, last: int) -> Iterator[dict[str, Any]]:
    """What each operation gives that torch's own samples of its operators call, both ways."""
    # Its imports take ten seconds, and a package that only the search needs.
    from torch.testing._internal.common_methods_invocations import op_db

    types = (torch.float32, torch.float64, torch.int64)
    pairs = [(operator, dtype) for operator in op_db for dtype in types]
    for build in EXTRAS[max(0, first - len(pairs)) : max(0, last - len(pairs))]:
        calls = Calls()
        for seed in range(4):
            torch.manual_seed(seed)
            module, given = build()
            with calls:
                out = module(*given)
                leaves = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
                torch.autograd.backward(leaves, [torch.full_like(t, 0.37) for t in leaves])
                module.eval()
                with torch.no_grad():
                    module(*given)
        yield {"name": build.__name__, "found": calls.found}
    for operator, dtype in pairs[first:last]:
        calls = Calls()
        torch.manual_seed(0)
        random.seed(0)
        try:
            if operator.supports_dtype(dtype, "cpu"):
                _call(operator, dtype, calls)
        except Exception as error:  # an operator of another device, for instance
            calls.found[f"fails {operator.full_name} {dtype}"] = type(error).__name__
        yield {"name": f"{operator.full_name} {dtype}", "found": calls.found}


def _call(operator: Any, dtype: torch.dtype, calls: Calls) -> None:
    gradients = dtype.is_floating_point and operator.supports_autograd
    samples = operator.sample_inputs("cpu", dtype, requires_grad=gradients)
    for number, sample in zip(range(SAMPLES), samples, strict=False):
        torch.manual_seed(number)
        random.seed(number)
        with calls:
            out = operator(sample.input, *sample.args, **sample.kwargs)
            leaves = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
            if leaves:
                torch.autograd.backward(leaves, [torch.full_like(t, 0.37) for t in leaves])


def main() -> None:
    """Write what comes out, a line at a time: an emulator may crash."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    what, out, first, last = sys.argv[1:]
    rows = {"models": models, "operations": operations}[what](int(first), int(last))
    with Path(out).open("a") as file:
        for row in rows:
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
