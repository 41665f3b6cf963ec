"""A Slurm cluster on this machine: a controller and two nodes, each with a network of its own.

Needs root, iproute2, and Debian's slurmctld, slurmd, slurm-client and munge; slurmdbd and
mariadb-server as well for what `sacct` says.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodes.net import FIRST, POSSIBLE, Net, Node, network

_DAEMONS = ("slurmctld", "slurmd", "srun", "munged")
INSTALLED = POSSIBLE and all(shutil.which(name) for name in _DAEMONS)
COUNTED = INSTALLED and all(shutil.which(name) for name in ("slurmdbd", "mariadbd"))
"""Whether this machine can keep accounts of jobs."""
_HEAD = 2
_HEAD_ADDRESS = "10.77.0.3"
_CONFIG = """\
ClusterName=lockstep
SlurmctldHost=node{head}({head_address})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
ReturnToService=2
SlurmdTimeout=20
SlurmdParameters=config_overrides
{accounts}
NodeName=node0 NodeAddr={first} CPUs=2 CoresPerSocket=2 RealMemory=4000
NodeName=node1 NodeAddr=10.77.0.2 CPUs=2 CoresPerSocket=2 RealMemory=4000
PartitionName=low Nodes=node0,node1 Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE
PartitionName=high Nodes=node0,node1 PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
"""
_ACCOUNTS = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=node{head}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
"""


@dataclass
class Cluster:
    """Nodes 0 and 1, and the machine that users log in to."""

    net: Net
    folder: Path
    checkout: Path
    daemons: list[Node] = field(default_factory=list)

    def do(self, *words: object, **environ: str) -> str:
        """What a command prints on the login machine; it has to succeed."""
        place = ["ip", "netns", "exec", f"{self.net.name}-{_HEAD}"]
        done = subprocess.run(
            [*place, *map(str, words)],
            cwd=self.checkout,
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def submit(self, *words: object, **environ: str) -> str:
        """Submit a job, and return its number."""
        return self.do("sbatch", "--parsable", *words, **environ).strip()

    def shown(self, job: str, what: str) -> str:
        """What `scontrol show job` says of a job, such as JobState."""
        fields = self.do("scontrol", "show", "job", "--oneliner", job).split()
        return next(field.partition("=")[2] for field in fields if field.startswith(f"{what}="))

    def waits(self, job: str, state: str, limit: float = 600, restarts: int = 0) -> None:
        """Wait until a job has a state, and has been queued again so often."""
        self._until(
            lambda: (
                self.shown(job, "JobState") == state
                and int(self.shown(job, "Restarts")) == restarts
            ),
            limit,
            job,
        )

    def again(self, job: str) -> None:
        """Have a job that is queued again start now: Slurm would wait for two minutes."""

        def runs() -> bool:
            time.sleep(3)  # a node takes no job in the second in which it was told to end it
            with suppress(AssertionError):  # it is being cleaned up there
                self.do("scontrol", "update", f"JobId={job}", "StartTime=now")
            return self.shown(job, "JobState") != "PENDING"

        self._until(runs, 300, job)

    def said(self, job: str) -> str:
        """The file of output of a job."""
        return (self.checkout / f"slurm-{job}.out").read_text()

    def lose(self, number: int) -> None:
        """Switch a node off."""
        self._kill(number)

    def returns(self, number: int) -> None:
        """Start a node."""
        spool = self.folder / f"node{number}"
        spool.mkdir(exist_ok=True)
        self.daemon(number, "slurmd", "-D", "-N", f"node{number}")

    def daemon(self, number: int, *words: object) -> None:
        """Start a program on a machine, for as long as that is on."""
        told = {"SLURM_CONF": f"{self.folder}/slurm.conf"}
        self.daemons.append(self.net.start(number, self.folder, [*words], told, self.checkout))

    def end(self) -> None:
        """Kill all that runs."""
        for number in range(self.net.count):
            self._kill(number)
        for each in self.daemons:
            each.process.wait(20)

    def _kill(self, number: int) -> None:
        listed = ["ip", "netns", "pids", f"{self.net.name}-{number}"]
        while found := subprocess.run(listed, capture_output=True, text=True, check=True).stdout:
            for pid in found.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)

    def _until(self, holds: Callable[[], bool], limit: float, job: str) -> None:
        deadline = time.monotonic() + limit
        while not holds():
            assert time.monotonic() < deadline, (
                self.do("scontrol", "show", "job", job),
                self.said(job) if (self.checkout / f"slurm-{job}.out").exists() else "",
            )
            time.sleep(0.3)


