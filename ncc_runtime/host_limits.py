"""What this process may use of the host: its processors and its memory.

A container, a batch job or `ulimit` may give less than the machine has. Control groups are those of
https://docs.kernel.org/admin-guide/cgroup-v2.html, and of version 1 where it is still in use.
"""

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """How many threads may run at a time."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, _processor_quota()))


@functools.cache
def _processor_quota() -> int:
    """Processors of the control groups, rounded up: with one and a half, two threads have work."""
    quotas = [sys.maxsize]
    for group in _control_groups("cpu"):
        version_2 = _text(group / "cpu.max").split()  # "150000 100000" or "max 100000", in us
        quota, period = version_2 or (
            _text(group / f"cpu.cfs_{part}_us") for part in ("quota", "period")
        )
        if quota.isdigit() and period.isdigit():  # version 1 says -1 where there is none
            quotas.append(-(-int(quota) // int(period)))
    return min(quotas)


def free_bytes(processes: int = 1) -> int | None:
    """Memory that it can take without swapping; None where the system does not say.

    So many processes share what the host has free; a limit of a process is its own.
    """
    lines = dict(line.split(":") for line in _text(PROC / "meminfo").splitlines())
    if "MemAvailable" not in lines:
        return None
    free = [int(lines["MemAvailable"].split()[0]) * 1024]
    for group in _control_groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, taken = _text(group / limit), _text(group / used)
            if most.isdigit() and taken.isdigit():
                statistics = dict(
                    line.split() for line in _text(group / "memory.stat").splitlines()
                )
                # the kernel gives back what files were read into before it refuses anything
                free.append(int(most) - int(taken) + int(statistics.get(cached, 0)))
    return max(0, min(min(free) // processes, _free_addresses()))


def _free_addresses() -> int:
    """Bytes that `ulimit -v` leaves."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return most - int(_text(PROC / "self/statm").split()[0]) * resource.getpagesize()


def _control_groups(controller: str) -> Iterator[Path]:
    """Folders of the groups that limit this process, from its own to the outermost one seen here.

    A container may see its own group as the outermost, whatever it is called outside.
    """
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [CGROUPS, CGROUPS / "unified"]
        elif controller in controllers.split(","):
            roots = [CGROUPS / controllers, CGROUPS / controller]
        else:
            continue
        inner = Path(path.lstrip("/"))
        yield from (root / part for root in roots for part in (inner, *inner.parents))


def _text(path: Path) -> str:
    """What a file says; nothing if it is not there."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
