"""`make report-machine`: all that was found, and nothing that names a person, a machine or a place."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from doctor import markdown
from doctor.finding import ok, warn
from host.machine import Machine


def test_what_names_somebody_is_left_out() -> None:
    machine = Machine(environ={"HOME": "/home/grace", "USER": "grace"}, home="/srv/grace/lockstep")
    said = markdown.report(
        machine,
        [
            ok("network", "eth0 10 Gbit/s at 10.1.2.3, fe80:0:0:0:1ff:fe23:4567:890a"),
            ok("GPUs", "GPU-8f1a2b3c-0000-4d5e-8f90-a1b2c3d4e5f6 | driver 580.95.05"),
            warn(
                "engine",
                "the context `far` is ssh://grace@box.example.org:22",
                "no answer from 00:1b:44:11:3a:b7",
                "docker context use default; ls `pwd`/home/grace/.docker /srv/grace/lockstep/runs",
            ),
        ],
    )
    for private in ("grace", "10.1.2.3", "fe80", "8f1a2b3c", "example.org", "00:1b"):
        assert private not in said
    for kept in ("580.95.05", "10 Gbit/s", "docker context use default", "CHECKOUT/runs", "\\|"):
        assert kept in said


@pytest.mark.slow
def test_make_prints_it_alone(tmp_path) -> None:
    environ = {**os.environ, "ENGINE": "local"}
    done = subprocess.run(
        ["make", "report-machine"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("### Machine\n\n| | |\n|---|---|\n| Lockstep | ")
    assert str(Path.home()) not in done.stdout
    assert done.stdout.count("<details>") == done.stdout.count("</details>") == 1
