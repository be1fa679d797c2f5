"""What a process may use of the host, as control groups and limits say it."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ncc_runtime import host_limits

MIB = 1 << 20


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes files in place of the system's: /proc and /sys/fs/cgroup, of 8 processors."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    monkeypatch.setattr(host_limits, "PROC", proc)
    monkeypatch.setattr(host_limits, "CGROUPS", groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)

    def write(files: Mapping[str, str]) -> None:
        host_limits._processor_quota.cache_clear()
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    host_limits._processor_quota.cache_clear()


VERSION_2 = {"proc/self/cgroup": "0::/jobs/mine\n"}
VERSION_1 = {"proc/self/cgroup": "4:cpu,cpuacct:/docker/f00\n9:memory:/docker/f00\n"}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),
        ({**VERSION_2, "cgroup/jobs/mine/cpu.max": "max 100000\n"}, 8),
        ({**VERSION_2, "cgroup/jobs/mine/cpu.max": "150000 100000\n"}, 2),
        ({**VERSION_2, "cgroup/jobs/mine/cpu.max": "20000 100000\n"}, 1),
        (
            {
                **VERSION_2,
                "cgroup/jobs/mine/cpu.max": "600000 100000\n",
                "cgroup/jobs/cpu.max": "300000 100000\n",
            },
            3,
        ),
        ({**VERSION_2, "cgroup/cpu.max": "400000 100000\n"}, 4),  # as a container sees its own
        (
            {
                **VERSION_1,
                "cgroup/cpu,cpuacct/docker/f00/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu,cpuacct/docker/f00/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        (
            {
                **VERSION_1,
                "cgroup/cpu/cpu.cfs_quota_us": "500000\n",
                "cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
    ],
)
def test_processors_are_those_that_the_tightest_control_group_leaves(host, files, wanted):
    host(files)
    assert host_limits.processors() == wanted


def test_processors_are_never_more_than_this_process_may_run_on(host, monkeypatch):
    host({**VERSION_2, "cgroup/jobs/mine/cpu.max": "600000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5})
    assert host_limits.processors() == 2


MEMINFO = {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB\nHugePages_Total: 0\n"}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        (MEMINFO, 2 * MIB),
        (
            {
                **MEMINFO,
                **VERSION_2,
                "cgroup/jobs/mine/memory.max": f"{3 * MIB}\n",
                "cgroup/jobs/mine/memory.current": f"{2 * MIB + 100}\n",
                "cgroup/jobs/mine/memory.stat": "anon 7\ninactive_file 100\n",
            },
            1 * MIB,
        ),
        (
            {
                **MEMINFO,
                **VERSION_2,
                "cgroup/jobs/mine/memory.max": "max\n",
                "cgroup/jobs/mine/memory.current": f"{9 * MIB}\n",
            },
            2 * MIB,
        ),
        (
            {
                **MEMINFO,
                **VERSION_1,
                "cgroup/memory/memory.limit_in_bytes": f"{MIB}\n",
                "cgroup/memory/memory.usage_in_bytes": f"{MIB // 2}\n",
            },
            MIB // 2,
        ),
        (
            {
                **MEMINFO,
                **VERSION_1,
                "cgroup/memory/memory.limit_in_bytes": f"{MIB}\n",
                "cgroup/memory/memory.usage_in_bytes": f"{2 * MIB}\n",
            },
            0,
        ),
    ],
)
def test_free_memory_is_what_the_tightest_control_group_leaves(host, files, wanted):
    host(files)
    assert host_limits.free_bytes() == wanted


def test_free_memory_is_at_most_what_ulimit_leaves():
    code = "from ncc_runtime.host_limits import free_bytes; print(free_bytes())"
    most = 256 * MIB
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    assert 128 * MIB < int(done.stdout) < most
