"""What Accelerate would do by itself, by a hardware config or a variable, beside the experiment."""

import os

from host.errors import HostError


def check() -> None:
    """Refuse what Accelerate would do by itself, beside what the experiment says.

    Raises:
        HostError: a hardware config or a variable asks for it.
    """
    for engine in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        if is_set(f"ACCELERATE_USE_{engine}"):
            raise HostError(
                f"the hardware config asks for {engine}, which this trainer does not do",
                "use one of configs/accelerate",
            )
    for name, usual, instead in (
        ("GRADIENT_ACCUMULATION_STEPS", ("1",), "--lanes N cuts a batch into N parts"),
        ("GRADIENT_CLIPPING", ("none",), "--optim.clip does it"),
        ("DYNAMO_BACKEND", ("no", "none"), "--model.compile true does it"),
        ("MIXED_PRECISION", ("no", "fp16", "bf16"), "use one of no, fp16 and bf16"),
    ):
        said = os.environ.get(f"ACCELERATE_{name}", "")
        if said and said.lower() not in usual:
            raise HostError(
                f"ACCELERATE_{name} is {said}, by a hardware config or a variable, which this"
                " trainer does not do",
                f"take it away; {instead}",
            )


def is_set(name: str) -> bool:
    """Whether a switch of Accelerate's is on."""
    return os.environ.get(name, "").lower() in ("true", "1")
