"""A cloud's metadata service, spoken as the three speak it, and a training that it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import DIGITS, ROOT

from host import spot
from host.machine import Machine

AZURE = "7783-7084-3265-9085-8269-3286-77"


@contextmanager
def service(answers: dict[str, tuple[int, str]], header: tuple[str, str]) -> Iterator[str]:
    """Answers at paths; a request without the header is refused, as all three do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = answers.get(self.path, (404, "not found"))
            if self.headers.get(header[0]) != header[1]:
                code, text = 401, "unauthorised"
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            good = self.path == "/latest/api/token" and lives is not None and int(lives) <= 21600
            self.send_response(200 if good else 400)
            self.end_headers()
            self.wfile.write(answers["token"][1].encode() if good else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, "AWS"),
        ({"sys_vendor": "Google\n", "product_name": "Google Compute Engine\n"}, "Google"),
        ({"sys_vendor": "Google\n", "product_name": "Eve\n"}, None),
        ({"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": f"{AZURE}\n"}, "Azure"),
        ({"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": "None\n"}, None),
        ({"sys_vendor": "Dell Inc.\n"}, None),
        ({}, None),
    ],
)
def test_whose_machine_it_is(tmp_path, files, name) -> None:
    for file, text in files.items():
        path = tmp_path / "sys/class/dmi/id" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert spot.provider(Machine(tmp_path)) == name


def test_aws_tells_by_a_token_that_grows_old() -> None:
    place = "/latest/meta-data/spot/instance-action"
    answers = {"token": (200, "one")}
    with service(answers, ("X-aws-ec2-metadata-token", "one")) as base:
        notices = spot.Notices("AWS", base)
        assert notices.look() is None  # 404: nothing is announced
        notices._token = "old"
        assert notices.look() is None
        answers[place] = (200, '{"action": "terminate", "time": "2026-11-24T08:22:00Z"}')
        assert notices.look() == "terminate at 2026-11-24T08:22:00Z"
        answers[place] = (500, "sorry")
        with pytest.raises(OSError, match="500"):
            notices.look()
        answers[place] = (200, "<html>")
        with pytest.raises(OSError, match="nobody knows"):
            notices.look()


def test_google_says_true() -> None:
    place = "/computeMetadata/v1/instance/preempted"
    answers = {place: (200, "FALSE")}
    with service(answers, ("Metadata-Flavor", "Google")) as base:
        notices = spot.Notices("Google", base)
        assert notices.look() is None
        answers[place] = (200, "TRUE")
        assert notices.look() == "preempted, in 30 s"


def test_azure_tells_of_other_machines_too() -> None:
    events = "/metadata/scheduledevents?api-version=2020-07-01"
    name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

    def event(kind: str, *resources: str) -> dict[str, object]:
        when = "Tue, 24 Nov 2026 18:29:47 GMT"
        return {"EventType": kind, "Resources": resources, "NotBefore": when}

    def said(*every: object) -> tuple[int, str]:
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": every})

    answers = {name: (200, "train_3"), events: said()}
    with service(answers, ("Metadata", "true")) as base:
        notices = spot.Notices("Azure", base)
        assert notices.look() is None
        answers[events] = said(event("Preempt", "train_4"), event("Freeze", "train_3"))
        assert notices.look() is None
        answers[events] = said(event("Preempt", "train_4"), event("Preempt", "train_2", "train_3"))
        assert notices.look() == "Preempt, Tue, 24 Nov 2026 18:29:47 GMT"


SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b"TRUE" if Path(sys.argv[1]).exists() else b"FALSE")
    def log_message(self, *_): pass
HTTPServer(("169.254.169.254", 80), Handler).serve_forever()
"""
# A machine of Google's, as far as anybody looks: its vendor, and the address of the service.
PLACE = """
ip link set lo up && ip addr add 169.254.169.254/32 dev lo &&
mount -t tmpfs none /sys/class && mkdir -p /sys/class/dmi/id &&
echo Google >/sys/class/dmi/id/sys_vendor &&
echo Google Compute Engine >/sys/class/dmi/id/product_name || exit 9
python=$1 server=$2 taken=$3; shift 3
"$python" "$server" "$taken" & exec "$python" -m train.launch "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_a_training_saves_before_its_machine_is_taken_away(tmp_path) -> None:
    run, taken, server = tmp_path / "run", tmp_path / "taken", tmp_path / "server.py"
    server.write_text(SERVER)
    words = ["fit", *DIGITS, "--epochs", "1000", "--log.report", "false", "--run", str(run)]
    line = ["unshare", "--net", "--mount", "sh", "-c", PLACE]
    with subprocess.Popen(
        [*line, "sh", sys.executable, str(server), str(taken), *words],
        cwd=ROOT, env={**os.environ, "CPUS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while not list(Path(run).glob("checkpoints/step-*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            taken.touch()
            process.wait(60)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the server too
        said = process.stdout.read() if process.stdout else ""
    assert process.returncode == 75, said
    assert "Google takes this machine away (preempted, in 30 s): saving" in said
    assert "stopped: a signal came; step " in said
