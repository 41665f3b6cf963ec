"""From a picture's bytes to its pixels: 8 bits, grey or red, green and blue, upright.

Pillow says what a picture looks like. JPEGs are decoded by simplejpeg where that gives the same
bytes in less time; what it refuses, Pillow decides.
"""

import io
import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# Others are not photographs or drawings, or are read by starting other programs (EPS).
FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PCX"),
    *("PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
)
_GREY = ("1", "L", "LA", "La")
_WIDE = ("I;16", "I;16B", "I;16L", "I;16N")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
# TIFF's tags (TIFF 6.0); EXIF has the orientation as well.
_SUBFILE, _BITS, _PHOTOMETRIC, _ORIENTATION = 254, 258, 262, 274
_SAMPLES, _EXTRA, _FORMAT = 277, 338, 339
_WHITE_IS_ZERO, _REDUCED, _UNSIGNED, _UNDEFINED = 0, 1, 1, 4
_COLOURS = {0: 1, 1: 1, 3: 1, 5: 4}  # samples of a pixel by photometric interpretation, else 3
_ALPHAS = ((), (1,), (2,))
_MARKS = (b"Exif\0\0", b"tiff:Orientation")
# What libjpeg only warns of: it fills with grey what is missing.
_CUT = ("Premature end", "premature end", "bad Huffman code")
_STRANGE = re.compile(r"(\d+) extraneous bytes")
# Share of white below which pictures of more than eight bits may hold fewer than they could.
DARK = 0.25
_FEW_BYTES = 256  # that some cameras and programs leave between the parts of a file


class BadPicture(Exception):
    """A picture that cannot be read, or not without guessing; the message says why."""


@dataclass(frozen=True)
class Reading:
    """How pictures are read.

    Attributes:
        max_pixels: that one may have.
        background: grey value, 0 to 255, that shows where a picture is transparent.
        white: value of white in pictures of more than eight bits; None: the highest that their
            format can hold.
    """

    max_pixels: int
    background: int
    white: int | None


@dataclass(frozen=True)
class Picture:
    """A decoded picture.

    Attributes:
        pixels: uint8 [H, W] of a grey picture, [H, W, 3] of one in colour.
        peak: its highest value as a share of white, where it had more than eight bits; else NaN.
    """

    pixels: Pixels
    peak: float = math.nan


def decode(encoded: bytes, reading: Reading) -> Picture:
    """What is to be seen in a picture.

    Sixteen bits are scaled to eight, what is transparent shows the background, the first frame is
    taken of several, and a rotation that the file asks for is made. Colour profiles are not.

    Raises:
        BadPicture: it is damaged, has too many pixels, or is of a kind with no range of its own.
    """
    # Before it is opened, Pillow refuses what has more than twice as many.
    Image.MAX_IMAGE_PIXELS = reading.max_pixels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is odd in files that can be read
        try:
            if encoded[:3] == b"\xff\xd8\xff":
                pixels = _jpeg(encoded, reading)
                if pixels is not None:
                    return Picture(pixels)
            with Image.open(io.BytesIO(encoded), formats=list(FORMATS)) as picture:
                _check_size(*picture.size, reading)
                return _decoded(picture, reading, deep=_is_deep(encoded, picture))
        except (BadPicture, MemoryError):
            raise
        except Image.DecompressionBombError as error:
            raise BadPicture(
                f"it has more pixels than data.max_pixels ({reading.max_pixels})"
            ) from error
        except UnidentifiedImageError as error:
            raise BadPicture(_unknown(encoded)) from error
        except Exception as error:  # whatever a decoder makes of bytes it does not understand
            raise BadPicture(str(error).strip() or type(error).__name__) from error


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """uint8 [H, W, C] of one channel or three, from [H, W], [H, W, 1] or [H, W, 3]."""
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    if channels == pixels.shape[2]:
        return pixels
    if channels == 1:
        return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
    return np.repeat(pixels, channels, axis=2)


def _check_size(width: int, height: int, reading: Reading) -> None:
    if width * height > reading.max_pixels:
        raise BadPicture(
            f"it has {width}×{height} pixels, more than data.max_pixels ({reading.max_pixels})"
        )


