"""One scheduler process's transfer engine, with the methods by which SGLang's Mooncake classes use theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

import msgspec

from kvferry.config import load_config
from kvferry.errors import IdentityMismatchError, KVFerryError, UnavailableError
from kvferry.transfer import Access, AddressedEngine, Endpoint, Engine, Peer, TransferOptions, may_still_land
from kvferry_sglang.pd.pieces import Pieces, blocks

logger = logging.getLogger(__name__)

# UNSETTLED: failed, and bytes of it may still be written.
DONE, FAILED, UNSETTLED = 0, -1, -2

MOST_FAILURES = 256  # sessions of which the last failure is kept


def failure_status(error: Exception) -> int:
    """Return how a write that raised `error` ended."""
    return UNSETTLED if may_still_land(error) else FAILED


class Hello(msgspec.Struct, frozen=True, tag="sglang.pd.hello"):
    """What a prefill rank tells a decode rank over the connection between their engines: where SGLang's own
    messages to it go. By that, the decode rank knows whose process is gone when the connection breaks."""

    rank_ip: str
    rank_port: int


class PDEngine:
    """Moves pieces into peers' memory. Thread-safe; methods that SGLang calls return 0 if all went well, and
    never raise.

    What went wrong last with a peer is kept, for the request's error text.
    """

    def __init__(
        self, options: TransferOptions | None = None, *, device: str = "cpu", hello: Hello | None = None
    ) -> None:
        """Start an engine. `device`: where KV pools lie. `hello`: what peers are told on first contact."""
        self.engine = Engine(load_config().transfer if options is None else options)
        self._addressed = AddressedEngine(self.engine)
        self._device = device
        self._hello = hello
        self._lock = threading.Lock()  # guards the two below
        self._greeted: dict[str, int] = {}  # session to the handle of the connection that was greeted
        self._failures: dict[str, Exception] = {}

    # What SGLang's Mooncake classes call.

    def get_session_id(self) -> str:
        """Return what names this process to its peers; it ends in `:PORT`."""
        return self._addressed.session

    def batch_register(self, addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """Make buffers in device memory readable and writable for peers."""
        try:
            self.register(zip(addresses, lengths, strict=True), access="rw", device=self._device)
        except KVFerryError:
            logger.exception("memory cannot be registered")
            return FAILED
        return DONE

    def batch_deregister(self, addresses: Sequence[int]) -> int:
        """Take back `batch_register`."""
        try:
            for address in addresses:
                self._addressed.unregister(address)
        except KVFerryError:
            logger.exception("memory cannot be unregistered")
            return FAILED
        return DONE

    def batch_transfer_sync(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Write pieces given as lists of addresses into a peer's memory."""
        return self.write(session, blocks(list(zip(sources, targets, lengths, strict=True))))

    def transfer_sync(self, session: str, source: int, target: int, length: int) -> int:
        """Write one piece."""
        return self.write(session, blocks([(source, target, length)]))

    def send_probe(self, session: str) -> int:
        """Say whether a peer can be reached, by connecting to it if it is not connected."""
        try:
            self.reach(session)
        except KVFerryError as error:
            self.note_failure(session, error)
            return FAILED
        return DONE

    # What our own classes call.

    def register(self, ranges: Iterable[tuple[int, int]], *, access: Access, device: str) -> None:
        """Register (address, length) ranges; raises as `kvferry.transfer.Engine.register`."""
        for address, length in ranges:
            self._addressed.register(address, length, access=access, device=device)

    def write(self, session: str, pieces: Pieces) -> int:
        """Write all pieces as one plan, and wait until it is over; 0 if every byte has arrived, else `FAILED`
        or `UNSETTLED`."""
        if not pieces.lengths.size:
            return DONE
        try:
            self.reach(session)
            self._addressed.execute(
                session, "write", pieces.source, pieces.target, pieces.lengths
            ).raise_if_failed()
        except KVFerryError as error:
            self.note_failure(session, error)
            logger.warning("%d pieces, %d bytes: %s", pieces.lengths.size, pieces.bytes, self.why(session))
            return failure_status(error)
        with self._lock:
            self._failures.pop(session, None)
        return DONE

    def reach(self, session: str) -> Peer:
        """Return the peer, connected and greeted; raises as `AddressedEngine.connect`."""
        peer = self._addressed.connect(session)
        if self._hello is not None:
            with self._lock:
                new = self._greeted.get(session) != peer.handle
            if new:
                self.engine.send(peer, msgspec.msgpack.encode(self._hello))
                self._note_greeted(session, peer)
        return peer

    def _note_greeted(self, session: str, peer: Peer) -> None:
        """Note that a greeting was sent, and forget the servers that are gone: started anew, each has another
        session."""
        with self._lock:
            kept = {name: handle for name, handle in self._greeted.items() if not self.is_lost(name)}
            self._greeted = {**kept, session: peer.handle}

    def is_lost(self, session: str) -> bool:
        """Whether there is no connection to a peer now."""
        return not self._addressed.is_connected(session)

    def note_failure(self, session: str, error: Exception) -> None:
        """Keep what went wrong with a peer until something goes right; with the latest peers only, since many
        a server never comes back."""
        with self._lock:
            self._failures.pop(session, None)
            self._failures[session] = error
            while len(self._failures) > MOST_FAILURES:
                del self._failures[next(iter(self._failures))]

    def why(self, session: str) -> str:
        """Return what went wrong last with a peer, and what to do about it; empty if nothing did."""
        with self._lock:
            error = self._failures.get(session)
        if error is None:
            return ""
        text = str(error) or type(error).__name__
        if isinstance(error, UnavailableError | IdentityMismatchError) and _is_loopback(session):
            text += (
                " (it listens on loopback: if it is on another host, set transfer.bind there, e.g. by "
                "KVFERRY_TRANSFER_BIND, and a cluster secret on both)"
            )
        return text

    def close(self) -> None:
        """End all connections and transfers; idempotent."""
        self.engine.close()


def _is_loopback(session: str) -> bool:
    return Endpoint(session.partition("@")[2]).is_loopback
