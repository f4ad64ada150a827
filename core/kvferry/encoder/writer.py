"""Encoder outputs on their way into the store: queued by the engine's step, put by a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from typing import Any, NamedTuple

from kvferry.encoder.keys import EncoderKeys
from kvferry.encoder.tensors import pack
from kvferry.errors import ConflictError, InvalidArgumentError, KVFerryError
from kvferry.pool import StoreLink

logger = logging.getLogger("kvferry.encoder")

PUT_S = 10.0
STOP_S = 2.0


class _Item(NamedTuple):
    media: str
    header: bytes
    data: Any
    length_bytes: int


class EncoderWriter:
    """Stores encoder outputs behind an engine's back. Thread-safe; `save` never blocks.

    What waits holds at most `capacity_bytes`; what comes beyond that is not stored. An output is stored once:
    what is there already, whoever put it, stays.
    """

    def __init__(self, link: StoreLink, keys: EncoderKeys, *, capacity_bytes: int) -> None:
        self._link, self._keys = link, keys
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._waiting: set[str] = set()
        self._waiting_bytes = 0
        self._counts: Counter[str] = Counter()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvferry-encoder-put", daemon=True)
        self._thread.start()

    def save(self, media: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        """Have an output stored. `data`: its elements in host memory, contiguous; nobody may change them.

        Raises `InvalidArgumentError` for a type or shape that cannot be stored.
        """
        header = pack(dtype, shape)
        length_bytes = int(data.nbytes)
        with self._lock:
            if self._closed or media in self._waiting:
                return
            if self._waiting_bytes + length_bytes > self._capacity_bytes:
                self._counts["saves|dropped"] += 1
                return
            self._queue.append(_Item(media, header, data, length_bytes))
            self._waiting.add(media)
            self._waiting_bytes += length_bytes
            self._lock.notify_all()

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way; return whether that came true in the time allowed."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while self._waiting:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._lock.wait(left_s)
        return True

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call: `saves|OUTCOME` and `saved_bytes|`."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts

    def close(self) -> None:
        """Let what is queued be stored, for `STOP_S` at most, and stop; idempotent."""
        self.settled(STOP_S)
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                item = self._queue.popleft()
            outcome = self._put(item)
            with self._lock:
                self._waiting.discard(item.media)
                self._waiting_bytes -= item.length_bytes
                self._counts[f"saves|{outcome}"] += 1
                if outcome == "stored":
                    self._counts["saved_bytes|"] += item.length_bytes
                self._lock.notify_all()

    def _put(self, item: _Item) -> str:
        try:
            store, key = self._link.get(), self._keys.key(item.media)
            if store.exists(key, timeout_s=PUT_S):
                return "there"
            result = store.put(key, [item.header, item.data], timeout_s=PUT_S)
        except ConflictError:
            return "there"  # the same encoder on the same image may differ in the last bits
        except InvalidArgumentError as error:
            logger.warning("the encoder output %s cannot be stored: %s", item.media, error)
            return "failed"
        except KVFerryError as error:
            logger.debug("the encoder output %s was not stored: %s", item.media, error)
            return "failed"
        except Exception:
            logger.exception("storing the encoder output %s failed", item.media)
            return "failed"
        return "stored" if result.created else "there"