@contextmanager
def cluster(folder: Path, checkout: Path, *, accounts: bool = False) -> Iterator[Cluster]:
    """A cluster whose jobs run in `checkout`.

    Args:
        accounts: whether it keeps accounts of jobs, in a database of its own.
    """
    with ExitStack() as stack:
        net = stack.enter_context(network(3))
        _names(net, stack)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        own = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        words = ["munged", "--force", "--foreground", f"--socket={folder}/munge.socket", *own]
        munged = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(munged.wait)
        stack.callback(munged.kill)
        (folder / "state").mkdir()
        told = {
            "head": _HEAD,
            "head_address": _HEAD_ADDRESS,
            "first": FIRST,
            "folder": folder,
            "accounts": "",
        }
        if accounts:
            told["accounts"] = (
                "AccountingStorageType=accounting_storage/slurmdbd\n"
                f"AccountingStorageHost=node{_HEAD}\n"
                f"AccountingStoragePass={folder}/munge.socket\nJobAcctGatherType=jobacct_gather/linux"
            )
        (folder / "slurm.conf").write_text(_CONFIG.format_map(told))
        # A namespace has a /sys of its own, without the cgroups that slurmd looks for.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/run\n")
        made = Cluster(net, folder, checkout)
        stack.callback(made.end)
        if accounts:
            (folder / "slurmdbd.conf").write_text(_ACCOUNTS.format_map(told))
            (folder / "slurmdbd.conf").chmod(0o600)
            _database(made)
            made.daemon(_HEAD, "slurmdbd", "-D")
            _answers(lambda: made.do("sacctmgr", "--noheader", "show", "cluster"))
        made.daemon(_HEAD, "slurmctld", "-D")
        for number in (0, 1):
            made.returns(number)
        _answers(lambda: made.do("sinfo", "--noheader", "--states=idle", "-N", "-h"), lines=4)
        yield made


def _names(net: Net, stack: ExitStack) -> None:
    """The machines know each other by name."""
    hosts = "127.0.0.1 localhost\n" + "".join(f"10.77.0.{n + 1} node{n}\n" for n in range(3))
    for number in range(net.count):
        place = Path("/etc/netns") / f"{net.name}-{number}"
        place.mkdir(parents=True)
        stack.callback(shutil.rmtree, place)
        (place / "hosts").write_text(hosts)


def _database(made: Cluster) -> None:
    data = made.folder / "database"
    words = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root"]
    subprocess.run([*words, "--skip-test-db"], check=True, capture_output=True)
    first = made.folder / "first.sql"
    first.write_text("GRANT ALL ON *.* TO 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n")
    words = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"]
    words += ["--bind-address=127.0.0.1", f"--socket={made.folder}/sql", f"--init-file={first}"]
    made.daemon(_HEAD, *words)
    ask = ["mariadb", "-h127.0.0.1", "-uslurm", "-pslurm", "-e", "select 1"]
    _answers(lambda: made.do(*ask))


def _answers(ask: Callable[[], str], lines: int = 0) -> None:
    deadline = time.monotonic() + 60
    while True:
        with suppress(AssertionError):
            if len(ask().splitlines()) >= lines:
                return
        assert time.monotonic() < deadline, ask()
        time.sleep(0.3)
