"""Whether a port of this machine is free.

    python3 -m host.port 6006

prints nothing, or one line of why not.
"""

from __future__ import annotations

import re
import socket
import sys

from host.errors import HostError, LockstepError, UsageError

_PORTS = 65535


def is_one(text: str) -> bool:
    """Whether a text is a port's number."""
    return re.fullmatch("[1-9][0-9]{0,4}", text) is not None and int(text) <= _PORTS


def check(text: str) -> None:
    """See that TensorBoard can have a port.

    Raises:
        UsageError: it is none.
        HostError: another program has it.
    """
    if not is_one(text):
        raise UsageError(f"TENSORBOARD_PORT={text} is no port", "say a number such as 6007")
    port = int(text)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise HostError(
                f"port {port} is taken: {error.strerror}", "say another: TENSORBOARD_PORT=6007"
            ) from error


def main(text: str) -> int:
    """Check a port."""
    try:
        check(text)
    except LockstepError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
