from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.eviction import BLOCK_TOKENS, LONE_SHARES, lone, optimum, replay
from benchmarks.traces import Trace, mooncake, tool_agent

from kvferry import _native
from kvferry.errors import InvalidArgumentError


def numbers(*values):
    return np.array(values, dtype=np.uint64)


def trace(*chains):
    ids = numbers(*(block for chain in chains for block in chain))
    lengths = [len(chain) for chain in chains]
    return Trace("small", ids, numbers(0, *np.cumsum(lengths)), numbers(*lengths) * np.uint64(BLOCK_TOKENS))


def lru(given: Trace, blocks: int, *, chained: bool = True) -> list[int]:
    """Hits of each request: what is found is used, from last to first if `chained`, then the rest is put."""
    held: list[int] = []
    hits = []
    bounds = given.offsets.tolist()
    for begin, end in itertools.pairwise(bounds):
        chain = given.ids[begin:end].tolist()
        found = next((n for n, block in enumerate(chain) if block not in held), len(chain))
        hits.append(found)
        used = chain[:found][::-1] if chained else chain[:found]
        for block in [*used, *chain[found:]]:
            if block in held:
                held.remove(block)
            elif len(held) == blocks:
                held.pop(0)
            held.append(block)
    return hits


def random_trace(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    return trace(*([tree * 100 + n for n in range(rng.integers(1, 8))] for tree in rng.zipf(1.3, 400) % 50))


def native(given: Trace, policy: str, blocks: int, *, chained: bool = True) -> list[int]:
    sizes = np.ones(len(given.ids), dtype=np.uint64)
    return _native.replay_trace(given.ids, given.offsets, sizes, blocks, policy, chained)[0].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_replay_of_lru_agrees_with_a_model(seed):
    given = random_trace(seed)
    assert native(given, "lru", 40) == lru(given, 40)
    assert native(given, "lru", 40, chained=False) == lru(given, 40, chained=False)


@pytest.mark.parametrize("policy", ["lru", "lfu", "s3fifo", "prefix"])
def test_with_room_for_all_every_policy_finds_what_was_there(policy):
    given = random_trace(7)
    hits = native(given, policy, 1000)
    assert hits == optimum(given, 1000).tolist()
    assert sum(hits) > 0


@pytest.mark.parametrize("policy", ["lru", "lfu", "s3fifo", "prefix"])
def test_no_policy_beats_the_optimum(policy):
    given = random_trace(8)
    assert sum(native(given, policy, 30)) <= optimum(given, 30).sum()


def test_a_block_that_does_not_fit_is_not_held():
    given = trace([1], [1], [2], [2])
    hits, _bytes, objects = _native.replay_trace(given.ids, given.offsets, numbers(5, 5, 11, 11), 10, "lru")
    assert hits.tolist() == [0, 1, 0, 0]
    assert objects == 1


@pytest.mark.parametrize(
    ("offsets", "sizes", "why"),
    [
        (numbers(0, 2, 1), numbers(1, 1), "in order"),
        (numbers(0, 3), numbers(1, 1), "within the 2 ids"),
        (numbers(0, 2), numbers(1), "differ in number"),
    ],
)
def test_wrong_offsets_and_sizes_are_refused(offsets, sizes, why):
    with pytest.raises(InvalidArgumentError, match=why):
        _native.replay_trace(numbers(1, 2), offsets, sizes, 10, "lru")


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="'fifo'"):
        _native.replay_trace(numbers(1), numbers(0, 1), numbers(1), 10, "fifo")


def test_on_the_conversation_trace_prefix_is_well_ahead_of_lru():
    conversation = mooncake("conversation")
    recency, _bytes = replay(conversation, "lru", 3_000_000)
    assert recency == pytest.approx(0.138, abs=0.001)  # as other programs find
    assert replay(conversation, "prefix", 3_000_000)[0] > 1.25 * recency


def test_without_chains_prefix_is_still_ahead_of_lru_there():
    conversation = mooncake("conversation")
    recency, _bytes = replay(conversation, "lru", 3_000_000, chained=False)
    assert replay(conversation, "prefix", 3_000_000, chained=False)[0] > 1.05 * recency


@pytest.mark.parametrize("share", LONE_SHARES)
def test_single_objects_among_chains_are_not_given_up_at_once(share):
    assert lone(mooncake("conversation"), "prefix", 3_000_000, share) > 0.99


def test_a_made_up_trace_is_the_same_each_time():
    assert np.array_equal(tool_agent(500).ids, tool_agent(500).ids)
