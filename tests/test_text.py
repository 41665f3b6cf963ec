"""What is printed does nothing to a terminal, and is printed on any."""

import json
import os
import subprocess
import sys

import pytest
from conftest import DIGITS, ROOT, one_line
from hypothesis import given
from hypothesis import strategies as st

from doctor import finding
from host.errors import UsageError
from host.text import printable, without_passwords
from train.record import documents

RED, TITLE, CURSOR = "\x1b[31m", "\x1b]0;mine\x07", "\x9b2J"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain → text", "plain → text"),
        ("日本語 ä 🙂", "日本語 ä 🙂"),
        (f"{RED}red", "\\x1b[31mred"),
        (f"{TITLE}", "\\x1b]0;mine\\x07"),
        (CURSOR, "\\x9b2J"),
        ("a\rb\x00\x7f", "a\\rb\\x00\\x7f"),
        ("two\nlines", "two\nlines"),
        ("turned \u202e round", "turned \\u202e round"),
        ("not UTF-8: \udcff", "not UTF-8: \\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@host:1/x", "redis://…@host:1/x"),
        ("at 'https://u:p@h/x?sig=1&y=2', or", "at 'https://…@h/x?…', or"),
        ("https:/u:p@h/x", "https:/…@h/x"),
        ("https://host/x", "https://host/x"),
        ("me@host and a? b", "me@host and a? b"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_an_address_is_shown_without_its_secrets(text, shown) -> None:
    assert printable(text) == shown == printable(shown)


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        ('[auth]\n  username = "ada"\n  password = "hunter2"', 'password = "…"', "hunter2"),
        ('{"auth": "YWRhOmh1bnRlcjI=", "dns": ["1.1.1.1"]}', '"dns": ["1.1.1.1"]', "YWRhOmh"),
        ("python3 train.py --wandb-key s3cr3t --lr 0.1", "--wandb-key … --lr 0.1", "s3cr3t"),
        ("HF_TOKEN=hf_abcdef python", "HF_TOKEN=… python", "hf_abc"),
        ("Key was rejected by service", "Key was rejected by service", "…"),
    ],
)
def test_a_password_is_not_kept(text, kept, gone) -> None:
    told = without_passwords(text)
    assert kept in told
    assert gone not in told


def test_an_error_is_one_line_of_text() -> None:
    line = one_line(UsageError(f"{RED}a\nb", f"c{TITLE}").line())
    assert line == "error: \\x1b[31ma b → c\\x1b]0;mine\\x07"


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [RED, TITLE, CURSOR, "\u202e", "\r"])
def test_names_of_files_are_text(tmp_path, cli, hostile) -> None:
    name = f"a{hostile}b"
    done = cli("fit", "--config", tmp_path / f"{name}.yaml")
    assert done.code == 2
    assert hostile not in one_line(done.err)
    done = cli("fit", *DIGITS, "--max_steps", 2, "--run", tmp_path / name)
    assert done.code == 0
    assert hostile not in (done.out + done.err).replace("\r\n", "\n")
    assert (tmp_path / name / "result.json").exists()
    done = cli("fit", *DIGITS, f"--{name}", 1)
    assert hostile not in one_line(done.err)
    (tmp_path / name / "run.json").write_text("{")
    assert hostile not in one_line(cli("reproduce", tmp_path / name).err)


def test_what_the_doctor_found_is_text() -> None:
    rows = [finding.warn("disk", f"{RED}seen", f"why{TITLE}", f"fix {CURSOR}")]
    for text in (finding.table(rows, False), finding.lines(rows)):
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "train", "--help"], ["-m", "doctor"]])
def test_a_terminal_that_knows_ascii_alone(words) -> None:
    environ = os.environ | {"PYTHONIOENCODING": "ascii", "ENGINE": "local"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, check=False
    )
    assert done.returncode in (0, 6), done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout.isascii()


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(_VALUES)
def test_documents_are_json_with_a_line_for_each_list(value) -> None:
    written = documents.text(value)
    assert json.loads(written) == value


def test_a_matrix_has_a_line_for_each_row() -> None:
    said = documents.text({"a": [[1, 2], [3, 4]], "b": {"c": ["x", "y"]}, "d": {}, "e": []})
    assert said.splitlines() == [
        "{", ' "a": [', "  [1, 2],", "  [3, 4]", " ],", ' "b": {', '  "c": ["x", "y"]', " },",
        ' "d": {},', ' "e": []', "}",
    ]  # fmt: skip
