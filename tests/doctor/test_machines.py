"""Each recorded machine gives the findings it should, and no false alarm."""

import re
from pathlib import Path

import pytest
from recorded import HERE, MACHINES, build, load

from doctor import checks, finding, markdown
from host import git, selection, visible

_PRIVATE = re.compile(
    r"\bada\b|GPU-[0-9a-f]{8}|/home/(?!USER)|(?<![\d.])(?!127\.)\d{1,3}(\.\d{1,3}){3}(?![\d.])"
)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_machine_gives_just_these_findings(path: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(git.VARIABLE, "3f5a9c0d1e2b")  # or git is asked for each of the machines
    recorded = load(path)
    machine = build(recorded, tmp_path, told=True)
    found = checks.examine(machine)
    said = {f.name: (f.status, f"{f.seen} {f.why} {f.fix}") for f in found}
    unwell = {name: pair for name, pair in said.items() if pair[0] not in ("ok", "skip")}
    expected = recorded["expect"]
    assert {name: status for name, (status, _) in unwell.items()} == {
        name: status for name, (status, _) in expected.items()
    }, finding.table(found, colour=False)
    for name, (_, words) in expected.items():
        assert words in said[name][1]
    for name, words in recorded.get("seen", {}).items():
        assert said[name][0] == "ok"
        assert words in said[name][1]
    for f in found:
        assert bool(f.fix) == bool(f.why) == (f.status in ("warn", "fail")), f
    machine.environ = {**machine.environ, "USER": "ada", "HOME": "/home/ada"}
    told = markdown.report(machine, found)
    assert _PRIVATE.search(told) is None, told
    assert len(re.findall(r"^- \*\*(?:warn|fail)\*\* ", told, re.MULTILINE)) == len(unwell)
    table = [row for row in told.splitlines() if re.match(r"\| (ok|skip) \|", row)]
    assert len(table) == len(found) - len(unwell)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in table} <= {4}


def test_gpus_free_leaves_out_one_that_another_process_has_alone(tmp_path: Path) -> None:
    """Which it does not see in the driver's list of programs."""
    recorded = load(HERE / "machines/field-dgx1-v100-memory-left-by-a-dead-job.yaml")
    machine = build(recorded, tmp_path)
    first, *others = (gpu.uuid for gpu in visible.seen(machine))
    chosen = selection.resolve({**machine.environ, "GPUS": "free"}, machine)
    assert first not in chosen["CUDA_VISIBLE_DEVICES"]
    assert chosen["CUDA_VISIBLE_DEVICES"].split(",") == others
