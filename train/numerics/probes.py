"""Sixty-odd small computations whose digests tell whether two machines compute alike.

Each takes numbers that come of integers alone, on the run's device and precision. What two
machines choose differently (vectors, blocks, a library's version, a GPU's kernels) shows in some
of them, and those are named.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Make = Callable[..., Tensor]
"""From a shape to numbers between -2 and 2, another sequence for each `salt`."""
Result = Iterator[tuple[str, Tensor]]


def fingerprint(
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    *,
    portable: bool = False,
) -> dict[str, str]:
    """Each probe's name and the digest of what it gave; what fails says how it failed.

    Args:
        autocast: a context in which matrix products take the run's precision.
        portable: whether to leave out what is known to differ, which no portable run calls.
    """
    probes = _PROBES if portable else (*_PROBES, _roots)
    found: dict[str, str] = {}

    def make(*shape: int, salt: int = 0) -> Tensor:
        places = torch.arange(math.prod(shape), dtype=torch.int64) + 7919 * salt
        return ((places * 2654435761 >> 9) % 2003 - 1001).div(512).view(shape).to(device)

    with autocast():
        for probe in probes:
            try:
                for name, tensor in probe(make):
                    found[name] = _digest(tensor)
            except RuntimeError as error:  # no deterministic form on this device, for instance
                found[probe.__name__.replace("_", " ").strip()] = f"fails: {type(error).__name__}"
    return found


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def _both(name: str, compute: Callable[..., Tensor], *given: Tensor) -> Result:
    """What comes out, and the gradients of all that went in."""
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    out = compute(*leaves)
    yield name, out
    ramp = torch.arange(out.numel(), device=out.device) % 61 - 30
    gradients = torch.autograd.grad(out, leaves, ramp.div(64).view(out.shape).to(out.dtype))
    yield f"{name} backward", torch.cat([g.float().reshape(-1) for g in gradients])


def _convolutions(make: Make) -> Result:
    images = make(8, 3, 33, 33)
    yield from _both("conv 3 to 32", functional.conv2d, images, make(32, 3, 3, 3, salt=1))

    def strided(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, stride=2, padding=1)

    yield from _both("conv 32 to 64", strided, make(8, 32, 17, 17), make(64, 32, 3, 3, salt=1))

    def padded(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, padding=1)

    few = make(4, 128, 9, 9)
    yield from _both("conv 128 to 128", padded, few, make(128, 128, 3, 3, salt=1))
    yield from _both("conv 1×1", functional.conv2d, few, make(96, 128, 1, 1, salt=2))

    def depthwise(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, padding=1, groups=32)

    yield from _both("conv depthwise", depthwise, make(4, 32, 17, 17), make(32, 1, 3, 3, salt=1))

    def grouped(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, groups=4, dilation=2)

    yield from _both("conv grouped", grouped, make(4, 32, 17, 17), make(48, 8, 3, 3, salt=1))
    narrow = make(4, 16, 9, 9)
    yield from _both(
        "conv transposed", functional.conv_transpose2d, narrow, make(16, 24, 3, 3, salt=1)
    )
    last = few.contiguous(memory_format=torch.channels_last)
    yield from _both("conv channels last", padded, last, make(128, 128, 3, 3, salt=3))


def _products(make: Make) -> Result:
    yield from _both("linear", functional.linear, make(64, 257), make(130, 257, salt=1))
    yield from _both("linear of one", functional.linear, make(1, 512), make(10, 512, salt=1))
    yield from _both("matmul", torch.matmul, make(96, 384), make(384, 200, salt=1))
    yield from _both("batched matmul", torch.bmm, make(12, 33, 40), make(12, 40, 35, salt=1))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    heads = [make(4, 3, 50, 32, salt=salt) for salt in range(3)]
    yield from _both("attention", attention, *heads)


def _norms(make: Make) -> Result:
    def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, w, b, training=True)

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.layer_norm(x, (130,), w, b)

    def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.group_norm(x, 4, w, b)

    pair = make(32, salt=1), make(32, salt=2)
    yield from _both("batch norm", batch, make(16, 32, 13, 13), *pair)
    yield from _both("layer norm", layer, make(50, 130), make(130, salt=1), make(130, salt=2))
    yield from _both("group norm", group, make(8, 32, 7, 7), *pair)
    yield "norm", torch.linalg.vector_norm(make(100_003))


def _functions(make: Make) -> Result:
    x = make(10_007)
    for function in (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.sin, torch.cos):
        yield function.__name__, function(x)
    above = x.abs() + 2**-9
    for function in (torch.log, torch.rsqrt, torch.reciprocal):
        yield function.__name__, function(above)
    yield "pow", above.pow(1.7)
    yield from _both("gelu", functional.gelu, x)
    yield from _both("silu", functional.silu, x)
    yield from _both("softmax", lambda t: t.softmax(-1), make(77, 131))

    def entropy(t: Tensor) -> Tensor:
        labels = torch.arange(len(t), device=t.device) % t.shape[1]
        return functional.cross_entropy(t, labels, label_smoothing=0.1).reshape(1)

    yield from _both("cross entropy", entropy, make(77, 131))


def _roots(make: Make) -> Result:
    """MKL's, which start from an instruction whose last bits each maker of CPUs chose."""
    yield "sqrt", (make(10_007).abs() + 2**-9).sqrt()


