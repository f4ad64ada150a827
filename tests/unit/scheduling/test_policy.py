"""The policy seam and round robin."""

from __future__ import annotations

from collections import Counter

import pytest

from kvferry.scheduling import (
    InstanceView,
    NoPlacementError,
    Placement,
    RequestFeatures,
    RoundRobin,
    Snapshot,
)

REQUEST = RequestFeatures(request_id="r")
DECODE_ONLY = RequestFeatures(request_id="r", wants_prefill=False)


def views(*urls: str) -> tuple[InstanceView, ...]:
    return tuple(InstanceView(url=url) for url in urls)


def test_takes_turns_on_both_sides() -> None:
    seen_p: Counter[str | None] = Counter()
    seen_d: Counter[str] = Counter()
    for turn in range(12):
        snapshot = Snapshot(
            prefill=views("p0", "p1", "p2"), decode=views("d0", "d1"), prefill_turn=turn, decode_turn=turn
        )
        placement = RoundRobin().choose(REQUEST, snapshot)
        seen_p[placement.prefill] += 1
        seen_d[placement.decode] += 1
    assert seen_p == {"p0": 4, "p1": 4, "p2": 4}
    assert seen_d == {"d0": 6, "d1": 6}


def test_is_a_pure_function_of_its_arguments() -> None:
    snapshot = Snapshot(prefill=views("p0", "p1"), decode=views("d0", "d1"), prefill_turn=3, decode_turn=2)
    policy = RoundRobin()
    assert {policy.choose(REQUEST, snapshot) for _ in range(5)} == {Placement(prefill="p1", decode="d0")}


def test_without_prefill_wish_or_instances_there_is_none() -> None:
    both = Snapshot(prefill=views("p0"), decode=views("d0"))
    assert RoundRobin().choose(DECODE_ONLY, both) == Placement(decode="d0")
    assert RoundRobin().choose(REQUEST, Snapshot(decode=views("d0"))) == Placement(decode="d0")


def test_an_engine_does_not_hand_to_itself() -> None:
    snapshot = Snapshot(prefill=views("x"), decode=views("x"))
    assert RoundRobin().choose(REQUEST, snapshot) == Placement(decode="x")


def test_no_decode_instance_is_an_error() -> None:
    with pytest.raises(NoPlacementError, match="no decode instance"):
        RoundRobin().choose(REQUEST, Snapshot(prefill=views("p0")))
