"""Parts of a model that are not trained."""

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from host.errors import UsageError, nearest


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Train nothing of the modules and parameters of these names.

    Batch norm in them takes its stored averages, in training as in evaluations, and leaves them as
    they are: what was learned with them would not fit others.

    Raises:
        UsageError: there is no part of such a name.
    """
    parts = {name: module for name, module in model.named_modules() if name}
    parameters = dict(model.named_parameters())
    for name in names:
        if name in parts:
            parts[name].requires_grad_(False)
            for module in parts[name].modules():
                if isinstance(module, _NormBase) and module.track_running_stats:
                    object.__setattr__(module, "__class__", _still(type(module)))
        elif name in parameters:
            parameters[name].requires_grad_(False)
        else:
            known = [*parts, *parameters]
            raise UsageError(
                f"model.freeze: the model has no part {name}{nearest(name, known, count=3)}",
                f"name parts of it, such as {', '.join(list(parts)[:3])}",
            )


def _still(kind: type[_NormBase]) -> type[_NormBase]:
    """The same kind of module, which stays in its evaluation mode."""

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        del mode  # whatever is asked for
        return kind.train(self, False)

    return type(kind.__name__, (kind,), {"train": train})
