"""Transfer engines for tests: pairs in one process. The rest is shipped, in `kvferry.testing.engines`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kvferry.testing.engines import Child, move, pattern, pieces, sparse
from kvferry.testing.waiting import wait_until
from kvferry.transfer import Engine, Peer, TransferOptions

__all__ = [
    "Child",
    "Pair",
    "engine_pair",
    "ipv6_works",
    "move",
    "options",
    "pattern",
    "pieces",
    "sparse",
    "wait_until",
    "wired_pair",
]


def options(*transports: str, **others: Any) -> TransferOptions:
    """Options with `transports` and no other way to a peer."""
    return TransferOptions(transports=transports or ("shm", "tcp"), **{"allow_fallback": False, **others})


class Pair(NamedTuple):
    """Two engines of this process; `peer` is `server` as `client` sees it."""

    client: Engine
    server: Engine
    peer: Peer


@contextlib.contextmanager
def engine_pair(*transports: str, server: dict[str, Any] | None = None, **others: Any) -> Iterator[Pair]:
    """A client connected to a server; register the server's memory, then `peer.refresh()`."""
    with (
        Engine(options(*transports, **(server or {}))) as far,
        Engine(options(*transports, **others)) as near,
    ):
        yield Pair(near, far, near.connect(far.endpoint, expected=far.node_id))


@contextlib.contextmanager
def wired_pair(transport: str, size: int) -> Iterator[tuple[Pair, np.ndarray, np.ndarray, np.ndarray]]:
    """A pair with one region at each end: (pair, local array, remote array, one piece that is all of it)."""
    with engine_pair(transport) as pair:
        far, near = pattern(size, 1), np.zeros(size, dtype=np.uint8)
        there = pair.server.register(far, name="m", access="rw")
        here = pair.client.register(near, name="m", access="rw")
        pair.peer.refresh()
        yield pair, near, far, pieces((here.id, there.id, 0, 0, size))


def ipv6_works() -> bool:
    """Whether this host has an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
