"""Encoder outputs on their way out of the store: fetched by threads, ahead of the step that needs them."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kvferry.encoder.keys import EncoderKeys
from kvferry.encoder.tensors import HEADER_BYTES, EncodedTensor, unpack
from kvferry.errors import KVFerryError, NotFoundError, ProtocolError
from kvferry.pool import StoreLink

logger = logging.getLogger("kvferry.encoder")

THREADS = 4
# Between two looks for what is being made elsewhere.
LOOK_AGAIN_S = 0.02
# So long a medium that was absent, or given up, is not looked for again.
ABSENT_S = 1.0
_REMEMBERED = 4096


class Answer(enum.Enum):
    """What became of a medium that was asked for."""

    WAIT = "wait"
    READY = "ready"
    ABSENT = "absent"


@dataclass
class _Fetch:
    rows: int
    give_up_at_s: float  # then whoever waits goes on without it
    look_until_s: float  # absent until then means: not there yet


class EncoderReader:
    """Fetches encoder outputs ahead. The public methods never block, and may be called by one thread.

    What is fetched waits in memory of at most `capacity_bytes` until it is taken; the oldest goes first.
    """

    def __init__(self, link: StoreLink, keys: EncoderKeys, *, capacity_bytes: int, wait_s: float) -> None:
        self._link, self._keys = link, keys
        self._capacity_bytes, self._wait_s = capacity_bytes, wait_s
        self._lock = threading.Lock()
        self._fetches: dict[str, _Fetch] = {}
        self._absent: OrderedDict[str, float] = OrderedDict()  # since when
        self._ready: OrderedDict[str, EncodedTensor] = OrderedDict()
        self._ready_bytes = 0
        self._counts: Counter[str] = Counter()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kvferry-encoder")

    def ask(self, media: str, rows: int, *, patience_s: float = 0.0) -> Answer:
        """Say what became of a medium, after beginning to fetch it when asked for the first time.

        `rows` must be what the output has. `patience_s`: how long to go on looking for it while it is absent,
        since somebody else is making it. An answer other than WAIT comes within `wait_s`; ABSENT holds for
        `ABSENT_S`.
        """
        with self._lock:
            now = time.monotonic()
            if (found := self._ready.get(media)) is not None:
                if found.shape[0] == rows:
                    return Answer.READY
                self._drop(media)
                self._absent[media] = now
            if self._closed.is_set() or now - self._absent.get(media, -ABSENT_S) < ABSENT_S:
                return Answer.ABSENT
            fetch = self._fetches.get(media)
            if fetch is not None:
                if now < fetch.give_up_at_s:
                    return Answer.WAIT
                self._settle(media, "late")
                return Answer.ABSENT
            fetch = _Fetch(rows, now + self._wait_s, now + min(patience_s, self._wait_s))
            self._fetches[media] = fetch
        self._threads.submit(self._fetch, media, fetch)
        return Answer.WAIT

    def ready(self, media: str) -> EncodedTensor | None:
        """Return what was fetched, if it is here."""
        with self._lock:
            return self._ready.get(media)

    def forget(self, media: str) -> None:
        """Drop what was fetched, or that it was absent: the next question looks anew."""
        with self._lock:
            self._absent.pop(media, None)
            self._drop(media)

    def take_counts(self) -> dict[str, int]:
        """Return what happened since the last call: `loads|OUTCOME` and `loaded_bytes|`."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts

    def close(self) -> None:
        """Stop; idempotent. A call under way ends by its own deadline."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, media: str, fetch: _Fetch) -> None:
        try:
            found = self._read(media, fetch)
        except KVFerryError as error:
            logger.debug("encoder output %s: %s", media, error)
            self._end(media, fetch, "failed", None)
        except Exception:
            # A bug of ours, or no memory: the encoder runs here instead.
            logger.exception("fetching the encoder output %s failed", media)
            self._end(media, fetch, "failed", None)
        else:
            self._end(media, fetch, "absent" if found is None else "loaded", found)

    def _read(self, media: str, fetch: _Fetch) -> EncodedTensor | None:
        key = self._keys.key(media)
        while True:
            left_s = fetch.give_up_at_s - time.monotonic()
            if left_s <= 0 or self._closed.is_set():
                return None
            store = self._link.get()
            [size] = store.sizes([key], timeout_s=left_s)
            if size is not None:
                break
            if time.monotonic() + LOOK_AGAIN_S >= fetch.look_until_s or self._closed.wait(LOOK_AGAIN_S):
                return None
        if not HEADER_BYTES < size <= self._capacity_bytes:
            raise ProtocolError(
                f"it has {size} bytes, between {HEADER_BYTES} and {self._capacity_bytes} can be"
            )
        target = np.empty(size, np.uint8)
        left_s = max(fetch.give_up_at_s - time.monotonic(), 0.0)
        [result] = store.get_many_into([key], [target], timeout_s=left_s, verify=True)
        if isinstance(result.error, NotFoundError):
            return None
        if result.error is not None:
            raise result.error
        return unpack(target[: result.bytes], rows=fetch.rows)

    def _end(self, media: str, fetch: _Fetch, outcome: str, found: EncodedTensor | None) -> None:
        with self._lock:
            if self._fetches.get(media) is not fetch:
                return  # nobody waits for it any more
            self._settle(media, outcome)
            if found is None:
                return
            del self._absent[media]
            self._counts["loaded_bytes|"] += found.data.nbytes
            self._ready[media] = found
            self._ready_bytes += found.data.nbytes
            while self._ready_bytes > self._capacity_bytes:
                self._drop(next(iter(self._ready)))

    def _drop(self, media: str) -> None:
        if (found := self._ready.pop(media, None)) is not None:
            self._ready_bytes -= found.data.nbytes

    def _settle(self, media: str, outcome: str) -> None:
        del self._fetches[media]
        self._counts[f"loads|{outcome}"] += 1
        self._absent.pop(media, None)
        self._absent[media] = time.monotonic()
        while len(self._absent) > _REMEMBERED:
            self._absent.popitem(last=False)
