"""Operations on batches of images, uint8 [B, C, H, W], each with a strength of its own.

Images have one channel or three. What torchvision's operators of the same names compute on bytes,
in integers alone: any CPU and any GPU gives the same pixels. Strengths are fixed-point numbers,
int64 [B], `ONE` meaning 1. Where torchvision rounds a product of floats, a pixel may differ by one;
where it rounds a coordinate that lies between two pixels, it may take the other one.
"""

import torch
from torch import Tensor

BITS = 16
ONE = 1 << BITS
# ITU-R BT.601's weights of red, green and blue.
_LUMA = (19595, 38470, 7471)
_WHITE = 255


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Darker below 1, black at 0."""
    return _blend(images, torch.zeros_like(images[:, :1]), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Paler below 1, grey at 0."""
    return images if images.shape[1] == 1 else _blend(images, grey(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Closer to the image's mean grey below 1."""
    total = grey(images).flatten(1).sum(1, dtype=torch.int64)
    mean = (total << BITS) // images[0, 0].numel()
    rest = (ONE - factor) * mean >> BITS
    return _bytes((images * _each(factor, torch.int32) + _each(rest, torch.int32)) >> BITS)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blurred below 1, sharper above it; the outermost pixels stay."""
    wide = images.to(torch.int32)
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
    blurred = images.clone()
    blurred[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26  # a thirteenth, rounded
    return _blend(images, blurred, factor)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turned around the colour circle, by a share of it from -½ to ½."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.to(torch.int64).unbind(1)
    high, low = images.amax(1).long(), images.amin(1).long()
    span = high - low
    # Where on the circle, in sixths from red.
    parts = [(green - blue, 0), (blue - red, 2), (red - green, 4)]
    places = [(part << BITS) // span.clamp(min=1) + (n << BITS) for part, n in parts]
    place = torch.where(high == red, places[0], torch.where(high == green, places[1], places[2]))
    place = (place + 6 * turn[:, None, None]) % (6 << BITS)
    sixth, within = place >> BITS, place & (ONE - 1)
    falling = high - ((span * within + ONE // 2) >> BITS)
    rising = low + ((span * within + ONE // 2) >> BITS)
    # What each channel is in each sixth.
    circle = torch.stack([high, falling, low, low, rising, high], 1)
    channels = [(sixth + 6 - 2 * n) % 6 for n in range(3)]
    return torch.cat([circle.gather(1, c[:, None]) for c in channels], 1).to(torch.uint8)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` of each byte, int64 [B] from 0 to 8."""
    return images & _each(_WHITE & ~((1 << (8 - bits)) - 1), torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels that are not below `threshold`, int64 [B] from 0 to 256."""
    return torch.where(images.to(torch.int16) >= _each(threshold, torch.int16), ~images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the whole range; one of a single value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = (high - low).to(torch.int32)
    stretched = (images - low).to(torch.int32) * _WHITE // span.clamp(min=1)
    return torch.where(span > 0, stretched.to(torch.uint8), images)


def equalize(images: Tensor) -> Tensor:
    """Spread each channel's values so that all are as frequent as can be."""
    planes = images.flatten(2).flatten(0, 1).long()
    offsets = 256 * torch.arange(len(planes), device=images.device)[:, None]
    counts = torch.bincount((planes + offsets).flatten(), minlength=256 * len(planes))
    counts = counts.view(-1, 256)
    places = torch.arange(256, device=images.device)
    brightest = (places * (counts > 0)).amax(1, keepdim=True)
    step = (planes.shape[1] - counts.gather(1, brightest)) // _WHITE
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=_WHITE)
    table = torch.where(step > 0, table, places)
    return table.gather(1, planes).to(torch.uint8).view_as(images)


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel from where the matrix leads, the nearest one there; black outside.

    Args:
        matrix: int64 [B, 6] in fixed-point numbers: a pixel whose middle lies at (x, y) is taken
            from (ax + by + c, dx + ey + f), in pixels from the upper left corner.
    """
    batch, channels, height, width = images.shape
    # Middles are halves: counted in halves, all is whole.
    x = 2 * torch.arange(width, device=images.device) + 1
    y = 2 * torch.arange(height, device=images.device)[:, None] + 1
    a, b, c, d, e, f = (column[:, None, None] for column in matrix.unbind(1))
    column, row = (
        (a * x + b * y + 2 * c) >> (BITS + 1),
        (d * x + e * y + 2 * f) >> (BITS + 1),
    )
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = (row * width + column).mul_(inside).view(batch, 1, -1).expand(-1, channels, -1)
    taken = images.flatten(2).gather(2, place).view_as(images)
    return taken * inside[:, None]


def grey(images: Tensor) -> Tensor:
    """Luminance, uint8 [B, 1, H, W]."""
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, n : n + 1].to(torch.int32) * _LUMA[n] for n in range(3))
    return ((red + green + blue) >> BITS).to(torch.uint8)


def _blend(images: Tensor, others: Tensor, factor: Tensor) -> Tensor:
    """`others` at 0, `images` at 1, and further in the same direction above."""
    weight = _each(factor, torch.int32)
    return _bytes((images * weight + others * (ONE - weight)) >> BITS)


def _bytes(values: Tensor) -> Tensor:
    return values.clamp_(0, _WHITE).to(torch.uint8)


def _each(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A number for each image, to be used with all its pixels."""
    return values.to(dtype)[:, None, None, None]
