"""Noticing at once that a prefill process is gone.

SGLang asks each prefill server for its health every five seconds, and gives up on it after two misses. The
connection between the transfer engines of two processes breaks in the moment one of them ends.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

import msgspec

from kvferry.errors import KVFerryError
from kvferry.transfer import Engine, Message, Peer
from kvferry_sglang.pd.engine import Hello

logger = logging.getLogger(__name__)

LOOK_S = 0.25
END_S = 5.0


class PrefillWatch:
    """A decode process's thread that hears prefill ranks introduce themselves and sees their connections
    break. `lost` is called on that thread."""

    def __init__(self, engine: Engine, lost: Callable[[Hello], None]) -> None:
        self._engine = engine
        self._lost = lost
        self._heard: dict[Peer, Hello] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvferry-prefill-watch", daemon=True)
        self._thread.start()
        # A thread that comes back from native code while Python shuts down would end the process by abort().
        atexit.register(self.close)

    def close(self) -> None:
        """End the thread; idempotent."""
        atexit.unregister(self.close)
        self._ending.set()
        if self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self._engine.next_message(LOOK_S)
            if message is not None:
                self._hear(message)
            lost = [peer for peer in self._heard if not peer.alive]
            self._end({self._heard.pop(peer) for peer in lost})

    def _hear(self, message: Message) -> None:
        try:
            hello = msgspec.msgpack.decode(message.body, type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("a message of a peer cannot be read and is dropped: %s", error)
            return
        peer = self._engine.peer(message.peer)
        if peer is None:  # it has gone since
            self._end({hello})
        elif self._heard.setdefault(peer, hello) != hello:
            logger.warning("peer %s introduces itself as a second prefill rank: dropped", peer.endpoint)

    def _end(self, hellos: set[Hello]) -> None:
        """Tell of ranks of which a connection has broken, unless they have another one. By that, too, nobody
        who uses a rank's name ends its requests while it is there."""
        for hello in hellos.difference(self._heard.values()):
            self._tell(hello)

    def _tell(self, hello: Hello) -> None:
        try:
            self._lost(hello)
        except (KVFerryError, RuntimeError, OSError):
            logger.exception("the loss of prefill rank %s:%d", hello.rank_ip, hello.rank_port)
