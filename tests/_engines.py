"""Transfer engines for tests: pairs in one process. The rest is shipped, in `kvferry.testing.engines`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvferry.testing.engines import Child, move, pattern, pieces, sparse, wait_until
from kvferry.transfer import Engine, Peer, TransferOptions

__all__ = ["Child", "Pair", "engine_pair", "move", "options", "pattern", "pieces", "sparse", "wait_until"]


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