def _jpeg(encoded: bytes, reading: Reading) -> Pixels | None:
    """As Pillow would decode it; None where that is to decide."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(encoded, strict=True)
        _check_size(width, height, reading)
        grey, four = space == "Gray", space not in ("Gray", "YCbCr", "RGB")
        pixels: Pixels = simplejpeg.decode_jpeg(
            encoded,
            "CMYK" if four else "GRAY" if grey else "RGB",
            strict=True,
            fastdct=False,
            fastupsample=False,
        )
    except (ValueError, RuntimeError) as error:
        strange = _STRANGE.search(str(error))
        if any(words in str(error) for words in _CUT) or (
            strange and int(strange.group(1)) > _FEW_BYTES
        ):
            raise BadPicture(f"it is cut or damaged ({error})") from error
        return None
    if four or _turned(encoded):
        return None
    return pixels[..., 0] if grey else pixels


def _turned(encoded: bytes) -> bool:
    """Whether a JPEG asks for a rotation."""
    if not any(mark in encoded for mark in _MARKS):
        return False
    with Image.open(io.BytesIO(encoded), formats=["JPEG"]) as picture:
        return picture.getexif().get(_ORIENTATION, 1) not in (0, 1)


def _is_deep(encoded: bytes, picture: Image.Image) -> bool:
    """Whether a picture in colour, or with alpha, has more bits than Pillow keeps of it."""
    if picture.format == "PNG":
        return encoded[24] == 16 and picture.mode not in _WIDE
    bits = getattr(picture, "tag_v2", {}).get(_BITS, (8,))
    return len(bits) > 1 and max(bits) > 8


def _decoded(picture: Image.Image, reading: Reading, *, deep: bool) -> Picture:
    """An opened picture.

    Args:
        deep: whether it had more than eight bits, of which the upper ones are left.
    """
    if deep and reading.white is not None:
        raise BadPicture("it has 16 bits and colour or alpha, and data.white is for grey ones")
    tags: Any = getattr(picture, "tag_v2", {})  # of a TIFF
    if tags:
        _check_tiff(picture, tags)
    wide = picture.mode in _WIDE or (picture.mode == "I" and picture.format == "PPM")
    picture.load()
    picture = ImageOps.exif_transpose(picture)  # a copy without tags and format
    if wide:
        return _from_wide(picture, tags, reading)
    if picture.mode in ("I", "F"):
        kind = "floats" if picture.mode == "F" else "32-bit or signed integers"
        raise BadPicture(
            f"its pixels are {kind}, whose black and white are not known: convert it to 8 or 16"
            " bits"
        )
    grey = picture.mode in _GREY or (picture.mode == "P" and _grey_palette(picture))
    if picture.mode in _ALPHA or "transparency" in picture.info:
        under = Image.new("RGBA", picture.size, (*[reading.background] * 3, 255))
        whole = picture.convert("RGBA")
        if not np.asarray(whole)[..., 3].any():
            raise BadPicture("it is transparent all over")
        picture = Image.alpha_composite(under, whole)
        colours, seen = np.asarray(picture), np.asarray(whole)
        pixels = np.ascontiguousarray(colours[..., 0] if grey else colours[..., :3])
        return Picture(pixels, _peak(seen[..., :3][seen[..., 3] > 0]) if deep else math.nan)
    pixels = np.array(picture.convert("L" if grey else "RGB"))
    return Picture(pixels, _peak(pixels) if deep else math.nan)


def _peak(values: Pixels) -> float:
    return float(values.max()) / 255


def _check_tiff(picture: Image.Image, tags: Any) -> None:
    """Refuse what would be read as something else than it is."""
    if tags.get(_SUBFILE, 0) & _REDUCED:
        raise BadPicture("its first page is a preview of another: save the picture alone")
    samples, extra = tags.get(_SAMPLES, 1), tags.get(_EXTRA, ())
    channels = _COLOURS.get(tags.get(_PHOTOMETRIC), 3)
    if samples - channels > 1 or (samples > channels and tuple(extra) not in _ALPHAS[1:]):
        raise BadPicture(f"it has {samples} channels: save it as grey or RGB")
    if any(kind not in (_UNSIGNED, _UNDEFINED) for kind in tags.get(_FORMAT, ())) and (
        picture.mode not in ("I", "F")  # which are refused by what they are
    ):
        raise BadPicture(
            "its pixels have a sign, and black is not known: convert it to 8 or 16 bits"
        )
    size, count = picture.size, getattr(picture, "n_frames", 1)
    for page in range(1, count):
        picture.seek(page)
        smaller = picture.width < size[0] and picture.height < size[1]
        if not smaller and not picture.tag_v2.get(_SUBFILE, 0) & _REDUCED:  # type: ignore[attr-defined]
            raise BadPicture(f"it has {count} pages: save each as a picture of its own")
    if count > 1:
        picture.seek(0)


def _grey_palette(picture: Image.Image) -> bool:
    palette = np.array(picture.getpalette("RGB"), np.uint8).reshape(-1, 3)
    used = palette[np.unique(np.asarray(picture)).clip(max=len(palette) - 1)]
    return bool((used == used[:, :1]).all())


def _from_wide(picture: Image.Image, tags: Any, reading: Reading) -> Picture:
    """Of a grey picture with up to sixteen bits."""
    values = np.asarray(picture).astype(np.int64)
    clear = picture.info.get("transparency")
    transparent = values == clear if isinstance(clear, int) else np.zeros_like(values, np.bool_)
    highest = (1 << tags.get(_BITS, (16,))[0]) - 1
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        values = highest - values
    white = reading.white or highest
    pixels = ((values * 255 + white // 2) // white).clip(0, 255).astype(np.uint8)
    pixels[transparent] = reading.background
    seen = values[~transparent]
    if not len(seen):
        raise BadPicture("it is transparent all over")
    return Picture(pixels, float(seen.max()) / white)


def _unknown(encoded: bytes) -> str:
    if not encoded:
        return "it is empty"
    if encoded[4:8] == b"ftyp" and encoded[8:12] in (b"heic", b"heix", b"mif1", b"msf1", b"hevc"):
        return "HEIC is not read: convert it to JPEG or PNG"
    return "it is damaged, or of a format that is not read (JPEG, PNG, WebP, TIFF and others are)"
