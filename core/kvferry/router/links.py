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
from kvferry.router.scope import Interruption, Scope
from kvferry.router.upstream import BodyReader, Trouble, Upstream, UpstreamError

logger = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 2.0  # after a failure, requests do without the prefill server for so long
# What LMDeploy's own proxy says by default. The backends that need neither RDMA nor a link take no notice.
PROTOCOL = 2  # MigrationProtocol.RDMA
RDMA = {"with_gdr": True, "link_type": 2}  # RDMALinkType.RoCE
_LARGEST_ANSWER_BYTES = 16 << 20


class LinkError(Exception):
    """Two servers could not be connected. `cause`: what the HTTP client met at `instance`, if that is why;
    `refused`: the request's headers are, and those of another one may do.
    """

    def __init__(
        self,
        text: str,
        instance: Instance | None = None,
        cause: UpstreamError | None = None,
        *,
        refused: bool = False,
    ) -> None:
        super().__init__(text)
        self.instance = instance
        self.cause = cause
        self.refused = refused

    def is_unreachable(self, instance: Instance) -> bool:
        """Whether this server cannot be reached."""
        return (
            instance is self.instance and self.cause is not None and self.cause.trouble is Trouble.UNREACHABLE
        )


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
        error = self._just_failed(pair)
        if error is not None and not error.refused:
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
            name = await self._in_time(pair, headers)
        except LinkError as error:
            if error.instance is not None and error.cause is not None:
                note_trouble(error.instance, error.cause)
            # Clients without the right key could fill the log.
            level = logging.DEBUG if error.refused and self._just_failed(pair) else logging.WARNING
            logger.log(level, "%s and %s are not connected: %s", *(each.name for each in pair), error)
            self._failed[pair] = (time.monotonic(), error)
            return error
        else:
            if self._under_way.get(pair) is task:  # else one of them went down meanwhile
                self._names[pair] = name
            return name
        finally:
            if self._under_way.get(pair) is task:
                del self._under_way[pair]

    def _just_failed(self, pair: Pair) -> LinkError | None:
        failed = self._failed.get(pair)
        return failed[1] if failed is not None and time.monotonic() < failed[0] + RETRY_S else None

    async def _in_time(self, pair: Pair, headers: Mapping[str, str]) -> str:
        """As `_introduce`, unless that takes too long or one of the two goes down meanwhile."""
        with Scope(self._limit_s) as scope:

            def stop_waiting() -> None:
                scope.interrupt(Interruption.DOWN)

            for instance in pair:
                instance.when_down.add(stop_waiting)
            try:
                return await self._introduce(pair, headers)
            except asyncio.CancelledError:
                if not scope.is_only_cause:
                    raise
                scope.absorb()
                late = scope.interruption is Interruption.TIMEOUT
                text = f"no answer within {self._limit_s:g} s" if late else "one of them went down"
                raise LinkError(text) from None
            finally:
                for instance in pair:
                    instance.when_down.discard(stop_waiting)

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
            raise LinkError(str(error), instance, error) from error
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
            raise LinkError(str(error), instance, error) from error
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


def _read(instance: Instance, path: str, status: int, body: bytes, kind: type[T]) -> T:
    if status in (401, 403):
        text = f"{instance.name}{path} answered {status}: the request needs one of its --api-keys"
        raise LinkError(text, refused=True)
    if not 200 <= status < 300:
        hint = ": is it LMDeploy, with --role Prefill or Decode?" if status in (404, 405) else ""
        raise LinkError(f"{instance.name}{path} answered {status}{hint}")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LinkError(f"{instance.name}{path}: the answer cannot be read: {error}") from error
