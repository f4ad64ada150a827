"""All checks of this host in one list."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

from kvferry.cli.host import devices, engine_probe, engines, kernel, memory, native, transports
from kvferry.cli.host.model import Check, Level, distribution_version
from kvferry.config import environment_value
from kvferry.versions import MOONCAKE, installed_under


def collect(root: Path = Path("/")) -> list[Check]:
    """Look at this host; `root` is where /proc, /sys and /dev are read. Takes about a second."""
    checks: list[Callable[[], Check | list[Check]]] = [
        native.check_native,
        lambda: engine_probe.check_moves(engine_probe.probe_moves()),
        native.check_settings,
        lambda: engines.check_engines(environment_value),
        lambda: engines.check_stand_in(
            engines.stand_in_version(), distribution_version("kvferry"), installed_under(MOONCAKE)
        ),
        _tcp,
        transports.check_tls,
        lambda: transports.check_shm(transports.probe_process_copy(), transports.probe_memory_file(), root),
        lambda: kernel.check_ptrace(root),
        lambda: kernel.check_container(root),
        lambda: memory.check_numa(root),
        lambda: memory.check_transparent_huge_pages(root),
        lambda: memory.check_huge_pages(root),
        lambda: memory.check_memory_limit(root),
        lambda: _shared_memory(root),
        lambda: kernel.check_memlock(
            *resource.getrlimit(resource.RLIMIT_MEMLOCK), has_rdma=bool(devices.rdma_devices(root))
        ),
        lambda: kernel.check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        lambda: devices.check_network(root),
        lambda: devices.check_rdma(root),
        devices.check_accelerators,
        lambda: kernel.check_io_uring(engine_probe.probe_files()),
    ]
    found: list[Check] = []
    for check in checks:
        result = check()
        found.extend(result if isinstance(result, list) else [result])
    return found


def can_run(checks: list[Check]) -> bool:
    """Say whether the main job can run: no check ended in an error."""
    return all(check.level is not Level.ERROR for check in checks)


def _tcp() -> Check:
    return transports.check_tcp(
        transports.probe_tcp(socket.AF_INET, "127.0.0.1"), transports.probe_tcp(socket.AF_INET6, "::1")
    )


def _shared_memory(root: Path) -> Check:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return memory.check_shared_memory(None, None, container=kernel.in_container(root))
    return memory.check_shared_memory(
        status.f_blocks * status.f_frsize,
        status.f_bavail * status.f_frsize,
        container=kernel.in_container(root),
    )
