"""Memory of the host: NUMA nodes, huge pages, /dev/shm, the container's limit."""

from __future__ import annotations

import re
from pathlib import Path

from kvferry.cli.host.model import Check, Level, read_int, read_text
from kvferry.config import approximate_size

_SHM = "/dev/shm"  # noqa: S108  (only looked at)
_SMALL_SHM_BYTES = 64 << 20  # the default of container run-times; engines with several workers need more


def check_numa(root: Path) -> Check:
    """Report the NUMA nodes with their CPUs and memory."""
    nodes = []
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=_number):
        total = re.search(r"MemTotal:\s+(\d+) kB", read_text(path / "meminfo"))
        memory_bytes = int(total[1]) << 10 if total else 0
        nodes.append(
            {"node": _number(path), "cpus": read_text(path / "cpulist"), "memory_bytes": memory_bytes}
        )
    if not nodes:
        return Check("NUMA", Level.NOTE, "the kernel shows no nodes; treated as one")
    words = ", ".join(f"node {node['node']} cpus {node['cpus'] or 'none'}" for node in nodes)
    return Check(
        "NUMA", Level.OK, f"{len(nodes)} node{'s' * (len(nodes) > 1)}: {words}", "", {"nodes": nodes}
    )


def check_transparent_huge_pages(root: Path) -> Check:
    """Report transparent huge pages: copies into 4 KiB pages are slower."""
    name = "transparent huge pages"
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        return Check(name, Level.NOTE, "not built into this kernel; copies will be slower")
    details = {"enabled": chosen[1]}
    if chosen[1] == "never":
        fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        return Check(name, Level.WARNING, "never; copies between processes will be slower", fix, details)
    return Check(name, Level.OK, chosen[1], "", details)


def check_huge_pages(root: Path) -> Check:
    """Report the pools of explicit huge pages."""
    pools = []
    for path in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"), key=_number):
        total, free = read_int(path / "nr_hugepages") or 0, read_int(path / "free_hugepages") or 0
        pools.append({"page_bytes": _number(path) << 10, "total": total, "free": free})
    words = [
        f"{pool['free']} of {pool['total']} free of {approximate_size(pool['page_bytes'])}"
        for pool in pools
        if pool["total"]
    ]
    summary = ", ".join(words) or "none reserved (optional)"
    return Check("huge pages", Level.OK if words else Level.NOTE, summary, "", {"pools": pools})


def check_shared_memory(size_bytes: int | None, free_bytes: int | None, *, container: bool) -> Check:
    """Report the size of /dev/shm, which engines with several workers use; our own arenas do not."""
    details = {"size_bytes": size_bytes, "free_bytes": free_bytes}
    if size_bytes is None or free_bytes is None:
        fix = "sudo mount -t tmpfs -o size=50% tmpfs /dev/shm"
        return Check(_SHM, Level.WARNING, "not mounted; engines with several workers need it", fix, details)
    summary = f"{approximate_size(free_bytes)} free of {approximate_size(size_bytes)}"
    if size_bytes > _SMALL_SHM_BYTES:
        return Check(_SHM, Level.OK, summary, "", details)
    fix = "docker run --shm-size=8g ..." if container else "sudo mount -o remount,size=8G /dev/shm"
    return Check(_SHM, Level.WARNING, f"{summary}; too small for engines with several workers", fix, details)


def check_memory_limit(root: Path) -> Check:
    """Report the memory that the control group allows."""
    limit = read_text(root / "sys/fs/cgroup/memory.max") or read_text(
        root / "sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    if not limit.isdigit() or int(limit) >= 1 << 60:
        return Check("memory limit", Level.OK, "none set by a control group")
    return Check("memory limit", Level.NOTE, approximate_size(int(limit)), "", {"limit_bytes": int(limit)})


def _number(path: Path) -> int:
    return int(re.sub(r"\D", "", path.name))
