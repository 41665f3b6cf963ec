"""A folder with one picture of each kind that a person may come with, odd and damaged ones too.

Each shows the same: left half dark, right half light, or red and blue. What becomes of a kind
stands beside it: what is to be seen left and right, why it cannot be read, or why it is left out.
"""

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

DARK, LIGHT = 40, 200
RED, BLUE = (200, 40, 40), (40, 60, 200)
SIDE = 16


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        what: in a user's words.
        make: writes it to a path.
        seen: left and right of it; None where it is not read.
        bad: why it cannot be read, or part of that.
        left_out: why it is no data.
        near: how far lossy formats may be off.
    """

    name: str
    what: str
    make: Callable[[Path], object]
    seen: tuple[object, object] | None = None
    bad: str = ""
    left_out: str = ""
    near: int = 0


def grey(left: int = DARK, right: int = LIGHT, kind: type = np.uint8) -> np.ndarray:
    """[SIDE, SIDE] of two values."""
    pixels = np.full((SIDE, SIDE), left, kind)
    pixels[:, SIDE // 2 :] = right
    return pixels


def colours(left: tuple = RED, right: tuple = BLUE) -> np.ndarray:
    """[SIDE, SIDE, C] of two colours."""
    pixels = np.empty((SIDE, SIDE, len(left)), np.uint8)
    pixels[:, : SIDE // 2], pixels[:, SIDE // 2 :] = left, right
    return pixels


def image(mode: str = "RGB") -> Image.Image:
    """The picture in a mode of Pillow's."""
    colour = Image.fromarray(colours())
    return colour if mode == "RGB" else colour.convert(mode)


def saved(picture: Image.Image, **knobs: object) -> Callable[[Path], object]:
    return lambda path: picture.save(path, **knobs)


def cut(picture: Image.Image, share: float, **knobs: object) -> Callable[[Path], object]:
    """The beginning of a file alone."""

    def make(path: Path) -> None:
        picture.save(path, **knobs)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return make


def changed(
    picture: Image.Image, change: Callable[[bytes], bytes], **knobs: object
) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        picture.save(path, **knobs)
        path.write_bytes(change(path.read_bytes()))

    return make


