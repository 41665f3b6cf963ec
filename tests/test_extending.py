"""Each example of docs/EXTENDING.md, applied to a copy of the checkout and run."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, commands

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "EXTENDING.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
EXAMPLES = [name for name in SECTIONS if name.startswith("A")]
# What these come to is known without an index of wheels and six gigabytes.
ELSEWHERE = ("make lock CUDA=cuda13", "make train ENGINE=docker CUDA=cuda14")


def apply(section: str, where: Path) -> int:
    """Write the section's files and changes; returns how many."""
    files = re.findall(r"```(?:python|text)\n# (\S+)\n(.*?)```", section, re.DOTALL)
    for name, text in files:
        (where / name).parent.mkdir(exist_ok=True)
        (where / name).write_text(text)
    changes = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    for change in changes:
        words = ["git", "apply", "--verbose", "-"]
        done = subprocess.run(
            words, cwd=where, input=change, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return len(files) + len(changes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page(local_copy, name) -> None:
    assert apply(SECTIONS[name], local_copy) > 0
    lines = [line for line in commands(SECTIONS[name]) if line not in ELSEWHERE]
    assert lines
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=local_copy, capture_output=True, text=True, check=False
        )
        # The doctor may find something to warn of, or to mend, on a machine of CI's.
        doctor = line == "make doctor"
        assert done.returncode == 0 or doctor, f"{line}\n{done.stdout}{done.stderr}"
        assert not doctor or "large pages" in done.stdout
    if name == "A CUDA line":
        assert done.stdout.split() == ["cuda14", "cuda13", "cuda12"]


def test_the_page_has_an_example_of_each() -> None:
    assert len(EXAMPLES) == 9
