"""The policy seam: one request and one snapshot of the instances in, one placement out.

A policy reads nothing but its two arguments: it has no clock, no random source and no I/O, so that the same
code answers the router's live requests and the simulator's replayed ones, and gives the same answer twice.
Whatever a policy wants to know about time or load is a field that the caller fills in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kvferry.errors import UnavailableError


class NoPlacementError(UnavailableError):
    """The snapshot holds no decode instance, so the request can run nowhere."""


class RequestFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know about a request before it runs.

    Sizes are in bytes of the request body, since the router does not tokenize. `wants_prefill` is false for a
    request that cannot be split (or whose prefill has already failed): the placement must then name no
    prefill instance. `prefix_tokens`: how many of the prompt's first tokens a prefill instance has in its
    cache, by URL; those that are not named have none, as far as the caller knows.
    """

    request_id: str
    model: str = ""
    body_bytes: int = 0
    max_output_tokens: int | None = None
    wants_prefill: bool = True
    prefix_tokens: Mapping[str, int] = {}


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as the caller sees it now. `in_flight` counts the requests this caller has open there."""

    url: str
    in_flight: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The instances a request may be placed on, unusable ones already left out, in configuration order.

    `prefill_turn` and `decode_turn` count the placements that were made on each side so far; they are the
    caller's, so that a policy needs no memory of its own.
    """

    prefill: tuple[InstanceView, ...] = ()
    decode: tuple[InstanceView, ...] = ()
    prefill_turn: int = 0
    decode_turn: int = 0


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where the request runs, by URL. `prefill` None: the decode instance computes the prompt itself."""

    decode: str
    prefill: str | None = None


class Policy(Protocol):
    """Chooses instances. Implementations are pure functions of the arguments."""

    def choose(self, request: RequestFeatures, snapshot: Snapshot) -> Placement:
        """Return where `request` runs.

        Raises `NoPlacementError` when the snapshot has no decode instance. Never names an instance that is
        not in the snapshot, and no prefill instance when the request does not want one.
        """
        ...


class RoundRobin:
    """Takes the instances of each side in turn, whatever the request looks like."""

    def choose(self, request: RequestFeatures, snapshot: Snapshot) -> Placement:
        """Return the instances whose turn it is; see `Policy.choose`."""
        if not snapshot.decode:
            raise NoPlacementError("no decode instance is usable")
        decode = snapshot.decode[snapshot.decode_turn % len(snapshot.decode)].url
        if not request.wants_prefill or not snapshot.prefill:
            return Placement(decode=decode)
        prefill = snapshot.prefill[snapshot.prefill_turn % len(snapshot.prefill)].url
        # An engine that plays both roles and is chosen for both has nothing to hand to itself.
        return Placement(decode=decode, prefill=None if prefill == decode else prefill)


def longest_prefix(
    instances: Sequence[InstanceView], prefix_tokens: Mapping[str, int], turn: int
) -> InstanceView:
    """Return, among the instances with the fewest requests, one with the most of the prompt in its cache.

    `instances` must not be empty; those that are equal take turns.
    """
    fewest = min(one.in_flight for one in instances)
    idlest = [one for one in instances if one.in_flight == fewest]
    longest = max(prefix_tokens.get(one.url, 0) for one in idlest)
    best = [one for one in idlest if prefix_tokens.get(one.url, 0) == longest]
    return best[turn % len(best)]


class LongestPrefix:
    """Prefills where most of the prompt is cached, among equally loaded instances; decodes in turn."""

    def choose(self, request: RequestFeatures, snapshot: Snapshot) -> Placement:
        """Return the instances; see `Policy.choose`."""
        placement = RoundRobin().choose(request, snapshot)
        if not request.wants_prefill or not snapshot.prefill:
            return placement
        best = longest_prefix(snapshot.prefill, request.prefix_tokens, snapshot.prefill_turn)
        prefill = None if best.url == placement.decode else best.url
        return Placement(decode=placement.decode, prefill=prefill)
