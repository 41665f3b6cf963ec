"""Copies of the checkout that belong to some user, and commands run there: for container tests."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CALLER = 1234  # neither root nor the image's user
KEPT = ("PATH", "BASE_IMAGE", "DOCKER_HOST")


@dataclass
class Done:
    """How a command ended, what it said on stdout, and all it said: stderr, then stdout."""

    code: int
    out: str
    said: str

    def json(self) -> dict[str, Any]:
        """The line of JSON on stdout, where Docker's own lines never are."""
        (line,) = (line for line in self.out.splitlines() if line.startswith("{"))
        content: dict[str, Any] = json.loads(line)
        return content


@dataclass
class Checkout:
    """The tracked files as they are now, in a place of their own that `uid` owns."""

    path: Path
    uid: int

    def run(self, *words: str, **environ: str) -> Done:
        # Apart: in one pipe Compose writes a line of one stream into the middle of the other's.
        with self.start(*words, stderr=subprocess.PIPE, **environ) as process:
            out, err = process.communicate()
        return Done(process.returncode, out, err + out)

    def start(
        self, *words: str, stderr: int = subprocess.STDOUT, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a command as the owner, who may use Docker; stderr goes into stdout, or apart."""
        env = {name: os.environ[name] for name in KEPT if os.environ.get(name)}
        who: dict[str, Any] = {}
        if self.uid != os.getuid():
            socket = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")[7:])
            who = {"user": self.uid, "group": self.uid, "extra_groups": [socket.stat().st_gid]}
        return subprocess.Popen(
            words, cwd=self.path, env={**env, "HOME": str(self.path.parent), **environ}, text=True,
            stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL,
            start_new_session=True, **who,
        )  # fmt: skip

    def read(self, path: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / path).read_text())
        return content

    def containers(self, *flags: str) -> list[str]:
        own = f"label=com.docker.compose.project.working_dir={self.path}"
        return docker("ps", *flags, "--quiet", "--filter", own).split()

    def remove(self) -> None:
        """Stop what still runs here."""
        for name in self.containers("--all"):
            docker("rm", "--force", name)


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {words}\n{done.stderr}"
    return done.stdout


def copy(there: Path, uid: int = CALLER) -> Checkout:
    """Copy the tracked and new files to `there`, for a user; for oneself, where one is not root."""
    uid = uid if os.getuid() == 0 else os.getuid()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, there / name)
    if uid != os.getuid():
        for path in [there.parent, there, *there.rglob("*")]:
            os.chown(path, uid, uid)
        for parent in there.parents:  # pytest's own folders are closed to others
            if "pytest" in str(parent):
                parent.chmod(parent.stat().st_mode | 0o011)
    return Checkout(there, uid)
