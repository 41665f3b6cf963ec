"""`python -m train` several times in one process, with a small vision transformer among the models.

python tests/portable/trainer.py '[["fit", …], ["fit", …]]'
"""

import json
import sys

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn

from train.__main__ import main
from train.learn import models


class Transformer(nn.Module):
    """Patches of 2×2, two blocks with dropout, and the mean of what comes out."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape[0], 48, 2, 2)
        places = (shape[1] // 2) * (shape[2] // 2)
        self.places = nn.Parameter(torch.randn(1, places, 48) * 0.02)
        block = nn.TransformerEncoderLayer(
            48, 4, 96, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


models.OURS["transformer"] = Transformer

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        code = main(words)
        if code:
            sys.exit(code)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
