"""What the trainers under test share: the data, the net, the ledger, the kill, and the hash."""

import hashlib
import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

BATCH, EPOCHS, SAVE_EVERY = 8, 2, 3
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
HOME = Path(os.environ["CONFORMANCE_HOME"])  # data/, and what the trainer writes
ATTEMPT = os.environ["CONFORMANCE_ATTEMPT"]
KILL_AT = int(os.environ.get("CONFORMANCE_KILL_AT", "0"))


class Pictures(torch.utils.data.Dataset):
    """Every training picture as (64 numbers, class, number of the sample)."""

    def __init__(self) -> None:
        files = sorted((HOME / "data/train").rglob("*.png"))
        self.x = torch.stack(
            [torch.from_numpy(np.array(Image.open(f), np.float32) / 255).flatten() for f in files]
        )
        names = sorted({f.parent.name for f in files})
        self.y = torch.tensor([names.index(f.parent.name) for f in files])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[n], "labels": self.y[n], "number": torch.tensor(n)}


def net() -> nn.Module:
    """A net with batch norm and dropout, as people have them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2)
    )


def consumed(step: int, numbers: list[int]) -> None:
    """Write down the samples of this process's part of step `step`, from 1."""
    with (HOME / f"{ATTEMPT}.{RANK}.ledger").open("a") as file:
        file.write(f"{step} {' '.join(map(str, numbers))}\n")


def step_done(step: int) -> None:
    """Die where the experiment says so: after a step that is not a checkpoint's."""
    if KILL_AT and step == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def finished(model: nn.Module) -> None:
    """Write the hash of the final weights down."""
    if RANK == 0:
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        (HOME / "hash").write_text(digest.hexdigest())


def leave() -> None:
    """End here: some trainers abort now and then while they close down."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)
