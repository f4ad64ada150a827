"""Kernel permissions and limits: ptrace scope, seccomp, io_uring, locked memory, open files."""

from __future__ import annotations

import re
from pathlib import Path

from kvferry.cli.host.model import Check, Level, read_int, read_text
from kvferry.config import approximate_size

CAP_SYS_PTRACE = 19
UNLIMITED = -1
_MIN_OPEN_FILES = 4096


def check_ptrace(root: Path) -> Check:
    """Report whether Yama lets one process copy another's memory, as shm does for memory of an engine."""
    name = "ptrace scope"
    scope = read_int(root / "proc/sys/kernel/yama/ptrace_scope")
    details = {"ptrace_scope": scope, "cap_sys_ptrace": _has_capability(root, CAP_SYS_PTRACE)}
    if scope is None:
        return Check(
            name,
            Level.OK,
            "Yama is not active; processes of one user may copy each other's memory",
            "",
            details,
        )
    if scope == 0:
        return Check(name, Level.OK, "0: processes of one user may copy each other's memory", "", details)
    if scope == 1:
        return Check(
            name, Level.OK, "1: allowed towards the peer that each engine names (prctl)", "", details
        )
    if scope == 2 and details["cap_sys_ptrace"]:
        return Check(name, Level.OK, "2: allowed, because this process has CAP_SYS_PTRACE", "", details)
    return Check(
        name,
        Level.WARNING,
        f"{scope}: copying between processes is forbidden; peers on this host will use tcp",
        "docker run --cap-add SYS_PTRACE ..."
        if scope == 2 and in_container(root)
        else "sudo sysctl -w kernel.yama.ptrace_scope=1"
        if scope == 2
        else "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d/ and reboot (3 cannot be undone while running)",
        details,
    )


def check_container(root: Path) -> Check:
    """Report whether this is a container and whether system calls are filtered."""
    status = _process_status(root)
    seccomp = {"0": "off", "1": "strict", "2": "filter"}.get(status.get("Seccomp", ""), "unknown")
    details = {
        "container": in_container(root),
        "seccomp": seccomp,
        "no_new_privileges": status.get("NoNewPrivs") == "1",
    }
    place = "inside a container" if details["container"] else "not in a container"
    return Check("container", Level.NOTE, f"{place}, seccomp {seccomp}", "", details)


def in_container(root: Path) -> bool:
    """Say whether the usual marks of a container are there."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return bool(re.search(r"docker|kubepods|containerd|libpod", read_text(root / "proc/1/cgroup")))


def check_memlock(soft: int, hard: int, *, has_rdma: bool) -> Check:
    """Report the limit on locked memory, which registering memory with an RDMA device needs."""
    shown = _limit(soft)
    details = {"soft_bytes": soft, "hard_bytes": hard}
    if soft == UNLIMITED:
        return Check("memlock", Level.OK, "unlimited", "", details)
    if not has_rdma:
        return Check(
            "memlock", Level.NOTE, f"{shown}; enough here (only RDMA devices need more)", "", details
        )
    fix = "ulimit -l unlimited" if hard == UNLIMITED else _MEMLOCK_FIX
    return Check(
        "memlock", Level.WARNING, f"{shown}; registering memory with RDMA devices will fail", fix, details
    )


_MEMLOCK_FIX = (
    "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/kvferry.conf (then log in again); "
    "in a container: docker run --ulimit memlock=-1 ..."
)


def check_open_files(soft: int, hard: int) -> Check:
    """Report the limit on open files: a peer takes a handful of connections."""
    details = {"soft": soft, "hard": hard}
    if soft == UNLIMITED or soft >= _MIN_OPEN_FILES:
        return Check("open files", Level.OK, _count(soft), "", details)
    fix = f"ulimit -n {_MIN_OPEN_FILES if hard == UNLIMITED else min(hard, 65536)}"
    return Check("open files", Level.WARNING, f"{_count(soft)}; enough for few peers only", fix, details)


def check_io_uring(way: str) -> Check:
    """Report how the engine moves the bytes of files here, from its own words, and what stands in the way."""
    name, details = "io_uring", {"files_are_moved_by": way}
    if way == "io_uring":
        return Check(name, Level.OK, "in use for files", "", details)
    if way.startswith("io_uring"):
        return Check(name, Level.OK, f"in use for files, {way.removeprefix('io_uring ')}", "", details)
    reason = way.partition(": ")[2] or way
    words = f"not in use for files, which are moved by one request after the other: {reason}"
    return Check(name, Level.NOTE, words, _io_uring_fix(reason), details)


def _io_uring_fix(reason: str) -> str:
    if "kernel.io_uring_disabled" in reason:
        return "sudo sysctl -w kernel.io_uring_disabled=0"
    if "seccomp" in reason:
        return (
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile "
            "(docker run --security-opt seccomp=PROFILE.json ...)"
        )
    return "set transfer.io_uring to true" if "switched off" in reason else ""


def _process_status(root: Path) -> dict[str, str]:
    lines = read_text(root / "proc/self/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _has_capability(root: Path, number: int) -> bool:
    effective = _process_status(root).get("CapEff", "0")
    return bool(int(effective, 16) >> number & 1) if re.fullmatch(r"[0-9a-f]+", effective) else False


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else approximate_size(value)


def _count(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)
