"""What a PyTorch has kernels for, as it lists them, and where wheels for a GPU are."""

import pytest

from doctor import pytorch
from host.nvidia import Gpu


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_80 sm_86 sm_90", (8, 6), True),
        ("sm_80 sm_90", (8, 9), True),  # of the same generation
        ("sm_86 sm_90", (8, 0), False),  # an older one of it
        ("sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", (12, 0), False),
        ("sm_80 sm_90 compute_90", (12, 0), True),  # translated as it starts
        ("sm_80 sm_90a", (9, 0), True),
        ("sm_80 sm_90a compute_90a", (10, 0), False),  # for one kind alone
        ("sm_100f sm_120", (12, 1), True),
        ("gfx1100", (8, 6), False),
    ],
)
def test_kernels_that_run_on_a_gpu(built, capability, runs) -> None:
    assert pytorch._runs(built.split(), capability) is runs


@pytest.mark.parametrize(
    ("capabilities", "index"),
    [(["6.1"], "cu126"), (["6.1", "8.6"], "cu126"), (["8.6"], "cu128"), (["12.1"], "cu130")],
)
def test_where_wheels_for_these_gpus_are(capabilities, index) -> None:
    gpus = [Gpu({"compute_cap": each}) for each in capabilities]
    assert pytorch._index(gpus).endswith(f"/{index}")
