"""The table as Markdown for an issue: what the machine is, what was found, and nothing private."""

from __future__ import annotations

import getpass
import platform
import re
from pathlib import Path

from doctor.finding import Finding
from host import HOME, git
from host.machine import Machine
from host.text import printable

_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
# Names that say nothing of a person, and stand in words and commands.
_COMMON = {"root", "user", "ubuntu", "debian", "docker", "admin", "vscode", "localhost", "linux"}
_SECRET = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+"), r"\1-…"),
    # A user's name and a machine's, as in ssh://ada@box.example.org:22.
    (re.compile(r"\b(ssh|tcp|http)://[^\s'\"`)]+|\w[\w.-]*@[\w.-]+"), "PLACE"),
    (re.compile(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", re.IGNORECASE), "MAC"),
    (re.compile(r"(?<![\d.])(?!127\.|0\.0)\d{1,3}(\.\d{1,3}){3}(?![\d.])"), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{1,4}(::?[0-9a-f]{1,4}){4,}\b", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"(/home|/Users)/[^/\s]+"), r"\1/USER"),
    (re.compile(r"\b(hf_|sk-|ghp_|wandb_v1_)\w+|\b[0-9a-f]{40}\b"), "SECRET"),
)


def report(machine: Machine, findings: list[Finding]) -> str:
    """Versions and findings; what is not well stands open, the rest folded away."""
    head = ["| | |", "|---|---|", *(f"| {name} | {said} |" for name, said in _what(machine))]
    unwell = [f for f in findings if f.status in ("warn", "fail")]
    others = [f for f in findings if f.status not in ("warn", "fail")]
    rows = [
        "",
        "### Not well" if unwell else "### All is well",
        "",
        *(_open(found, machine) for found in unwell),
        *([""] * bool(unwell)),
        f"<details><summary>{len(others)} other checks</summary>",
        "",
        "| | check | |",
        "|---|---|---|",
        *(f"| {f.status} | {_cell(f.name, machine)} | {_cell(f.seen, machine)} |" for f in others),
        "",
        "</details>",
    ]
    return "\n".join(["### Machine", "", *head, *rows])


def _what(machine: Machine) -> list[tuple[str, str]]:
    commit, changed = git.state()
    version = _VERSION.search((HOME / "train" / "__init__.py").read_text(encoding="utf-8"))
    lockstep = version.group(1) if version else "?"
    lockstep += f", commit {commit[:12]}" if commit else ", no git"
    lockstep += ", changed" if changed else ""
    release = machine.read("/etc/os-release") or ""
    named = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    kernel = machine.read("/proc/sys/kernel/osrelease") or platform.release()
    model = re.search(r"^model name\s*: (.*)$", machine.read("/proc/cpuinfo") or "", re.MULTILINE)
    settings = sorted(
        f"{name}={machine.environ[name]}"
        for name in ("ENGINE", "CUDA", "GPUS", "CPUS", "PRECISION", "ACCELERATE")
        if machine.environ.get(name)
    )
    rows = [
        ("Lockstep", lockstep),
        ("system", f"{named.group(1) if named else 'not known'}, Linux {kernel}"),
        ("processor", f"{model.group(1) if model else 'not known'}, {platform.machine()}"),
        ("Python of the host", platform.python_version()),
        *([("variables", " ".join(settings))] if settings else []),
    ]
    return [(name, _cell(said, machine)) for name, said in rows]


def _open(found: Finding, machine: Machine) -> str:
    why = f" {found.why}." if found.why else ""
    fix = printable(found.fix).strip()
    mark = "``" if "`" in fix else "`"
    space = " " * (mark == "``")
    said = f"- **{found.status}** {found.name}: {printable(found.seen)}.{why}"
    return _scrubbed(f"{said} Fix: {mark}{space}{fix}{space}{mark}", machine)


def _cell(text: str, machine: Machine) -> str:
    return _scrubbed(printable(text).replace("|", "\\|"), machine)


def _scrubbed(text: str, machine: Machine) -> str:
    """A text without the names of people, machines and addresses, as far as they show."""
    home = machine.environ.get("HOME") or str(Path.home())
    text = text.replace(machine.home, "CHECKOUT")
    if len(home) > 1:
        text = text.replace(home, "~")
    for name, instead in ((_user(machine), "USER"), (platform.node().split(".")[0], "HOST")):
        if name and name.lower() not in _COMMON:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    for sign, word in _SECRET:
        text = sign.sub(word, text)
    return text


def _user(machine: Machine) -> str:
    try:
        return machine.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return ""
