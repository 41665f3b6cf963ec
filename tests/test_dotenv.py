"""`.env`: read as python-dotenv reads it, or refused. tests/container compares with Compose."""

import os
from io import StringIO

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from host import dotenv
from host.errors import UsageError

TAKEN = {
    "A=1": "1",
    "A=": "",
    "A=''": "",
    'A=""': "",
    "export A=1": "1",
    "  A=1  ": "1",
    "A=one two": "one two",
    "A=one two   # a comment": "one two",
    "A=x#y": "x#y",
    "A=http://host/x?y=1&z=2": "http://host/x?y=1&z=2",
    "A='pa$$word # \"not\" a comment'": 'pa$$word # "not" a comment',
    "A='$HOME'": "$HOME",
    'A="a b # c" # d': "a b # c",
    "A=1\r": "1",
    "A=äöü ✓": "äöü ✓",
    "A==": "=",
    "# A=2\n\nA=1\n   # B": "1",
    "A=0\nA=1": "1",
}
REFUSED = [
    "A", "A 1", "=1", "1A=2", "A-B=1", "A.B=1", "A: 1", "A=${B}", "A=$B", 'A="$B"', "A='${B}'", "A=a\\nb",
    'A="a\\nb"', 'A="one\ntwo"', "A='one\ntwo'", "A='it\\'s'", "A='a'b", 'A="a"b', "A=a'b", "A='a", 'A="a',
    "A=`id`", "A = 1", "A =1", "A= 1", "A= # nothing", "A=#1", "export A", "\ufeffA=1", "A=1\x00", "A=1\t# x", "A=1\t2", "A='1'\t# x",
]  # fmt: skip


@pytest.mark.parametrize("text", TAKEN)
def test_what_all_read_alike(tmp_path, text) -> None:
    path = tmp_path / ".env"
    path.write_bytes(text.encode())
    assert dotenv.read(path) == {"A": TAKEN[text]}
    assert dotenv_values(stream=StringIO(text)) == {"A": TAKEN[text]}


@pytest.mark.parametrize("text", REFUSED)
def test_what_they_may_not(tmp_path, text) -> None:
    path = tmp_path / ".env"
    path.write_bytes(f"B=2\n{text}\n".encode())
    with pytest.raises(UsageError, match=r"line 2 is not NAME=value") as raised:
        dotenv.read(path)
    assert text not in str(raised.value) or len(text) < 3  # it may be a secret


@given(st.text(alphabet="AB01=#'\" \t$\\{}`\n\r/:.export ", max_size=12))
def test_it_is_python_dotenv_s_or_refused(tmp_path_factory, text) -> None:
    path = tmp_path_factory.getbasetemp() / "some.env"
    path.write_bytes(text.encode())
    try:
        found = dotenv.read(path)
    except UsageError:
        return
    assert found == dotenv_values(stream=StringIO(text.replace("\r\n", "\n")), interpolate=True)


def test_what_is_there_already_stays(tmp_path) -> None:
    (tmp_path / ".env").write_text("A=1\nB=2\n")
    environ = {"A": "0"}
    dotenv.load(tmp_path / ".env", environ)
    assert environ == {"A": "0", "B": "2"}


def test_what_is_no_file(tmp_path) -> None:
    assert dotenv.read(tmp_path / "nowhere") == {}
    assert dotenv.read(tmp_path) == {}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "latin").write_bytes(b"A=\xe4\n")
    for name, said in (("pipe", "no regular"), ("zero", "no regular"), ("latin", "not UTF-8")):
        with pytest.raises(UsageError, match=said):
            dotenv.read(tmp_path / name)
