from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from kvferry.errors import ProtocolError
from kvferry.index import ChainIndex, EngineBlocks, EventKeys, PrefixIndex, decode_batch
from kvferry.index.engine_events import MAX_BATCH_BYTES

SIZE = 4  # tokens of a block


def stored(
    hashes: list[Any], parent: Any = None, tokens: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": list(range(len(hashes) * SIZE)) if tokens is None else tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: Any, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def feed(index: PrefixIndex, name: str, *events: Any) -> None:
    index.engines[name].apply(decode_batch(batch(*events)))


def tokens(count: int) -> list[int]:
    return list(range(count))


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(["a", "b"])


def test_hits_are_per_engine_and_end_before_the_last_token(index: PrefixIndex) -> None:
    feed(index, "a", stored([1, 2, 3]))
    feed(index, "b", stored([b"x" * 32], tokens=tokens(SIZE)))
    assert index.hits(tokens(13)) == {"a": 12, "b": 4}
    assert index.hits(tokens(12)) == {"a": 8, "b": 4}, "the last token is always computed"
    assert index.hits(tokens(4)) == {"a": 0, "b": 0}
    assert index.hits([]) == {"a": 0, "b": 0}
    assert index.hits([7, *tokens(12)[1:], 0]) == {"a": 0, "b": 0}
    assert index.blocks() == {"a": 3, "b": 1}


def test_a_chain_goes_on_after_its_parent_and_branches(index: PrefixIndex) -> None:
    feed(index, "a", stored([1], tokens=[1, 2, 3, 4]))
    feed(index, "a", stored([2], parent=1, tokens=[5, 6, 7, 8]), stored([3], parent=1, tokens=[5, 6, 7, 9]))
    assert index.hits([1, 2, 3, 4, 5, 6, 7, 8, 0])["a"] == 8
    assert index.hits([1, 2, 3, 4, 5, 6, 7, 9, 0])["a"] == 8
    assert index.hits([1, 2, 3, 4, 5, 6, 7, 7, 0])["a"] == 4


def test_a_hole_in_the_middle_ends_the_hit(index: PrefixIndex) -> None:
    feed(index, "a", stored([1, 2, 3]), removed(2))
    assert index.hits(tokens(13))["a"] == 4
    feed(index, "a", stored([2], parent=1, tokens=tokens(12)[4:8]))
    assert index.hits(tokens(13))["a"] == 12


def test_a_block_of_which_there_are_two_copies_is_gone_after_two_removals(index: PrefixIndex) -> None:
    feed(index, "a", stored([1]), stored([1]), removed(1))
    assert index.hits(tokens(5))["a"] == 4
    feed(index, "a", removed(1))
    assert index.hits(tokens(5))["a"] == 0
    assert index.engines["a"].known_hashes == set()


def test_a_cleared_cache_is_empty_and_known_completely(index: PrefixIndex) -> None:
    feed(index, "a", stored([1, 2]))
    assert not index.engines["a"].complete
    feed(index, "a", stored([9], parent=2, tokens=[9] * SIZE), CLEARED)
    assert index.blocks()["a"] == 0
    assert index.engines["a"].complete
    feed(index, "a", CLEARED, stored([1], tokens=[3] * SIZE))
    assert index.hits([3, 3, 3, 3, 3])["a"] == 4


def test_what_follows_an_unknown_block_is_left_out(index: PrefixIndex) -> None:
    feed(index, "a", stored([2], parent=1, tokens=[5] * SIZE), removed(1, 77))
    assert index.blocks()["a"] == 0
    assert index.engines["a"].orphans == 1


def test_adapters_salts_and_media_do_not_share(index: PrefixIndex) -> None:
    feed(index, "a", stored([1], lora_name="ada", extra_keys=[["ada"]]))
    feed(index, "a", stored([2], extra_keys=[["ada"]]))  # a salt that is called like the adapter
    feed(index, "a", stored([3], extra_keys=[[["image", 0]]]))
    feed(index, "a", stored([4], extra_keys=[[["other image", 0]]]))
    assert index.blocks()["a"] == 4
    prompt = tokens(5)
    assert index.hits(prompt)["a"] == 0
    assert index.hits(prompt, model="ada")["a"] == 4
    assert index.hits(prompt, salt="ada")["a"] == 4
    assert index.hits(prompt, model="ada", salt="ada")["a"] == 0
    assert index.hits(prompt, model="no adapter")["a"] == 0
    feed(index, "a", removed(1))
    assert (index.hits(prompt, model="ada")["a"], index.hits(prompt, salt="ada")["a"]) == (0, 4)


def test_a_salt_reaches_the_blocks_that_follow(index: PrefixIndex) -> None:
    feed(index, "a", stored([1, 2], extra_keys=[["s"], None]))
    feed(index, "a", stored([3], parent=2, tokens=[8, 9, 10, 11], extra_keys=[None]))
    assert index.hits(tokens(13), salt="s")["a"] == 12
    assert index.hits(tokens(13))["a"] == 0


def test_all_groups_of_full_attention_must_hold_the_prefix(index: PrefixIndex) -> None:
    full, window = {"kv_cache_spec_kind": "full_attention"}, {"kv_cache_spec_kind": "sliding_window"}
    feed(index, "a", stored([1, 2], group_idx=0, **full), stored([1], group_idx=1, **full, tokens=tokens(4)))
    feed(index, "a", stored([2], parent=1, group_idx=2, tokens=tokens(8)[4:], **window))
    assert index.hits(tokens(9))["a"] == 4
    feed(index, "a", stored([2], parent=1, group_idx=1, tokens=tokens(8)[4:], **full))
    assert index.hits(tokens(9))["a"] == 8
    feed(index, "a", removed(2, group_idx=0))
    assert index.hits(tokens(9))["a"] == 4


def test_blocks_in_host_memory_are_no_hits(index: PrefixIndex) -> None:
    feed(index, "a", stored([1], medium="CPU"))
    assert index.hits(tokens(5))["a"] == 0
    feed(index, "a", stored([1]), removed(1, medium="CPU"))
    assert index.hits(tokens(5))["a"] == 4


def test_parts_of_blocks_do_not_count(index: PrefixIndex) -> None:
    feed(index, "a", stored([1]), stored([9], block_size=2, tokens=[0, 1]))
    assert index.blocks()["a"] == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 100,
        b"\x91" * 100_000,
        batch({"type": "Unheard"}),
        batch(stored([1.5])),
        batch(stored([1], block_size=0)),
        batch(stored([1], block_size=-4)),
        batch(stored([1], token_ids=["a"] * SIZE)),
        batch(stored([1], extra_keys=[None, None])),
        msgspec.msgpack.encode({"ts": 1, "events": []}),
        msgspec.msgpack.encode([1.0]),
    ],
)
def test_malformed_batches_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(payload)


