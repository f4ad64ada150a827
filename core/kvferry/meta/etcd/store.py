"""The store on etcd: the calls of `MetaStore` as requests to the gateway."""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import contextlib
import logging
import math
import threading
from typing import Any

from kvferry.errors import CancelledError, KVFerryError, NotFoundError, ProtocolError, UnavailableError
from kvferry.meta.etcd.gateway import Gateway, Message
from kvferry.meta.store import (
    Batch,
    Entry,
    Event,
    Lease,
    Mirror,
    check_key,
    check_prefix,
    check_ttl,
    check_value,
)

log = logging.getLogger("kvferry.meta")

RESYNC_S = 60.0  # a watch compares with the whole state so often, whatever its stream said
_MAX_QUEUED = 256
_RETRIES_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class EtcdStore:
    """A `MetaStore` on etcd. Owns its gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def name(self) -> str:
        """The addresses of the members, for messages."""
        return self._gateway.name

    def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Write a key and return its revision."""
        request = _put(check_key(key), check_value(value), lease)
        return _revision(self._call("/v3/kv/put", request))

    def get(self, key: str) -> Entry | None:
        """Return one key, or None."""
        answer = self._call("/v3/kv/range", {"key": _encode(check_key(key))})
        return next(iter(_entries(answer)), None)

    def list(self, prefix: str) -> tuple[Entry, ...]:
        """Return all keys that start with `prefix`, sorted."""
        return _entries(self._call("/v3/kv/range", _range(check_prefix(prefix))))

    def delete(self, key: str) -> bool:
        """Remove a key; False if there was none."""
        return "deleted" in self._call("/v3/kv/deleterange", {"key": _encode(check_key(key))})

    def compare_and_swap(
        self, key: str, revision: int, value: bytes, *, lease: Lease | None = None
    ) -> int | None:
        """Write `key` only if it is still at `revision`; None if somebody else was first."""
        request = _put(check_key(key), check_value(value), lease)
        condition = {"key": request["key"], "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        message = {"compare": [condition], "success": [{"request_put": request}]}
        answer = self._call("/v3/kv/txn", message, repeatable=False)
        return _revision(answer) if answer.get("succeeded") else None

    def lease(self, ttl_s: float) -> Lease:
        """Return a new lease; etcd counts in whole seconds."""
        answer = self._call("/v3/lease/grant", {"TTL": str(math.ceil(check_ttl(ttl_s)))})
        return EtcdLease(self, str(_integer(answer, "ID")), float(_integer(answer, "TTL")))

    def watch(self, prefix: str) -> EtcdWatch:
        """Follow the keys that start with `prefix`."""
        return EtcdWatch(self._gateway, check_prefix(prefix))

    def close(self) -> None:
        """End all calls and watches. Idempotent."""
        self._gateway.close()

    def _call(self, path: str, message: Message, *, repeatable: bool = True) -> Message:
        return self._gateway.run(self._gateway.call(path, message, repeatable=repeatable))


class EtcdLease:
    """A lease of etcd."""

    def __init__(self, store: EtcdStore, lease_id: str, ttl_s: float) -> None:
        self._store = store
        self._id = lease_id
        self._ttl_s = ttl_s

    @property
    def id(self) -> str:
        """Its number, in decimal."""
        return self._id

    @property
    def ttl_s(self) -> float:
        """Seconds from one `keep_alive` to its end, as etcd granted them."""
        return self._ttl_s

    def keep_alive(self) -> bool:
        """Start its time afresh; False if it has ended."""
        answer = self._store._call("/v3/lease/keepalive", {"ID": self._id})
        return _integer(answer, "TTL") > 0

    def revoke(self) -> None:
        """End it, with its keys."""
        with contextlib.suppress(NotFoundError):
            self._store._call("/v3/lease/revoke", {"ID": self._id})


class EtcdWatch:
    """The changes under a prefix: the whole state, then a stream; both again when the stream breaks.

    A revision is not enough to go on from: a member that lost its data counts from one again.
    """

    def __init__(self, gateway: Gateway, prefix: str) -> None:
        self._gateway = gateway
        self._range = _range(prefix)
        self._mirror = Mirror()
        self._told = False
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue()  # None: closed
        self._closed = threading.Event()
        self._asked: concurrent.futures.Future[Batch | None] | None = None
        self._work = gateway.start(self._follow())

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next changes, or None: also if the loop thread gets no processor in time. The question
        is then still under way and asked for again: what it brings must not be lost."""
        batch = None
        if not self._closed.is_set():
            self._asked = self._asked or self._gateway.start(self._take(timeout_s))
            try:
                batch = self._gateway.result_of(self._asked, timeout_s)
            except UnavailableError:
                return None
            self._asked = None
        if self._closed.is_set():
            raise CancelledError("the watch was closed")
        return batch

    def close(self) -> None:
        """End it. Idempotent."""
        self._closed.set()
        self._work.cancel()
        self._gateway.soon(lambda: self._batches.put_nowait(None))

    async def _take(self, timeout_s: float) -> Batch | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._batches.get()
        except TimeoutError:
            return None

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                revision = await self._synchronise()
                failures = 0
                async with asyncio.timeout(RESYNC_S):
                    await self._read_stream(revision)
            except TimeoutError:
                continue
            except KVFerryError as error:
                log.debug("a watch of %s is set up again: %s", self._gateway.name, error)
            await asyncio.sleep(_RETRIES_S[min(failures, len(_RETRIES_S) - 1)])
            failures += 1

    async def _synchronise(self) -> int:
        while self._batches.qsize() >= _MAX_QUEUED:
            await asyncio.sleep(_RETRIES_S[0])
        answer = await self._gateway.call("/v3/kv/range", self._range)
        events = self._mirror.replace(_entries(answer))
        if events or not self._told:
            self._told = True
            self._batches.put_nowait(Batch(events, resync=True))
        return _revision(answer)

    async def _read_stream(self, revision: int) -> None:
        request = {"create_request": {**self._range, "start_revision": str(revision + 1)}}
        async for message in self._gateway.stream("/v3/watch", request):
            if message.get("canceled"):
                return  # compacted away, no leader, or no longer allowed: the next look tells
            if self._batches.qsize() >= _MAX_QUEUED:
                return  # the reader is slow: it gets the whole state later
            if events := self._mirror.apply(_events(message)):
                self._batches.put_nowait(Batch(events, resync=False))


def _encode(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _range(prefix: str) -> Message:
    """All keys with this prefix: up to the first key that is greater than all of them."""
    if not prefix:
        return {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)  # keys are ASCII below DEL
    return {"key": _encode(prefix), "range_end": _encode(end)}


def _put(key: str, value: bytes, lease: Lease | None) -> Message:
    message = {"key": _encode(key), "value": base64.b64encode(value).decode()}
    return message if lease is None else {**message, "lease": lease.id}


def _integer(message: Message, name: str) -> int:
    """Return a 64-bit field, which is text, or left out if zero. Raises ProtocolError."""
    value = message.get(name, "0")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ProtocolError(f"etcd answers {name} {value!r}, which is no number") from None


def _revision(answer: Message) -> int:
    header = answer.get("header")
    return _integer(header if isinstance(header, dict) else {}, "revision")


def _entries(answer: Message) -> tuple[Entry, ...]:
    return tuple(_entry(found) for found in _objects(answer, "kvs"))


def _events(message: Message) -> list[Event]:
    events = []
    for found in _objects(message, "events"):
        entry = _entry(found.get("kv"))
        events.append(Event(entry.key, None if found.get("type") == "DELETE" else entry))
    return events


def _objects(message: Message, name: str) -> list[Any]:
    found = message.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ProtocolError(f"etcd answers {name} that are no objects")
    return found


def _entry(found: Any) -> Entry:
    try:
        key = base64.b64decode(found["key"], validate=True).decode("ascii")
        value = base64.b64decode(found.get("value", ""), validate=True)
    except (KeyError, TypeError, AttributeError, binascii.Error, UnicodeDecodeError, ValueError):
        raise ProtocolError("etcd answers with a key or value that is not base64") from None
    lease = _integer(found, "lease")
    return Entry(key, value, _integer(found, "mod_revision"), str(lease) if lease else "")
