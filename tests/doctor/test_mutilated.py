"""Whatever a file or a program says, cut short or replaced, no check fails by an error of its own.

And what cannot be read is said to be not known.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from recorded import MACHINES, build, load

from doctor import checks
from doctor.finding import Finding
from host.machine import NO_ANSWER, Answer, Machine

_WORDS = (
    *("[N/A]", "N/A", "[Unknown Error]", "[GPU requires reset]", "", "-1", "0", "63", "Unknown"),
    *("9" * 30, "1.2.3", "²", "NaN", "1e999", "[]", "{}", "null", "\x00", "\xff\xfe", "%s", "a b"),
)


@dataclass
class Looked:
    """A machine that was looked at once."""

    machine: Machine

    def again(self) -> list[Finding]:
        """Look anew, with the answers that it has by now."""
        there = self.machine
        anew = Machine(there.root, there.environ, there.home)
        anew._answers = dict(there._answers)
        return checks.examine(anew)


def _looked(path: Path, folder: Path) -> Looked:
    machine = build(load(path), folder)
    checks.examine(machine)
    return Looked(machine)


def _mutilate(text: str, dice: random.Random) -> str:
    words = text.split()
    kind = dice.randrange(7)
    if kind == 0:
        return text[: dice.randrange(len(text) + 1)]
    if kind == 1 and words:
        return text.replace(dice.choice(words), dice.choice(_WORDS))
    if kind == 2:
        rows = text.splitlines(keepends=True)
        return "".join(row for row in rows if dice.random() < 0.5)
    if kind == 3:
        return "".join(chr(dice.randrange(256)) for _ in range(dice.randrange(200)))
    if kind == 4:
        at = dice.randrange(len(text) + 1)
        return text[:at] + dice.choice(_WORDS) + text[at:]
    if kind == 5:
        return "".join(
            dice.choice(_WORDS) if c.isdigit() and dice.random() < 0.3 else c for c in text
        )
    return dice.choice(_WORDS)


def _check(found: list[Finding], what: str) -> None:
    broken = [f for f in found if checks.BROKEN in f.seen]
    assert not broken, (what, broken)
    assert {f.status for f in found} <= {"ok", "warn", "fail", "skip"}
    assert all(f.seen for f in found), what


def _variants(looked: Looked, dice: random.Random, count: int, name: str) -> None:
    root = looked.machine.root
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    answers = sorted(looked.machine._answers)
    for _ in range(count):
        if dice.random() < 0.5 and files:
            path = dice.choice(files)
            kept = path.read_bytes()
            path.write_text(_mutilate(kept.decode("latin-1"), dice), encoding="latin-1")
            try:
                _check(
                    looked.again(),
                    f"{name}: {path.relative_to(root)}: {path.read_bytes()!r}",
                )
            finally:
                path.write_bytes(kept)
        else:
            line = dice.choice(answers)
            kept_answer = looked.machine._answers[line]
            code = dice.choice([kept_answer.code, kept_answer.code, 0, 1, 14, 15, 139, NO_ANSWER])
            out, err = (_mutilate(each, dice) for each in (kept_answer.out, kept_answer.err))
            looked.machine._answers[line] = Answer(code, out, err)
            try:
                _check(looked.again(), f"{name}: {line}: {code} {out!r} {err!r}")
            finally:
                looked.machine._answers[line] = kept_answer


@pytest.mark.parametrize("path", random.Random(0).sample(MACHINES, 12), ids=lambda path: path.stem)
def test_answers_cut_and_replaced(path: Path, tmp_path: Path) -> None:
    _variants(_looked(path, tmp_path), random.Random(path.stem), 25, path.stem)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_five_thousand_answers_cut_and_replaced(part: int, tmp_path: Path) -> None:
    for path in MACHINES[part::8]:
        looked = _looked(path, tmp_path / path.stem)
        _variants(looked, random.Random(f"{part} {path.stem}"), 14, path.stem)


@pytest.mark.parametrize(
    ("field", "value", "name", "words"),
    [
        ("driver_version", "[N/A]", "driver", "does not say"),
        ("driver_version", "[N/A]", "CUDA line", "version of the driver is not known"),
        ("compute_cap", "[N/A]", "CUDA line", "compute capability of NVIDIA A100-SXM4-80GB is not"),
        (
            "ecc.errors.uncorrected.volatile.total",
            "[N/A]",
            "GPU memory errors",
            "not known of GPU 0",
        ),
        ("ecc.errors.uncorrected.volatile.total", "[Unknown Error]", "GPU state", "Unknown Error"),
        ("temperature.gpu", "[GPU requires reset]", "GPU state", "requires reset"),
        ("temperature.gpu", "ERR!", "GPU state", "ERR!"),
    ],
)
def test_a_field_that_cannot_be_read_is_said(field, value, name, words, tmp_path) -> None:
    gpus = [[1, "a100", {field: value}], [1, "a100"]]
    machine = build({"source": "composed", "driver": "580.95.05", "gpus": gpus}, tmp_path)
    said = {f.name: f.seen for f in checks.examine(machine)}
    assert words in said[name]


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("/proc/meminfo", "MemTot", "memory"),
        ("/proc/self/limits", "Limit  Soft", "limits"),
        ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/max_link_speed", "\xff", "PCIe"),
    ],
)
def test_a_file_that_cannot_be_read_is_said(file, text, name, tmp_path) -> None:
    recorded = {
        "source": "composed",
        "driver": "580.95.05",
        "gpus": [[1, "a100"]],
        "files": {file: text},
    }
    said = {f.name: f.seen for f in checks.examine(build(recorded, tmp_path))}
    assert "not known" in said[name]
