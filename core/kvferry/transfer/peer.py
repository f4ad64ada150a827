"""A live connection to another engine."""

from __future__ import annotations

from kvferry import _native
from kvferry._native import Endpoint, PeerStats, RegionInfo
from kvferry.errors import InvalidArgumentError, KVFerryError, NotFoundError


class Peer:
    """Another engine, as of one control connection; made by `Engine.connect` or found by `Engine.peer`.
    `Engine.self_peer` is the engine itself.

    Outlives the loss of the connection: then `alive` is false, `error` says why, and transfers fail. A
    restarted engine is a new peer with another `node_id`. Thread-safe. Two objects are equal if they stand
    for the same connection of the same engine.
    """

    def __init__(self, native: _native.Peer, engine_id: str) -> None:
        self._native = native
        self._engine_id = engine_id

    @property
    def handle(self) -> int:
        """Identifies the connection within our engine; what messages carry."""
        return self._native.handle

    @property
    def node_id(self) -> str:
        """The engine at the other end: 32 hex digits, new at each of its starts."""
        return self._native.node_id

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        return self._native.endpoint

    @property
    def metadata(self) -> bytes:
        """What it published, as of the first contact or the last `refresh`."""
        return self._native.metadata

    @property
    def regions(self) -> list[RegionInfo]:
        """Its regions, as of the first contact or the last `refresh`."""
        return self._native.regions

    def region(self, name: str) -> RegionInfo:
        """Return the region called `name`.

        Names need not differ: `InvalidArgumentError` if several regions have this one, then take the id from
        `regions`. `NotFoundError` if the last `refresh` saw none.
        """
        found = [info for info in self._native.regions if info.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(str(info.id) for info in found)
            raise InvalidArgumentError(
                f"peer {self.endpoint} ({self.node_id}) has {len(found)} regions {name!r} (ids {ids}): its "
                "owner must give each a name of its own, or take the one you mean from Peer.regions"
            )
        raise NotFoundError(
            f"peer {self.endpoint} ({self.node_id}) has no region {name!r}; refresh() looks again"
        )

    def refresh(self, timeout_s: float = 5.0) -> None:
        """Fetch metadata and regions anew. `DeadlineExceededError`, `PeerLostError`."""
        self._native.refresh(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""
        return self._native.error() is None

    @property
    def error(self) -> KVFerryError | None:
        """Why the connection was lost; None while it stands."""
        error: KVFerryError | None = self._native.error()
        return error

    @property
    def same_host(self) -> bool:
        """Whether it runs on this host and kernel namespace, so that shared memory is possible."""
        return self._native.same_host

    @property
    def transport_note(self) -> str:
        """Why the transport in use was chosen, for example why shared memory was not possible."""
        return self._native.transport_note

    def stats(self) -> PeerStats:
        """Return a snapshot of what moved, and by which transports, with latencies."""
        return self._native.stats()

    def close(self) -> None:
        """End the connection; transfers under way fail. Idempotent."""
        self._native.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Peer):
            return NotImplemented
        return (self._engine_id, self.handle) == (other._engine_id, other.handle)

    def __hash__(self) -> int:
        return hash((self._engine_id, self.handle))

    def __repr__(self) -> str:
        state = "alive" if self.alive else "lost"
        return f"Peer(handle={self.handle}, node_id={self.node_id!r}, endpoint='{self.endpoint}', {state})"
