"""The chain index from Python: what comes in and goes out, and against a simple model."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.errors import InvalidArgumentError
from kvferry.index import ChainIndex, KeyIdentity, KeySpace

SPACE = KeySpace(KeyIdentity(block_tokens=4), algorithm="xxh3")
KEYS = SPACE.keys(range(40))  # ten blocks


def test_a_router_finds_who_holds_the_longest_prefix() -> None:
    index = ChainIndex(3)
    first = index.stored(0, KEYS[:4])
    assert (first.added, first.repeated, first.refused, first.parent_held) == (4, 0, 0, True)
    index.stored(2, KEYS[:7])
    assert index.match(KEYS).tolist() == index.match(KEYS, closed=True).tolist() == [4, 0, 7]
    assert index.match_prefix(KEYS) == index.match_prefix(KEYS, closed=True) == 7
    assert index.holders(KEYS[3].tobytes()) == [0, 2]
    assert index.removed(2, KEYS[5:9]) == 2
    assert index.match(KEYS).tolist() == [4, 0, 5]
    assert index.cleared(2) == 5
    stats = index.stats()
    assert (stats.blocks, stats.held, stats.repeats) == (4, [4, 0, 0], 0)
    assert stats.memory_bytes > 0


def test_a_lost_event_shows_at_the_parent() -> None:
    index = ChainIndex(1)
    index.stored(0, KEYS[:2])
    assert index.stored(0, KEYS[2:3], parent=KEYS[1].tobytes()).parent_held
    assert not index.stored(0, KEYS[5:6], parent=KEYS[4].tobytes()).parent_held


@pytest.mark.parametrize(
    "keys",
    [KEYS, [key.tobytes() for key in KEYS], KEYS.tobytes(), memoryview(KEYS), KEYS.view(np.uint64)],
    ids=["rows", "list", "bytes", "memoryview", "words"],
)
def test_keys_may_come_in_any_form(keys: Any) -> None:
    index = ChainIndex(1)
    index.stored(0, keys)
    assert index.match_prefix(KEYS) == len(KEYS)
    assert index.references(0, keys).tolist() == [1] * len(KEYS)


@pytest.mark.parametrize("keys", [b"x" * 17, [b"short"], KEYS[:, :8], 5], ids=["17", "short", "gaps", "int"])
def test_other_keys_are_refused(keys: Any) -> None:
    index = ChainIndex(1)
    with pytest.raises(InvalidArgumentError):
        index.match_prefix(keys)
    with pytest.raises(InvalidArgumentError):
        index.stored(0, keys)


def test_unknown_instances_are_refused() -> None:
    index = ChainIndex(2)
    for call in (index.stored, index.removed, index.references):
        with pytest.raises(InvalidArgumentError, match="instance 2 of an index for 2"):
            call(2, KEYS)
    with pytest.raises(InvalidArgumentError):
        index.cleared(2)


@pytest.mark.parametrize("count_repeats", [True, False])
@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.sampled_from("sssrrc"), st.integers(0, 2), st.integers(0, 9), st.integers(1, 10))
    )
)
def test_any_events_give_what_a_model_gives(count_repeats: bool, events: list[Any]) -> None:
    index = ChainIndex(3, count_repeats=count_repeats)
    model: Counter[tuple[int, int]] = Counter()
    for kind, instance, first, count in events:
        blocks = range(first, min(first + count, len(KEYS)))
        held = {block for block in range(len(KEYS)) if model[instance, block]}
        if kind == "s":
            assert index.stored(instance, KEYS[blocks.start : blocks.stop]).repeated == len(
                held & set(blocks)
            )
            for block in blocks:
                model[instance, block] = model[instance, block] + 1 if count_repeats else 1
        elif kind == "r":
            assert index.removed(instance, KEYS[blocks.start : blocks.stop]) == len(held & set(blocks))
            for block in held & set(blocks):
                model[instance, block] -= 1
        else:
            assert index.cleared(instance) == len(held)
            for block in held:
                model[instance, block] = 0
    for instance in range(3):
        counts = [model[instance, block] for block in range(len(KEYS))]
        assert index.references(instance, KEYS).tolist() == counts
        assert index.match(KEYS)[instance] == [*counts, 0].index(0)


@pytest.fixture
def other_thread() -> Iterator[list[int]]:
    """A list that another thread appends to whenever a call gives up the interpreter, and only then."""
    steps: list[int] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            steps.append(1)
            time.sleep(0.0005)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(600)
    thread = threading.Thread(target=count)
    thread.start()
    yield steps
    stop.set()
    thread.join()
    sys.setswitchinterval(usual)


TOKENS = np.arange(2_000_000, dtype=np.int32)
MANY_KEYS = SPACE.keys(TOKENS)
CALLS: dict[str, Callable[[ChainIndex], object]] = {
    "keys": lambda _index: SPACE.keys(TOKENS),
    "extend": lambda _index: SPACE.chain().extend(TOKENS),
    "stored": lambda index: index.stored(0, MANY_KEYS),
    "match": lambda index: index.match(MANY_KEYS),
    "removed": lambda index: index.removed(0, MANY_KEYS),
    "cleared": lambda index: index.cleared(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_threads_run_beside_long_calls(name: str, other_thread: list[int]) -> None:
    index = ChainIndex(1)
    index.stored(0, MANY_KEYS)
    for _ in range(200):  # the other thread may happen to wait for a processor
        before = len(other_thread)
        CALLS[name](index)
        if len(other_thread) > before:
            return
        index.stored(0, MANY_KEYS)
    pytest.fail(f"no other thread ran during {name}")
