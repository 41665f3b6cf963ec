"""What lies in a folder of pictures, and what of it is left out. Links are followed."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from host.errors import DataError

_SUFFIXES = {
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".ico", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg"),
    *(".jpf", ".jpg", ".jpx", ".pbm", ".pcx", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".rgb"),
    *(".sgi", ".tga", ".tif", ".tiff", ".webp"),
    # Pictures as well, though none that are read: they would be missed if they were left out.
    *(".arw", ".cr2", ".cr3", ".dcm", ".dng", ".eps", ".exr", ".heic", ".heif", ".jxl", ".mat"),
    *(".nef", ".nii", ".npy", ".npz", ".orf", ".psd", ".raf", ".rw2", ".svg", ".dds", ".icns"),
    *(".im", ".cur", ".xbm", ".xpm", ".fits", ".fit", ".pfm", ".mpo", ".jls"),
}
LISTS = (".csv", ".tsv", ".jsonl", ".ndjson")
_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*", b"BM", b"RIFF")
# What file servers, systems and archives put beside the data.
_SYSTEM = {"__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information"}
_DEEPEST = 200


@dataclass
class Walk:
    """What lies in a folder.

    Attributes:
        pictures: names of files that look like pictures, from `root`.
        left_out: what does not, and why, by name.
        bad: what should be a picture and cannot be one, and why, by name.
        linked: folders that links led to, by their place on disk.
    """

    root: Path
    pictures: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    linked: set[tuple[int, int]] = field(default_factory=set)

    def into(self, folder: str, above: tuple[tuple[int, int], ...] = ()) -> None:
        """Look through a folder, named from the root, and what lies in it."""
        here = self.root / folder
        if not above:
            above = tuple((seen.st_dev, seen.st_ino) for seen in (self.root.stat(), here.stat()))
        for entry in entries(here):
            name = str(Path(folder, entry.name))
            reason = set_aside(entry.name)
            if reason:
                self.left_out[name] = reason
                continue
            try:
                seen = entry.stat()
            except OSError:
                self.bad[name] = "a link that leads nowhere"
                continue
            place = (seen.st_dev, seen.st_ino)
            if stat.S_ISDIR(seen.st_mode):
                if entry.is_symlink() and place in self.linked:
                    self.left_out[name] = "a link to a folder that was read"
                elif place in above:
                    self.left_out[name] = "a link back to a folder that it lies in"
                elif len(above) > _DEEPEST:
                    self.bad[f"{name}/"] = "too many folders deep"
                else:
                    self.linked |= {place} if entry.is_symlink() else set()
                    self.into(name, (*above, place))
            elif not stat.S_ISREG(seen.st_mode):
                odd = self.bad if Path(name).suffix.lower() in _SUFFIXES else self.left_out
                odd[name] = "no regular file"
            elif looks_like_one(here / entry.name):
                self.pictures.append(name)
            else:
                self.left_out[name] = "no picture"


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name.

    Raises:
        DataError: it cannot be looked into.
    """
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise DataError(
            f"cannot look into {folder}: {error.strerror}", "check its owner and permissions"
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; a link in a circle is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def has_suffix(name: str) -> bool:
    """Whether a name ends as a picture's."""
    return Path(name).suffix.lower() in _SUFFIXES


def looks_like_one(path: Path) -> bool:
    """Whether a regular file is to be read as a picture: by its suffix, or how it begins."""
    if path.suffix.lower() in _SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(132)
    except OSError:
        return False
    if head[128:] == b"DICM":
        return True
    return head.startswith(_HEADS) and (head[:4] != b"RIFF" or head[8:12] == b"WEBP")


def set_aside(name: str) -> str:
    """Why a file or folder of this name is none of the data's; empty where it may be."""
    if name.startswith("."):
        return "hidden"
    return "the system's" if name in _SYSTEM or name.lower() == "thumbs.db" else ""
