"""That a PNG holds all its rows: Pillow takes those that are missing for black.

Layout of a file, sizes of rows and of the passes of an interlaced one: PNG, third edition (W3C).
"""

import struct
import zlib

from train.data.decode import BadPicture

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by colour type
# First column and row of each pass, and the steps between them.
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_AT_ONCE = 1 << 14  # bytes; a thousand times as many may come of them


def check(encoded: bytes) -> None:
    """Count the bytes of a PNG's rows; anything else passes.

    Raises:
        BadPicture: there are fewer than its size asks for.
    """
    if not encoded.startswith(_SIGNATURE):
        return
    view, data, place, header = memoryview(encoded), [], len(_SIGNATURE), b""
    while place + 8 <= len(encoded):
        length, kind = struct.unpack(">I4s", encoded[place : place + 8])
        body = view[place + 8 : place + 8 + length]
        place += 12 + length
        if kind == b"IHDR":
            header = bytes(body)
        elif kind == b"IDAT":
            data.append(body)
    if len(header) < 13:  # Pillow read it: what it is, it knows
        return
    wanted, found = _expected(header), 0
    unpacked = zlib.decompressobj()
    try:
        for body in data:
            for start in range(0, len(body), _AT_ONCE):
                found += len(unpacked.decompress(body[start : start + _AT_ONCE]))
    except zlib.error as error:
        raise BadPicture(f"its data are damaged ({error})") from error
    if found < wanted:
        raise BadPicture(f"rows are missing: {found:,} of {wanted:,} bytes are there")


def _expected(header: bytes) -> int:
    """Bytes of its rows, each with the one that names its filter."""
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13])
    depth = bits * _SAMPLES.get(colour, 1)
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = ((-(-(width - x) // across), -(-(height - y) // down)) for x, y, across, down in passes)
    return sum(
        rows * (1 + (columns * depth + 7) // 8) for columns, rows in sizes if columns > 0 < rows
    )
