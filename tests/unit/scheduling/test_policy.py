"""The policy seam and round robin."""

from __future__ import annotations

from collections import Counter

import pytest

from kvferry.scheduling import (
    InstanceView,
    LongestPrefix,
    NoPlacementError,
    Placement,
    RequestFeatures,
    RoundRobin,
    Snapshot,
    longest_prefix,
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


def loaded(**in_flight: int) -> tuple[InstanceView, ...]:
    return tuple(InstanceView(url=url, in_flight=count) for url, count in in_flight.items())


def test_the_longest_prefix_wins_among_the_idlest() -> None:
    hits = {"a": 64, "b": 128, "c": 4096}
    assert longest_prefix(loaded(a=1, b=1, c=2), hits, 0).url == "b"
    assert longest_prefix(loaded(a=1, b=1, c=1), hits, 0).url == "c"
    assert longest_prefix(loaded(a=0, b=1, c=1), hits, 5).url == "a"
    assert longest_prefix(loaded(d=0, a=0), hits, 1).url == "a", "what is not named has nothing"


def test_equal_ones_take_turns() -> None:
    chosen = [longest_prefix(loaded(a=0, b=0, c=0), {"a": 32, "c": 32}, turn).url for turn in range(4)]
    assert chosen == ["a", "c", "a", "c"]
    assert [longest_prefix(loaded(a=0, b=0), {}, turn).url for turn in range(3)] == ["a", "b", "a"]


def test_prefixes_choose_the_prefill_side_only() -> None:
    snapshot = Snapshot(prefill=views("p0", "p1"), decode=views("d0", "p1"), prefill_turn=0, decode_turn=0)
    request = RequestFeatures(request_id="r", prefix_tokens={"p1": 32, "d0": 99})
    assert LongestPrefix().choose(request, snapshot) == Placement(prefill="p1", decode="d0")
    turned = Snapshot(prefill=views("p0", "p1"), decode=views("d0", "p1"), decode_turn=1)
    assert LongestPrefix().choose(request, turned) == Placement(decode="p1"), "it has what it needs itself"
    assert LongestPrefix().choose(DECODE_ONLY, snapshot) == Placement(decode="d0")
    assert LongestPrefix().choose(REQUEST, Snapshot(decode=views("d0"))) == Placement(decode="d0")
    with pytest.raises(NoPlacementError):
        LongestPrefix().choose(REQUEST, Snapshot(prefill=views("p0")))
