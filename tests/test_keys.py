"""Keys of services from files."""

import os

import pytest

from host import keys
from host.errors import UsageError


def test_a_key_from_a_file(tmp_path) -> None:
    (tmp_path / "key").write_text("0123abcd\n")
    environ = {"WANDB_API_KEY_FILE": str(tmp_path / "key"), "HF_TOKEN_FILE": os.devnull}
    keys.load(environ)
    assert environ["WANDB_API_KEY"] == "0123abcd"
    assert "HF_TOKEN" not in environ
    environ = {"WANDB_API_KEY": "mine", "WANDB_API_KEY_FILE": str(tmp_path / "nowhere")}
    keys.load(environ)
    assert environ["WANDB_API_KEY"] == "mine"
    keys.load({"WANDB_API_KEY_FILE": ""})


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"0123 4567", "holds more than a key"), (b"k\xe9y", "it is no key"), (b"k" * 9999, "4 KiB")],
)
def test_what_is_no_key(tmp_path, text, said) -> None:
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(UsageError, match=said) as raised:
        keys.load({"HF_TOKEN_FILE": str(tmp_path / "key")})
    assert "0123 4567" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("nowhere", "No such file"), ("pipe", "no regular file"), ("", "Is a dir")):
        with pytest.raises(UsageError, match=said):
            keys.load({"HF_TOKEN_FILE": str(tmp_path / name)})
