"""The fast decoder gives Pillow's bytes, or leaves the decision to it."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from train.data.decode import BadPicture, Reading, decode

READING = Reading(max_pixels=1 << 24, background=255, white=None)


def scene(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Something with edges, slopes and noise, as photographs have."""
    random = np.random.default_rng(width * 1000 + height)
    noise = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
    blurred = noise.filter(ImageFilter.GaussianBlur(3))
    return Image.blend(blurred, noise, 0.2).convert(mode)


def encoded(picture: Image.Image, **knobs: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", **knobs)
    return buffer.getvalue()


def with_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("L" if picture.mode == "L" else "RGB"))


@pytest.mark.parametrize("size", [(64, 48), (1, 1), (17, 31), (500, 375), (8, 200), (255, 1)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("quality", [30, 95])
def test_a_jpeg_is_as_pillow_decodes_it(size, subsampling, progressive, quality) -> None:
    knobs = {"subsampling": subsampling, "progressive": progressive, "quality": quality}
    data = encoded(scene(*size), **knobs)
    assert np.array_equal(decode(data, READING).pixels, with_pillow(data))


@pytest.mark.parametrize(
    "knobs",
    [{"optimize": True}, {"restart_marker_blocks": 4}, {"comment": b"x" * 60_000}, {"dpi": (1, 9)},
     {"icc_profile": b"no profile"}, {"keep_rgb": True}, {"qtables": "web_low"}],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_of_any_making(knobs, mode) -> None:
    data = encoded(scene(70, 50, mode), **knobs)
    assert np.array_equal(decode(data, READING).pixels, with_pillow(data))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_damaged_jpeg_is_refused_or_as_pillow_decodes_it(mode, progressive) -> None:
    """Cut anywhere, or with a bit of it flipped: never pixels that Pillow would not give."""
    whole = encoded(scene(40, 30, mode), progressive=progressive)
    random = np.random.default_rng(0)
    read = refused = 0
    for place in random.integers(4, len(whole), 150):
        flipped = whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        for data in (whole[:place], flipped):
            try:
                pixels = decode(data, READING).pixels
            except BadPicture:
                refused += 1
                continue
            read += 1
            with Image.open(io.BytesIO(data)) as picture:
                assert picture.getexif().get(274, 1) == 1
            assert np.array_equal(pixels, with_pillow(data))
    assert read > 20
    assert refused > 150


def test_a_cut_jpeg_has_no_pixels() -> None:
    whole = encoded(scene(64, 64), quality=90)
    for share in (0.5, 0.9, 0.999):
        with pytest.raises(BadPicture):
            decode(whole[: int(len(whole) * share)], READING)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_that_ends_early_is_refused_whatever_else_it_asks_for(mode, orientation) -> None:
    """Phones turn pictures, and programs that print write four colours: Pillow fills with grey."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    whole = encoded(scene(200, 150, mode), exif=exif, quality=90)
    decode(whole, READING)
    ends = whole[: 2 * len(whole) // 3] + b"\xff\xd9"
    third = len(whole) // 4
    nulls = whole[: 2 * third] + bytes(third) + whole[3 * third :]
    for data in (ends, nulls):
        with pytest.raises(BadPicture, match="cut or damaged"):
            decode(data, READING)


def test_what_a_process_decoded_before_has_no_say() -> None:
    exif = Image.Exif()
    exif[0x0112] = 1
    data = encoded(Image.new("L", (15_000, 12_500)), exif=exif)  # 187 million pixels
    Image.MAX_IMAGE_PIXELS = 89_478_485
    large = Reading(max_pixels=200_000_000, background=255, white=None)
    assert decode(data, large).pixels.shape == (12_500, 15_000)


@pytest.mark.parametrize("size", [(20, 10), (1, 3)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_rotation_is_made(size, orientation) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = scene(*size)
    data = encoded(picture, exif=exif, quality=100, subsampling=0)
    straight = with_pillow(encoded(picture, quality=100, subsampling=0))
    turn = {
        1: lambda p: p, 2: lambda p: p[:, ::-1], 3: lambda p: p[::-1, ::-1], 4: lambda p: p[::-1],
        5: lambda p: p.swapaxes(0, 1), 6: lambda p: p.swapaxes(0, 1)[:, ::-1],
        7: lambda p: p.swapaxes(0, 1)[::-1, ::-1], 8: lambda p: p.swapaxes(0, 1)[::-1],
    }[orientation]  # fmt: skip
    assert np.array_equal(decode(data, READING).pixels, turn(straight))


def test_pixels_are_counted_before_they_are_made() -> None:
    data = encoded(scene(100, 10))
    assert decode(data, Reading(1000, 255, None)).pixels.shape == (10, 100, 3)
    with pytest.raises(BadPicture, match=r"100×10 pixels, more than data.max_pixels \(999\)"):
        decode(data, Reading(999, 255, None))


@pytest.mark.parametrize(("white", "expected"), [(None, 0), (255, 255), (4095, 16), (65535, 1)])
def test_white_of_sixteen_bits(white, expected) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 2), 255, np.uint16)).save(buffer, "PNG")
    reading = Reading(100, 255, white)
    found = decode(buffer.getvalue(), reading)
    assert found.pixels[0, 0] == (1 if white is None else expected)
    assert found.peak == pytest.approx(255 / (white or 65535))
