"""Sending a request to its prefill and its decode server at once, so that the one reads what the other
computes.

For that the decode server must be told where the prefill server's transfer engine is before that has
answered. The router knows it from the server's earlier answers: there is no further port to open and to find,
and what is known is the identity of the very process that answered. After a restart the next request still
names the old one; its decode server computes the prompt itself, and the answer brings the new identity.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kvferry.errors import InvalidArgumentError
from kvferry.router.instances import Instance
from kvferry.router.release import Releaser

if TYPE_CHECKING:
    from kvferry.handoff import StreamAddress

logger = logging.getLogger(__name__)

# So many wrong guesses in a row mean that several engines answer at one URL, and which one cannot be told.
MOST_SURPRISES = 3
# How long a prefill server may take to answer once the decode server has begun to generate.
WIND_UP_S = 2.0


class _Known(msgspec.Struct):
    node_ids: tuple[str, ...]
    endpoints: tuple[str, ...]
    pp_size: int


class StreamBook:
    """Where each prefill server's transfer engines are. Belongs to one event loop."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._known: dict[Instance, _Known] = {}
        self._surprises: dict[Instance, int] = {}
        self._watched: set[Instance] = set()

    def begin(self, instance: Instance) -> StreamAddress | None:
        """Name a new stream from this server; None if its engines are not known, or are several."""
        known = self._known.get(instance)
        if not self._enabled or known is None or self._surprises.get(instance, 0) >= MOST_SURPRISES:
            return None
        from kvferry.handoff import StreamAddress

        return StreamAddress(secrets.token_hex(16), known.node_ids, known.endpoints, known.pp_size)

    def learn(self, instance: Instance, params: Mapping[str, Any], told: StreamAddress | None = None) -> bool:
        """Take the address in a server's hand-off; whether it is the one that a decode server was `told`."""
        if not self._enabled:
            return told is None
        from kvferry.handoff import parse_lease_address

        try:
            address = parse_lease_address(params)
        except InvalidArgumentError:
            self.forget(instance)
            return told is None
        if instance not in self._watched:
            self._watched.add(instance)
            instance.when_down.add(lambda: self.forget(instance))
        self._known[instance] = _Known(address.node_ids, address.endpoints, address.pp_size)
        if told is None:
            return True
        expected = address.node_ids == told.node_ids
        self._surprises[instance] = 0 if expected else self._surprises.get(instance, 0) + 1
        if self._surprises[instance] == MOST_SURPRISES:
            logger.warning(
                "prefill server %s: another engine answers each time; prompts are handed off at their end",
                instance.name,
            )
        return expected

    def forget(self, instance: Instance) -> None:
        """What was known is of no use: the server is down, or does not say where it is."""
        self._known.pop(instance, None)
        self._surprises.pop(instance, None)


class Handoff:
    """A prefill lease, or nothing, on its way to a decode server; given back unless one took it."""

    def __init__(self, releaser: Releaser, params: dict[str, Any] | None) -> None:
        self.params = params
        self._releaser = releaser

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """What is added to the decode server's body."""
        return None if self.params is None else {"kv_transfer_params": self.params}

    def taken(self) -> None:
        """A decode server has generated from it, so it has fetched what it needed."""
        self.params = None

    def moves(self) -> None:
        """Another decode server than the one it was made for is asked: it will do as well."""

    def give_back(self, *, rejected: bool) -> None:
        """Free the blocks: no decode server will fetch them. A second call does nothing."""
        if self.params is not None:
            self._releaser.release(self.params, "rejected" if rejected else "aborted")
            self.params = None


class StreamedHandoff(Handoff):
    """A prefill under way, which a decode server follows."""

    def __init__(self, releaser: Releaser, params: dict[str, Any]) -> None:
        super().__init__(releaser, params)
        self._stream = params
        self._prefill: asyncio.Task[None] | None = None

    def attach(self, prefill: asyncio.Task[None]) -> None:
        """Name the request to the prefill server, which ends with this hand-off."""
        self._prefill = prefill

    def taken(self) -> None:
        """The decode server generates: the prefill has ended, or is not needed any more."""
        super().taken()
        if self._prefill is not None and not self._prefill.done():
            self._releaser.spawn(self._wind_up(self._prefill))

    def give_back(self, *, rejected: bool) -> None:
        """Nobody will read: the prefill server is told twice, by its client's leaving and by a message."""
        wanted = self.params is not None
        super().give_back(rejected=rejected)
        if wanted and self._prefill is not None:
            self._prefill.cancel()

    def failed(self) -> None:
        """The prefill failed: the decode server is told by the prefill server's engine, if that lives."""
        if self.params is not None:
            self._releaser.release(self._stream, "aborted")

    async def _wind_up(self, prefill: asyncio.Task[None]) -> None:
        _, late = await asyncio.wait({prefill}, timeout=WIND_UP_S)
        if late:
            prefill.cancel()
            self._releaser.release(self._stream, "aborted")
