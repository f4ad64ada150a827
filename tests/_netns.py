"""Two hosts in network namespaces with cables between them that can be pulled. Needs root and ip(8)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

CLONE_NEWNET = 0x40000000


class Host(NamedTuple):
    """One namespace. `prefix`: put before a command, it runs there."""

    prefix: tuple[str, ...]
    addresses: tuple[str, ...]  # one on each cable

    @property
    def namespace(self) -> str:
        """Its file, for setns(2)."""
        return f"/run/netns/{self.prefix[-1]}"


@contextmanager
def inside(host: Host) -> Iterator[None]:
    """Be on this host: sockets that this thread opens, and processes that it starts, are there."""
    home = Path("/proc/thread-self/ns/net")
    with home.open() as back, Path(host.namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(back.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # Python has setns from 3.12 on
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


class Hosts(NamedTuple):
    """Both of them."""

    near: Host
    far: Host
    far_name: str

    def pull(self, cable: str) -> None:
        """Pull a cable out of the far host; nothing is said to the near one."""
        _must(_ip("-n", self.far_name, "link", "set", cable, "down"))

    def plug_in(self, cable: str) -> None:
        """Put it back."""
        _must(_ip("-n", self.far_name, "link", "set", cable, "up"))


@contextmanager
def two_hosts(*cables: str) -> Iterator[Hosts]:
    """Make both hosts with these cables; the test is skipped where the kernel, or the container, refuses."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip(8), of the package iproute2")
    names = (f"kvf{os.getpid()}a", f"kvf{os.getpid()}b")
    networks = [f"10.77.{number}" for number in range(1, len(cables) + 1)]
    try:
        for name in names:
            _possible("network namespaces are not possible here", _ip("netns", "add", name))
            # Entering mounts /sys anew, which some containers forbid.
            _possible("network namespaces cannot be entered here", _ip("netns", "exec", name, "true"))
            _must(_ip("-n", name, "link", "set", "lo", "up"))
        for cable, network in zip(cables, networks, strict=True):
            ends = (cable, "netns", names[0], "type", "veth", "peer", "name", cable, "netns", names[1])
            _possible("virtual cables are not possible here", _ip("link", "add", *ends))
            for number, name in enumerate(names, start=1):
                _must(_ip("-n", name, "address", "add", f"{network}.{number}/24", "dev", cable))
                _must(_ip("-n", name, "link", "set", cable, "up"))
        near, far = (
            Host(("ip", "netns", "exec", name), tuple(f"{network}.{number}" for network in networks))
            for number, name in enumerate(names, start=1)
        )
        yield Hosts(near, far, names[1])
    finally:
        for name in names:
            _ip("netns", "delete", name)


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)


def _must(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{' '.join(done.args)}: {done.stderr}"


def _possible(what: str, done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        pytest.skip(f"{what}: {done.stderr.strip()}")
