"""Which of torch's operations give the same bits on all CPUs under portable numerics.

`benchmarks/portable.py operations` has called what torch's own tests call, forward and backward,
here and on an emulated CPU of another maker; equal.py holds the names of those that came out equal.
Most of the others come from MKL's vector library, which starts from `rsqrtps` and its like, whose
last bits each maker chose.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from host.errors import UsageError
from train.numerics.equal import EQUAL

UNEQUAL = frozenset(
    [
        "sqrt",
        "atan",
        "asin",
        "acos",
        "tan",
        "_cdist_forward",
        "_euclidean_dist",
        "linalg_cholesky_ex",
        "mkldnn_rnn_layer",
        "linalg_matrix_sqrth",
    ]
)
"""Other bits on other CPUs, in FP32 or in FP64; a power of 0.5 is a square root as well."""
_NOTHING = re.compile(r"(new_)?empty\w*|as_strided_?|set_|profiler::\w+")
_HALF = {"bfloat16", "float16"}
_INSTEAD = ", such as sqrt(x) as x * x.clamp(min=1e-30).rsqrt()"
_ROOT = "pow with an exponent of 0.5"


class _Seen(TorchDispatchMode):
    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket._qualified_op_name.removeprefix("aten::")
        kwargs = kwargs or {}
        leaves = tree_leaves((args[1:], kwargs))
        numbers = [value for value in leaves if isinstance(value, float)]
        name = _ROOT if _base(name) == "pow" and 0.5 in numbers else name
        short = {str(t.dtype)[6:] for t in tree_leaves(args) if isinstance(t, Tensor)} & _HALF
        name = f"{name} in {min(short)}" if short else name
        if not self.names.get(name):
            self.names[name] = _caller()
        return func(*args, **kwargs)


def _caller() -> str:
    """The class of the innermost module that is being called; "" where none is, as in the backward
    pass.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Module):
            return type(owner).__name__
        frame = frame.f_back
    return ""


@contextmanager
def seen() -> Iterator[dict[str, str]]:
    """The names of all operations that are called in the block, their gradients' as well, and the
    class of a module that calls each, where one does.
    """
    names: dict[str, str] = {}
    with _Seen(names):
        yield names


def check(names: Mapping[str, str]) -> None:
    """See that all of them are equal on all CPUs.

    Args:
        names: as `seen` gives them.

    Raises:
        UsageError: naming the first that is not, or was not compared.
    """
    equal = {_base(name) for name in EQUAL.split()}
    for name, caller in sorted(names.items()):
        place = f" (called in {caller})" if caller else ""
        if name == _ROOT or _base(name) in UNEQUAL:
            instead = _INSTEAD if name == _ROOT or _base(name) == "sqrt" else ""
            raise UsageError(
                f"the model calls {name}, which other makers' CPUs round otherwise, and numerics:"
                f" portable is to be the same on all{place}",
                f"compute it from others{instead}, or use --numerics native",
            )
        if _base(name) not in equal and not _NOTHING.fullmatch(name):
            raise UsageError(
                f"the model calls {name}, which has not been compared on other CPUs, and numerics:"
                f" portable promises the same bits on all{place}",
                "use --numerics native; benchmarks/portable.py is what compares them",
            )


def _base(name: str) -> str:
    """What computes the same: in place, or on each tensor of a list."""
    return name.removeprefix("_foreach_").removesuffix("_")
