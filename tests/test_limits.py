"""What a cgroup leaves of a machine, in trees as the kernel shows them."""

import os
from pathlib import Path

import pytest

from host import limits, meminfo

STATUS = "Name:\tpython\nCpus_allowed_list:\t0-3,8\n"
# what stands where → CPUs, quota, memory limit
TREES = {
    "no limits, version 2": ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 5, None, None),
    "a container's, version 2": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/memory.max": "2147483648\n",
        }, 1, 1.5, 2 << 30,
    ),
    "under one CPU": ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, 0.5, None),
    "above the process, version 2": (
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": "8589934592\n",
        }, 4, 4.0, 8 << 30,
    ),
    "a container's, version 1": (
        {
            "proc/self/cgroup": "4:memory:/docker/1f\n1:cpu:/docker/1f\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
        }, 1, 1.0, 2 << 30,
    ),
    "no limits, version 1": (
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/\n1:memory:/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }, 5, None, None,
    ),
    "a limit above what there is": ({"sys/fs/cgroup/memory.max": "99999999999\n"}, 5, None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", TREES)
def test_the_tightest_limit_counts(case, tmp_path) -> None:
    files, cpus, quota, memory = TREES[case]
    given = {"proc/self/status": STATUS, "proc/meminfo": "MemTotal:       65536000 kB\n", **files}
    for name, text in given.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert limits.affinity(tmp_path) == 5
    assert (limits.cpus(tmp_path), limits.cpu_quota(tmp_path)) == (cpus, quota)
    assert limits.memory(tmp_path) == memory


def test_here_and_where_nothing_is_known(tmp_path: Path) -> None:
    assert limits.affinity() == len(os.sched_getaffinity(0))
    assert 1 <= limits.cpus() <= limits.affinity()
    total = meminfo.total()
    assert total is not None
    assert total > 1 << 30
    assert limits.cpus(tmp_path) == os.cpu_count()
    assert limits.memory(tmp_path) is limits.oom_kills(tmp_path) is None


def test_kills_and_use(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 3\n")
    (folder / "memory.current").write_text("500\n")
    (folder / "memory.stat").write_text("anon 300\ninactive_file 100\nactive_file 50\n")
    assert (limits.oom_kills(tmp_path), limits.memory_used(tmp_path)) == (3, 350)