def _sums(make: Make) -> Result:
    x = make(100_003)
    yield "sum", x.sum()
    yield "sum of columns", make(311, 97).sum(0)
    yield "mean of planes", make(8, 16, 19, 19).mean((2, 3))
    yield "standard deviation", make(64, 301).std(1)
    yield "cumulative sum", make(50, 601).cumsum(1)


def _pooling(make: Make) -> Result:
    def average(x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, 3, 2)

    yield from _both("average pooling", average, make(4, 8, 15, 15))

    def resized(x: Tensor) -> Tensor:
        return functional.interpolate(x, size=(23, 21), mode="bilinear")

    yield "bilinear", resized(make(2, 3, 15, 17))


def _drawn(make: Make) -> Result:
    like = make(1)
    generator = torch.Generator(like.device).manual_seed(1)
    yield "randn", torch.empty(10_007, device=like.device).normal_(generator=generator)
    yield "rand", torch.empty(1_003, device=like.device).uniform_(generator=generator)
    yield "dropout", torch.empty(1_003, device=like.device).bernoulli_(0.3, generator=generator)


def _optimizers(make: Make) -> Result:
    for name, optimizer in (
        ("sgd", torch.optim.SGD([make(4_099)], lr=0.1, momentum=0.9, fused=True)),
        ("adamw", torch.optim.AdamW([make(4_099)], lr=0.01, fused=True)),
    ):
        (weights,) = optimizer.param_groups[0]["params"]
        for step in range(2):
            weights.grad = make(4_099, salt=step + 1)
            optimizer.step()
        yield name, weights


def _plain_python(_make: Make) -> Result:
    steps = [step / 97 for step in range(1, 400)]
    values = [f(step) for step in steps for f in (math.cos, math.exp, math.log, math.sqrt)]
    yield "Python's math", torch.tensor([*values, *(s**0.37 for s in steps)], dtype=torch.float64)


def _numpy(_make: Make) -> Result:
    spread = ((np.arange(4_099) * 2654435761 >> 9) % 2003 - 1001) / 512
    single = spread.astype(np.float32)
    functions = [np.exp, np.sin, np.tanh, np.arctan]
    values = [f(x) for x in (spread, single) for f in functions]
    yield "NumPy's functions", torch.from_numpy(np.concatenate(values))
    square = spread[:4_096].reshape(64, 64)
    products = [square @ square.T, np.linalg.qr(square)[0]]
    yield "NumPy's products", torch.from_numpy(np.concatenate(products))


_PROBES = (
    _convolutions,
    _products,
    _norms,
    _functions,
    _sums,
    _pooling,
    _drawn,
    _optimizers,
    _plain_python,
    _numpy,
)
