"""An export as a model repository of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from host.errors import HostError, UsageError, first_line

_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def check(name: str) -> None:
    """See that there is something to push to, before anything is exported.

    Raises:
        UsageError: the name is none, or there is no token.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--push {name} is no repository", "write OWNER/NAME")
    from huggingface_hub import get_token  # half a second of imports

    if not get_token():
        raise UsageError(
            f"--push {name}, and there is no HF_TOKEN",
            "put a token that may write into .env; huggingface.co/settings/tokens makes one",
        )


def push(folder: Path, files: Sequence[str], stale: Sequence[str], name: str) -> str:
    """Put files of a folder there in one commit; a repository that is new is private.

    Args:
        stale: patterns of what is of an earlier export, where it is not among the files.

    Returns:
        Where they are.

    Raises:
        HostError: the hub does not take them.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    try:
        where = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=list(files),
            delete_patterns=list(stale),
            commit_message="Export of Lockstep",
        )
    except Exception as error:  # whatever the hub and its library say
        raise HostError(
            f"the hub does not take {name}: {first_line(error)}",
            "see that HF_TOKEN may write there and that the hub can be reached; the files are in"
            f" {folder}",
        ) from error
    return str(where)
