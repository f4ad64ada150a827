"""A network namespace whose loopback carries only so much: two hosts with a cable, for all that TCP can tell.

Plain loopback is as fast as the processors copy, and whatever else they do makes it slower; on a cable they
have time for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET = 0x40000000
BURST = "256kb"  # a few packets of the largest kind, so that the rate holds over a batch
QUEUE = "64mb"


class NoLinkError(Exception):
    """The kernel, or the container, does not allow it."""


@contextlib.contextmanager
def limited_link(gbit: int) -> Iterator[None]:
    """Be there: sockets that this thread opens, and threads and processes that it starts, are there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as home:
        if libc.unshare(CLONE_NEWNET) != 0:
            raise NoLinkError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            _run("ip", "link", "set", "lo", "up")
            shaped = ("tbf", "rate", f"{gbit}gbit", "burst", BURST, "limit", QUEUE)
            _run("tc", "qdisc", "add", "dev", "lo", "root", *shaped)
            yield
        finally:
            if libc.setns(home.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot go back to the first network namespace")


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError as error:
        raise NoLinkError(f"{words[0]} of the package iproute2 is missing") from error
    if done.returncode != 0:
        raise NoLinkError(f"{' '.join(words)}: {done.stderr.strip()}")
