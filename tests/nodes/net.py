"""Machines of a network, on this one: network namespaces with host names and cables of their own.

Needs root and iproute2. The switch stands in a namespace of its own, where no firewall of the
machine's (Docker's, say) looks at what passes.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from conftest import ROOT

POSSIBLE = os.geteuid() == 0 and shutil.which("ip") is not None
FIRST = "10.77.0.1"


def _do(*words: object) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (words, done.stderr)


@dataclass
class Node:
    """A command on one of the machines, with all that it started."""

    process: subprocess.Popen[bytes]
    log: Path
    ended: float | None = None

    def code(self, limit: float) -> int | None:
        """Its exit code; None where it stays longer than `limit` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
            self.ended = self.ended or time.monotonic()
        return self.process.poll()

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")

    def error(self) -> str:
        """Its last line of error; empty where there is none."""
        lines = [line for line in self.said().splitlines() if line.startswith(("error", "stopped"))]
        return lines[-1] if lines else ""

    def all(self) -> list[psutil.Process]:
        """Its processes, parents first."""
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def part(self, words: str) -> list[psutil.Process]:
        """Those of its processes that run `words`."""
        found = []
        for process in self.all():
            with suppress(psutil.Error):
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def signal(self, number: int) -> None:
        """Send it to every process: what happens to a machine happens to all of them."""
        for process in reversed(self.all()):
            with suppress(psutil.Error):
                process.send_signal(number)


@dataclass
class Net:
    """Some machines on a switch; number n has the address 10.77.0.(n + 1)."""

    name: str
    count: int
    nodes: dict[int, Node] = field(default_factory=dict)

    def start(
        self,
        number: int,
        folder: Path,
        words: list[object],
        environ: Mapping[str, str],
        cwd: Path = ROOT,
        disk: Path | None = None,
    ) -> Node:
        """Run a command on a machine; `environ` goes over this process's.

        Args:
            disk: a folder that is the machine's own; the others have others there.
        """
        log = folder / f"node{number}.log"
        place = ["ip", "netns", "exec", f"{self.name}-{number}", "unshare", "--uts", "--mount"]
        script = f"hostname node{number}; "
        if disk is not None:
            own = folder / f"disk{number}"
            own.mkdir(exist_ok=True)
            script += f"mount --bind {own} {disk} && "
        line = [*place, "sh", "-c", f'{script}exec "$@"', "sh", *map(str, words)]
        with log.open("ab") as out:
            process = subprocess.Popen(
                line,
                cwd=cwd,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.nodes[number] = Node(process, log)
        return self.nodes[number]

    def plug(self, number: int, *, into: bool) -> None:
        """Pull a machine's cable at the switch, or plug it in again."""
        how = "up" if into else "down"
        _do("ip", "-n", f"{self.name}-s", "link", "set", f"port{number}", how)

    def deaf(self, number: int, on: bool) -> None:
        """While it lasts nothing reaches a machine, though what it sends arrives."""
        self.rules(number, f"{'-A' if on else '-D'} INPUT -i eth0 -j DROP")

    def rules(self, number: int, *rules: str) -> None:
        """Rules of iptables for a machine's firewall."""
        for rule in rules:
            _do("ip", "netns", "exec", f"{self.name}-{number}", "iptables", *rule.split())

    def slow(self, number: int, rate: str) -> None:
        """Limit what a machine sends, as in 1gbit."""
        shape = f"tbf rate {rate} burst 256kb latency 50ms"
        _do(
            "ip",
            "netns",
            "exec",
            f"{self.name}-{number}",
            "tc",
            "qdisc",
            "add",
            "dev",
            "eth0",
            "root",
            *shape.split(),
        )

    def end(self) -> None:
        """Make sure that nothing is left of the commands."""
        for node in self.nodes.values():
            for process in node.all():
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            node.process.wait(10)
        self.nodes.clear()


@contextmanager
def network(count: int, delay: float = 0.0) -> Iterator[Net]:
    """So many machines for as long as the block lasts.

    Args:
        delay: seconds that each frame stays on its way to another machine.
    """
    net = Net(f"lockstep{os.getpid()}", count)
    names = [f"{net.name}-{number}" for number in range(count)]
    with ExitStack() as stack:
        for name in names:
            _do("ip", "netns", "add", name)
            stack.callback(_delete, name)
        stack.callback(net.end)
        stack.enter_context(_relayed(net, delay) if delay else _switched(net))
        for number, name in enumerate(names):
            _do("ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", name, "link", "set", device, "up")
        yield net


@contextmanager
def _switched(net: Net) -> Iterator[None]:
    """Cables to a switch of the kernel's."""
    switch = f"{net.name}-s"
    _do("ip", "netns", "add", switch)
    try:
        _do("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "switch", "up")
        for number in range(net.count):
            port, own = f"port{number}", f"{net.name}-{number}"
            pair = ("type", "veth", "peer", "name", "eth0", "netns", own)
            _do("ip", "-n", switch, "link", "add", port, *pair)
            _do("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
        yield
    finally:
        _delete(switch)


@contextmanager
def _relayed(net: Net, delay: float) -> Iterator[None]:
    """Cables to a switch that takes its time."""
    words = [sys.executable, Path(__file__).with_name("relay.py"), net.name, net.count, delay]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
