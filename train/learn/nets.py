"""Small nets of our own, by name: each for a number of classes and images of (C, H, W)."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, int, int]


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _pooled(inputs: int, outputs: int) -> list[nn.Module]:
    """Half as high and wide: batch norm after that costs a quarter."""
    convolution, *rest = _block(inputs, outputs)
    return [convolution, nn.MaxPool2d(2), *rest]


class Quarters(nn.Module):
    """The largest of each quarter, [B, C, H, W] → [B, C, 2, 2]; of odd sides quarters overlap.

    What AdaptiveMaxPool2d(2) computes, whose backward pass has no deterministic form on CUDA.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Pool."""
        sides = x.shape[2:]
        kernel = [-(-side // 2) for side in sides]
        return functional.max_pool2d(x, kernel, stride=[max(1, side // 2) for side in sides])


class Largest(nn.Module):
    """The largest of each channel, [B, C, H, W] → [B, C, 1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool."""
        return functional.max_pool2d(x, [*x.shape[2:]])


def convnet(classes: int, shape: Shape) -> nn.Module:
    """Four 3×3 convolutions with batch norm and one pooling: for pictures of 8 to 32 pixels."""
    return nn.Sequential(
        *_block(shape[0], 32),
        *_block(32, 32),
        nn.MaxPool2d(2),
        *_block(32, 64),
        *_block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def smallnet(classes: int, shape: Shape) -> nn.Module:
    """Four 3×3 convolutions, two of them pooled before batch norm: quick, for 16 to 64 pixels."""
    return nn.Sequential(
        *_pooled(shape[0], 32),
        *_block(32, 64),
        *_pooled(64, 64),
        *_block(64, 64),
        Quarters(),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


class Residual(nn.Module):
    """The input, and what a few layers make of it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        added: Tensor = x + self.layers(x)
        return added


class Scaled(nn.Linear):
    """A linear layer whose outputs are an eighth, so that a high learning rate begins gently."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply."""
        return super().forward(x) / 8


def resnet9(classes: int, shape: Shape) -> nn.Module:
    """Page's net for CIFAR-10 (2018), eight convolutions and a linear layer: for 32 pixels."""

    def pooled(inputs: int, outputs: int) -> list[nn.Module]:
        return [*_block(inputs, outputs), nn.MaxPool2d(2)]

    return nn.Sequential(
        *_block(shape[0], 64),
        *pooled(64, 128),
        Residual(*_block(128, 128), *_block(128, 128)),
        *pooled(128, 256),
        *pooled(256, 512),
        Residual(*_block(512, 512), *_block(512, 512)),
        Largest(),
        nn.Flatten(),
        Scaled(512, classes, bias=False),
    )


def dropnet(classes: int, shape: Shape) -> nn.Module:
    """AlexNet's plan at the size of digits: convolutions, then wide layers behind dropout."""
    flat = 64 * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(flat, 128),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def mlp(classes: int, shape: Shape) -> nn.Module:
    """One hidden layer on the pixels: the quickest thing that learns."""
    pixels = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(inplace=True), nn.Linear(128, classes)
    )


OURS: dict[str, Callable[[int, Shape], nn.Module]] = {
    "convnet": convnet,
    "smallnet": smallnet,
    "resnet9": resnet9,
    "dropnet": dropnet,
    "mlp": mlp,
}
