"""What a process used: processor time and memory, as the kernel counts them."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads that live; to the nanosecond where the kernel tells that."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            return _cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")
    return total_ns / 1e9


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_bytes(pid: int) -> int:
    """What of its memory is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    models = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "kernel": os.uname().release,
    }


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