def raw(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def png(
    pixels: np.ndarray, bits: int, colour: int, extra: bytes = b"", rows: int | None = None
) -> bytes:
    """A PNG of values packed as they stand: of 16 bits, or of fewer than 8."""
    packed = pixels.astype(">u2").view(np.uint8) if bits == 16 else pixels.astype(np.uint8)
    packed = packed.reshape(SIDE, -1)
    if bits < 8:
        spread = np.unpackbits(packed[..., None], axis=-1)[..., 8 - bits :]
        packed = np.packbits(spread.reshape(SIDE, -1), axis=-1)
    lines = b"".join(b"\0" + row.tobytes() for row in packed[:rows])
    head = struct.pack(">IIBBBBB", SIDE, SIDE, bits, colour, 0, 0, 0)
    parts = (
        chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + parts


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def tiff(pixels: np.ndarray, order: str = "<", **tags: object) -> bytes:
    """A TIFF of one strip with these values; tags by number."""
    shape = pixels.shape
    samples = shape[2] if len(shape) > 2 else 1
    data = tags.pop("data", None) or pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    known = {
        256: shape[1], 257: shape[0], 258: [pixels.itemsize * 8] * samples, 259: 1,
        262: 2 if samples > 1 else 1, 273: 8, 277: samples, 278: shape[0], 279: len(data),
    }  # fmt: skip
    known |= {int(name[1:]): value for name, value in tags.items()}
    entries, place = [], 8 + len(data) + 2 + 12 * len(known) + 4
    rest = b""
    for tag, value in sorted(known.items()):
        values = value if isinstance(value, list) else [value]
        kind = "I" if tag in (254, 273, 279) else "H"
        body = struct.pack(f"{order}{len(values)}{kind}", *values)
        number = 4 if kind == "I" else 3
        if len(body) > 4:
            entries.append(struct.pack(f"{order}HHII", tag, number, len(values), place + len(rest)))
            rest += body
        else:
            entries.append(
                struct.pack(f"{order}HHI", tag, number, len(values)) + body.ljust(4, b"\0")
            )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(data))
    return (
        head + data + struct.pack(f"{order}H", len(entries)) + b"".join(entries) + bytes(4) + rest
    )


def turned(orientation: int, how: Image.Transpose | None) -> Callable[[Path], object]:
    """Stored so that the orientation in EXIF brings it upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = image() if how is None else image().transpose(how)
    return lambda path: picture.save(path, quality=95, subsampling=0, exif=exif)


def alpha(left: tuple, right: tuple) -> Image.Image:
    return Image.fromarray(colours(left, right), "RGBA" if len(left) == 4 else "LA")


def jpeg(**knobs: object) -> Callable[[Path], object]:
    return saved(image(), **{"format": "JPEG", "quality": 95, "subsampling": 0, **knobs})


def _noise() -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return Image.fromarray(values)


def _ends_early(data: bytes) -> bytes:
    place = data.index(b"\xff\xda") + (len(data) - data.index(b"\xff\xda")) // 2
    return data[:place] + b"\xff\xd9" + data[place:]


def _taller(data: bytes) -> bytes:
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">H", 256) + data[place + 2 :]


def _nothing(path: Path) -> None:
    path.symlink_to("nowhere.png")


SEEN, GREY = (RED, BLUE), (DARK, LIGHT)
_WIDE = grey(DARK * 257, LIGHT * 257, np.uint16)
_SIXTEEN = colours().astype(np.uint16) * 257
_TRANSPARENT = chunk(b"tRNS", struct.pack(">HHH", *BLUE))

KINDS = [
    Kind("rgb.png", "PNG", saved(image()), SEEN),
    Kind("grey16.png", "PNG, grey, 16 bits", raw(png(_WIDE, 16, 0)), GREY),
    Kind("rgb16.png", "PNG, colour, 16 bits", raw(png(_SIXTEEN, 16, 2)), SEEN),
    Kind("grey1.png", "PNG of 1 bit", raw(png(grey(0, 1), 1, 0)), (0, 255)),
    Kind("grey2.png", "PNG of 2 bits", raw(png(grey(1, 2), 2, 0)), (85, 170)),
    Kind("grey4.png", "PNG of 4 bits", raw(png(grey(3, 12), 4, 0)), (51, 204)),
    Kind("la.png", "PNG, grey with alpha", saved(alpha((40, 255), (0, 0))), (40, 255)),
    Kind("alpha.png", "PNG, a black shape in the alpha channel alone",
         saved(alpha((0, 0, 0, 255), (0, 0, 0, 0))), (0, 255)),
    Kind("half.png", "PNG, half transparent", saved(alpha((0, 0, 0, 128), (*BLUE, 255))),
         ((127, 127, 127), BLUE), near=1),
    Kind("palette.png", "PNG with a palette", saved(image().quantize(4)), SEEN),
    Kind("palette-clear.png", "PNG with a palette and transparency",
         saved(image().quantize(4), transparency=0), None),
    Kind("trns.png", "PNG, one colour transparent",
         raw(png(colours(), 8, 2, _TRANSPARENT)), (RED, (255, 255, 255))),
    Kind("trns16.png", "PNG, 16 bits, one value transparent",
         raw(png(_WIDE, 16, 0, chunk(b"tRNS", struct.pack(">H", LIGHT * 257)))), (DARK, 255)),
    Kind("animated.png", "animated PNG",
         saved(image(), save_all=True, append_images=[image().rotate(180)]), SEEN),
    Kind("empty-alpha.png", "transparent all over", saved(alpha((9, 9, 9, 0), (5, 5, 5, 0))),
         bad="transparent all over"),
    Kind("cut.png", "PNG, cut", cut(_noise(), 0.5), bad="truncated"),
    Kind("crc.png", "PNG with a damaged header",
         changed(image(), lambda d: d[:30] + bytes([d[30] ^ 1]) + d[31:]), bad="damaged"),
    Kind("rows.png", "PNG without its last rows", raw(png(grey(), 8, 0, rows=SIDE // 2)),
         bad="rows are missing"),
    Kind("bomb.png", "PNG of 20,000 × 20,000 pixels", saved(Image.new("1", (20_000, 20_000))),
         bad="than data.max_pixels"),
    Kind("grey16.tif", "TIFF, grey, 16 bits", raw(tiff(_WIDE)), GREY),
    Kind("grey16-big-endian.tif", "TIFF, grey, 16 bits, big-endian", raw(tiff(_WIDE, ">")), GREY),
    Kind("white-is-zero.tif", "TIFF, white is zero", raw(tiff(255 - grey(), t262=0)), GREY),
    Kind("white-is-zero16.tif", "TIFF, 16 bits, white is zero",
         raw(tiff(np.uint16(65535) - _WIDE, t262=0)), GREY),
    Kind("rgb16.tif", "TIFF, colour, 16 bits", raw(tiff(_SIXTEEN)), SEEN),
    Kind("cmyk.tif", "TIFF, CMYK", saved(image("CMYK")), SEEN),
    Kind("lzw.tif", "TIFF, compressed", saved(image(), compression="tiff_lzw"), SEEN),
    Kind("bilevel.tif", "TIFF of 1 bit", saved(image("1")), None),
    Kind("float.tif", "TIFF of floats", saved(Image.fromarray(grey(0, 1, np.float32))),
         bad="floats, whose black and white are not known"),
    Kind("int32.tif", "TIFF of 32-bit integers", saved(Image.fromarray(grey(0, 9, np.int32))),
         bad="32-bit or signed integers"),
    Kind("signed.tif", "TIFF of signed bytes", raw(tiff(grey(), t339=2)), bad="have a sign"),
    Kind("channels.tif", "TIFF of 5 channels", raw(tiff(np.dstack([grey()] * 5), t338=[0, 0])),
         bad="5 channels"),
    Kind("pages.tif", "TIFF of several pages",
         saved(image(), save_all=True, append_images=[image()]), bad="2 pages"),
    Kind("preview.tif", "TIFF with a preview first", raw(tiff(grey(), t254=1)), bad="preview"),
    Kind("cut.tif", "TIFF, cut", cut(_noise(), 0.5), bad=""),
    Kind("444.jpg", "JPEG", jpeg(), SEEN, near=4),
    Kind("420.jpg", "JPEG, colours at half the size", jpeg(subsampling=2), SEEN, near=8),
    Kind("progressive.jpg", "JPEG, progressive", jpeg(progressive=True), SEEN, near=4),
    Kind("grey.jpg", "JPEG, grey", saved(image("L"), quality=95), (88, 70), near=4),
    Kind("cmyk.jpg", "JPEG, CMYK", saved(image("CMYK"), quality=95), SEEN, near=12),
    Kind("upside-down.jpg", "JPEG that EXIF turns round", turned(3, Image.Transpose.ROTATE_180),
         SEEN, near=4),
    Kind("on-its-side.jpg", "JPEG that EXIF turns to the right",
         turned(6, Image.Transpose.ROTATE_90), SEEN, near=4),
    Kind("mirrored.jpg", "JPEG that EXIF mirrors", turned(2, Image.Transpose.FLIP_LEFT_RIGHT), SEEN,
         near=4),
    Kind("on-its-side.png", "PNG that EXIF turns", turned(8, Image.Transpose.ROTATE_270), SEEN),
    Kind("phone.jpg", "JPEG of several pictures (MPO)",
         jpeg(format="MPO", save_all=True, append_images=[image().rotate(180)]), SEEN, near=4),
    Kind("longer.jpg", "JPEG with bytes after its end",
         changed(image(), lambda d: d + b"\0" * 99, quality=95, subsampling=0), SEEN, near=4),
    Kind("cut.jpg", "JPEG, cut", cut(_noise(), 0.5), bad="cut or damaged"),
    Kind("no-end.jpg", "JPEG without its end", changed(_noise(), lambda d: d[:-2]), bad="cut or"),
    Kind("ends-early.jpg", "JPEG that ends in the middle", changed(_noise(), _ends_early),
         bad="cut or damaged"),
    Kind("taller.jpg", "JPEG with another height in its head", changed(_noise(), _taller),
         bad="cut or damaged"),
    Kind("garbage.jpg", "JPEG with bytes before it", changed(image(), lambda d: b"HTTP" + d),
         bad="damaged, or of a format"),
    Kind("animated.gif", "animated GIF",
         saved(image().quantize(4), save_all=True, append_images=[image().rotate(180)]), SEEN),
    Kind("lossy.webp", "WebP", saved(image(), quality=95), SEEN, near=25),
    Kind("lossless.webp", "WebP, lossless, with alpha",
         saved(alpha((*RED, 255), (*BLUE, 0)), lossless=True), (RED, (255, 255, 255))),
    Kind("cut.webp", "WebP, cut", cut(_noise(), 0.5), bad=""),
    Kind("24.bmp", "BMP", saved(image()), SEEN),
    Kind("24.tga", "TGA", saved(image()), SEEN),
    Kind("8.ppm", "PPM", saved(image()), SEEN),
    Kind("16.pgm", "PGM of 16 bits",
         raw(b"P5 16 16 65535\n" + _WIDE.astype(">u2").tobytes()), GREY),
    Kind("icon.ico", "ICO", saved(image(), sizes=[(16, 16)]), SEEN),
    Kind("lossless.jp2", "JPEG 2000", saved(image()), SEEN),
    Kind("picture.avif", "AVIF", saved(image(), quality=95), SEEN, near=12),
    Kind("picture.qoi", "QOI", saved(image()), SEEN),
    Kind("picture.pcx", "PCX", saved(image()), SEEN),
    Kind("picture.sgi", "SGI", saved(image()), SEEN),
    Kind("really-a.png", "a JPEG called .png", jpeg(), SEEN, near=4),
    Kind("no-suffix", "a picture without a suffix", saved(image(), format="PNG"), SEEN),
    Kind("UPPER.JPG", "a suffix in capitals", jpeg(), SEEN, near=4),
    Kind("ünï 🐈\n.png", "blanks, accents, an emoji and a line break in the name", saved(image()),
         SEEN),
    Kind("tiny.png", "a picture of 1 × 1", saved(image().resize((1, 1))), None),
    Kind("ribbon.png", "a picture of 1 × 5,000", saved(image().resize((1, 5000))), None),
    Kind("page.jpg", "a web page called .jpg", raw(b"<!DOCTYPE html><h1>403</h1>"),
         bad="damaged, or of a format"),
    Kind("nothing.jpg", "an empty file", raw(b""), bad="it is empty"),
    Kind("pointer.png", "a pointer of git-lfs", raw(b"version https://git-lfs.github.com/spec/v1\n"),
         bad="damaged, or of a format"),
    Kind("phone.heic", "HEIC", raw(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"), bad="HEIC is not read"),
    Kind("drawing.svg", "SVG", raw(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
         bad="damaged, or of a format"),
    Kind("array.npy", "an array of NumPy's", lambda path: np.save(path, grey()),
         bad="damaged, or of a format"),
    Kind("script.eps", "EPS", saved(image()), bad="damaged, or of a format"),
    Kind("lost.png", "a link that leads nowhere", _nothing, bad="leads nowhere"),
    Kind("pipe.jpg", "a pipe", os.mkfifo, bad="no regular file"),
    Kind("notes.txt", "notes", raw(b"ask Ada"), left_out="no picture"),
    Kind("Thumbs.db", "Windows' thumbnails", raw(b"\0"), left_out="the system's"),
    Kind(".DS_Store", "macOS' notes", raw(b"\0"), left_out="hidden"),
    Kind("._rgb.png", "macOS' other half of a file", raw(b"\0"), left_out="hidden"),
    Kind("__MACOSX", "macOS' folder in archives", os.mkdir, left_out="the system's"),
]  # fmt: skip


BAD = {k.name for k in KINDS if k.bad or k.name in ("cut.tif", "cut.webp")}
LEFT_OUT = {k.name for k in KINDS if k.left_out}


def make(root: Path) -> Path:
    """The folder: the odd ones in train/odd, and pictures of two classes beside them."""
    for split, count in (("train", 6), ("validation", 3)):
        for place, name in enumerate(("odd", "plain")):
            for number in range(count):
                path = root / split / name / f"good-{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(grey(30 * number, 255 * place)).save(path)
    for kind in KINDS:
        kind.make(root / "train" / "odd" / kind.name)
    return root
