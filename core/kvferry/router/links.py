"""Connecting LMDeploy's prefill servers with its decode servers, before the first request that needs both.

A decode engine of LMDeploy reads a prompt's blocks out of a prefill engine's memory. For that each is told
about the other over HTTP (`/distserve/*`): asked how it can be reached by this other engine, and then told
what that one answered. An engine is named by its address, which it also binds, so that a host's name is
resolved first. Nothing ends such a connection: an engine that is connected again forgets the one before.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from multidict import CIMultiDict

from kvferry.router.instances import Instance
from kvferry.router.prefill import note_trouble
from kvferry.router.release import Releaser
from kvferry.router.upstream import BodyReader, Trouble, Upstream, UpstreamError

logger = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 2.0  # after a failure, requests do without the prefill server for so long
# What LMDeploy's own proxy says by default. The backends that need neither RDMA nor a link take no notice.
PROTOCOL = 2  # MigrationProtocol.RDMA
RDMA = {"with_gdr": True, "link_type": 2}  # RDMALinkType.RoCE
_LARGEST_ANSWER_BYTES = 16 << 20


class LinkError(Exception):
    """Two servers could not be connected. `unreachable`: which of them cannot be reached, if that is why."""

    def __init__(self, text: str, unreachable: Instance | None = None) -> None:
        super().__init__(text)
        self.unreachable = unreachable


Pair = tuple[Instance, Instance]  # a prefill and a decode server


class Links:
    """Which servers are connected. Belongs to one event loop; `limit_s`: for connecting two of them."""

    def __init__(self, upstream: Upstream, releaser: Releaser, limit_s: float) -> None:
        self._upstream = upstream
        self._releaser = releaser
        self._limit_s = limit_s
        self._names: dict[Pair, str] = {}
        self._under_way: dict[Pair, asyncio.Task[str | LinkError]] = {}
        self._failed: dict[Pair, tuple[float, LinkError]] = {}  # when, and why
        self._watched: set[Instance] = set()

    async def connect(self, pair: Pair, headers: Mapping[str, str]) -> str:
        """Return the name by which the decode engine knows the prefill engine, once they are connected.

        `headers` are those of the request that needs it: the servers may ask for its API key. Raises
        `LinkError`, at once if connecting them has just failed.
        """
        name = self._names.get(pair)
        if name is not None:
            return name
        failed_at, error = self._failed.get(pair, (-RETRY_S, LinkError("")))
        if time.monotonic() < failed_at + RETRY_S:
            raise error
        task = self._under_way.get(pair)
        if task is None:
            task = self._under_way[pair] = self._releaser.spawn(self._try(pair, headers))
        # Others may wait for it, too: it goes on if this request is broken off.
        outcome = await asyncio.shield(task)
        if isinstance(outcome, LinkError):
            raise outcome
        return outcome

    async def _try(self, pair: Pair, headers: Mapping[str, str]) -> str | LinkError:
        task = asyncio.current_task()
        for instance in pair:
            self._watch(instance)
        try:
            async with asyncio.timeout(self._limit_s):
                name = await self._introduce(pair, headers)
        except (TimeoutError, LinkError) as caught:
            text = str(caught) or f"no answer within {self._limit_s:g} s"
            error = LinkError(text, getattr(caught, "unreachable", None))
            logger.warning("%s and %s are not connected: %s", *(each.name for each in pair), error)
            self._failed[pair] = (time.monotonic(), error)
            return error
        else:
            if self._under_way.get(pair) is task:  # else one of them went down meanwhile
                self._names[pair] = name
            return name
        finally:
            if self._under_way.get(pair) is task:
                del self._under_way[pair]

    def _watch(self, instance: Instance) -> None:
        """What is down has ended, or will: whatever answers there later is connected anew."""
        if instance in self._watched:
            return
        self._watched.add(instance)

        def forget() -> None:
            for pair in [pair for pair in (*self._names, *self._under_way) if instance in pair]:
                self._names.pop(pair, None)
                self._under_way.pop(pair, None)

        instance.when_down.add(forget)

    async def _introduce(self, pair: Pair, headers: Mapping[str, str]) -> str:
        """Connect two engines; returns the prefill engine's name."""
        sent = CIMultiDict(headers)
        sent["Accept-Encoding"] = "identity"
        sent["Content-Type"] = "application/json"
        names = [await _name(each) for each in pair]
        configs = [await self._config(each, sent) for each in pair]
        if configs[0].get("tp_size") != configs[1].get("tp_size"):
            ranks = " and ".join(
                f"{each.name} {config.get('tp_size')}" for each, config in zip(pair, configs, strict=True)
            )
            raise LinkError(f"LMDeploy's servers need the same tensor parallelism (--tp): {ranks}")
        answers = []
        for here, there in ((0, 1), (1, 0)):
            body = {
                "local_engine_id": names[here],
                "local_engine_config": configs[here],
                "remote_engine_id": names[there],
                "remote_engine_config": configs[there],
                "protocol": PROTOCOL,
                "rdma_config": RDMA,
            }
            answers.append(await self._ask(pair[here], "/distserve/p2p_initialize", sent, body))
        for here, there in ((0, 1), (1, 0)):
            body = {
                "protocol": PROTOCOL,
                "remote_engine_id": names[there],
                "remote_engine_endpoint_info": answers[there].get("engine_endpoint_info"),
                "remote_kvtransfer_endpoint_info": answers[there].get("kvtransfer_endpoint_info"),
            }
            await self._ask(pair[here], "/distserve/p2p_connect", sent, body)
        return names[0]

    async def _config(self, instance: Instance, headers: Mapping[str, str]) -> dict[str, Any]:
        path = "/distserve/engine_info"
        try:
            status, _, body = await self._upstream.get(instance, path, headers, self._limit_s)
        except UpstreamError as error:
            raise _blame(instance, error) from error
        text = _read(instance, path, status, body, str)  # JSON within JSON
        return _read(instance, path, status, text.encode(), dict[str, Any])

    async def _ask(
        self, instance: Instance, path: str, headers: Mapping[str, str], body: Mapping[str, object]
    ) -> dict[str, Any]:
        try:
            response = await self._upstream.post(instance, path, headers, msgspec.json.encode(body))
            try:
                answer = await BodyReader(response, instance, _LARGEST_ANSWER_BYTES).read()
            finally:
                response.close()
        except UpstreamError as error:
            raise _blame(instance, error) from error
        return _read(instance, path, response.status, answer, dict[str, Any])


async def _name(instance: Instance) -> str:
    """Return the server's URL with the number of its host, which it can bind."""
    host, port = instance.url.host or "", instance.url.port or 0
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(f"the address of {host} is not known: {error}") from error
    numbers = sorted({str(each[4][0]) for each in found}, key=lambda number: (":" in number, number))
    return str(instance.url.with_user(None).with_host(numbers[0])).rstrip("/")


def _blame(instance: Instance, error: UpstreamError) -> LinkError:
    note_trouble(instance, error)
    return LinkError(str(error), instance if error.trouble is Trouble.UNREACHABLE else None)


def _read(instance: Instance, path: str, status: int, body: bytes, kind: type[T]) -> T:
    if not 200 <= status < 300:
        hint = ": is it LMDeploy, with --role Prefill or Decode?" if status in (404, 405) else ""
        raise LinkError(f"{instance.name}{path} answered {status}{hint}")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LinkError(f"{instance.name}{path}: the answer cannot be read: {error}") from error
