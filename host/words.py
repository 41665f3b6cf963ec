"""Words for a shell, so that none of them is anything but a word: what make does with ARGS.

ARGS="--optim.lr 0.05 --name 'a b'" python3 -m host.words
"""

from __future__ import annotations

import os
import shlex
import sys

from host.errors import UsageError


def split(text: str) -> list[str]:
    """The words of a command line, quotes taken off and ~ replaced as a shell would.

    Raises:
        UsageError: a quote is open.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"ARGS={text}: {str(error).lower()}", "close the quote, or put a backslash before it"
        ) from error
    # A path of nobody stays as it is.
    return [os.path.expanduser(word) if word.startswith("~") else word for word in words]  # noqa: PTH111


def main() -> int:
    """Print the words of ARGS, each quoted."""
    try:
        print(" ".join(map(shlex.quote, split(os.environ.get("ARGS", "")))))
    except UsageError as error:
        print(error.line(), file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