@pytest.mark.parametrize("event", [stored([1, 2], tokens=[1] * SIZE), stored([1], tokens=[1 << 40] * SIZE)])
def test_events_that_contradict_themselves_are_refused(index: PrefixIndex, event: Any) -> None:
    with pytest.raises(ProtocolError):
        feed(index, "a", event)


def test_a_batch_beyond_the_limit_is_not_even_read() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        decode_batch(memoryview(bytearray(MAX_BATCH_BYTES + 1)))


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_leave_exactly_what_an_engine_would_hold(seed: int) -> None:
    chance = random.Random(seed)
    blocks = EngineBlocks(ChainIndex(1), 0, EventKeys())
    chains = {0: None, **{number: chance.choice([None, *range(1, number)]) for number in range(1, 40)}}
    held: Counter[int] = Counter()
    for _ in range(300):
        if chance.random() < 0.01:
            held.clear()
            blocks.apply(decode_batch(batch(CLEARED)))
            continue
        number = chance.randrange(1, 40)
        parent = chains[number]
        if chance.random() < 0.55 and (parent is None or held[parent]):
            held[number] += 1
            event = stored([number], parent=parent, tokens=[number] * SIZE)
        elif held[number]:
            held[number] -= 1
            event = removed(number)
        else:
            continue
        blocks.apply(decode_batch(batch(event)))
        assert blocks.references(range(40)) == [held[each] for each in range(40)]
        assert blocks.known_hashes == {(0, each) for each, count in held.items() if count}
