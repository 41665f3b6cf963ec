"""What a file system says of a file, which is other once the file was written."""

from pathlib import Path


def about(path: Path) -> bytes:
    """Size, times and place on disk; or what keeps it from being looked at."""
    try:
        seen = path.stat()
    except OSError as error:  # it is told when it is read
        return f"{error.errno} ".encode()
    said = (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev)
    return f"{said} ".encode()
