"""Two hosts that share the pool, with an engine on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import until
from engines.hosts import CABLE, MEMBERS_S, Site, World, joined_hosts
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, numbered, tokens_of
from engines.vllm_inprocess.test_streaming import EARLY, STREAMS, Router, read_early

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

POOLED = "kvferry_pool_loaded_bytes_total"
SAVED = "kvferry_pool_saved_blocks_total|saved"
HANDED_OFF = "kvferry_handoff_loaded_bytes_total|tcp"
HITS = "external_prefix_cache_hits_total"
TOKEN_BYTES = 4 * 2 * 4 * 64 * 4  # layers, K and V, heads, head dim, float32


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with joined_hosts(tmp_path) as world:
        yield world


def options(site: Site) -> dict[str, Any]:
    """What engines on this host are told."""
    # Hits are counted exactly, however slow the machine is.
    return {"pool.enabled": "on", "pool.lookup_timeout_s": 20, **site.settings}


def whole_blocks(prompt: list[int]) -> int:
    return len(prompt) // BLOCK


def read_while_computed(prefill: LabEngine, decode: LabEngine, reference: Any) -> None:
    """Both get a request at once: layers cross the cable while the prompt is computed."""
    read_early(prefill, decode, reference, MEMBERS_S)
    decode.counts(STREAMS + "handed_over")
    assert decode.metric("kvferry_handoff_loads_total|failed") == 0
    prefill.all_blocks_free()
    decode.all_blocks_free()


def read_when_finished(prefill: LabEngine, decode: LabEngine) -> None:
    """The same between blocks of two sizes, which are read at the end."""
    asked = numbered(2, 700, seed=5)
    alone = tokens_of(decode.run(asked, MAX_TOKENS))
    assert decode.call("forget_prefixes")
    router = Router(prefill, decode)
    loaded = decode.metric("kvferry_handoff_loads_total|loaded")
    ids = [router.send(prompt) for prompt in asked]
    assert tokens_of(decode.wait([here for _, here in ids])) == alone
    prefill.wait([there for there, _ in ids])
    assert decode.metric("kvferry_handoff_loads_total|loaded") - loaded == len(asked)
    assert decode.metric("kvferry_handoff_loads_total|failed") == 0
    assert decode.metric(EARLY) == 0
    prefill.all_blocks_free()
    decode.all_blocks_free()


def test_pool_and_hand_off_between_two_hosts(lab: Lab, reference, world: World) -> None:
    near, far = world.near, world.far
    with (
        lab.engine("kv_producer", options=options(near), namespace=near.host.namespace) as prefill,
        lab.engine("kv_consumer", options=options(far), namespace=far.host.namespace) as decode,
    ):
        # Saved by one, loaded by the other: the bytes cross the cable.
        asked = numbered(6, 150)
        assert tokens_of(prefill.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        prefill.all_blocks_free()
        assert prefill.metric(SAVED) == sum((len(one) + MAX_TOKENS - 1) // BLOCK for one in asked)
        assert tokens_of(decode.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        pooled = sum(whole_blocks(one) for one in asked) * BLOCK
        # A node that is suspected for a moment, on a machine that stands still, costs hits and nothing else.
        assert 0 < decode.metric(HITS) <= pooled
        assert decode.metric(POOLED) == decode.metric(HITS) * TOKEN_BYTES
        # What the pool has not, the last tokens, comes from the prefill server itself.
        decode.all_blocks_free()
        asked = numbered(6, 150, seed=1)
        saved = prefill.metric(SAVED) + sum(whole_blocks(one) for one in asked)
        params = prefill.prefill(asked)
        until(lambda: prefill.metric(SAVED) == saved, "the prompts to be saved")
        assert tokens_of(decode.run(asked, MAX_TOKENS, params)) == reference.tokens(asked)
        assert 0 < decode.metric(POOLED) <= 2 * pooled * TOKEN_BYTES
        assert decode.metric(HANDED_OFF) > 0
        assert decode.metric("kvferry_handoff_loads_total|failed") == 0
        assert decode.metric("kvferry_pool_loads_total|failed") == 0
        prefill.all_blocks_free()
        decode.all_blocks_free()
        read_while_computed(prefill, decode, reference)
        unpooled = {**options(far), "pool.enabled": "off"}
        with lab.engine(
            "kv_consumer", options=unpooled, namespace=far.host.namespace, block_size=64
        ) as other:
            read_when_finished(prefill, other)
        # With the cable pulled out both go on by themselves, and together again when it is back.
        asked = numbered(4, 150, seed=2)
        params = prefill.prefill(asked)
        world.hosts.pull(CABLE)
        assert tokens_of(decode.run(asked, MAX_TOKENS, params)) == reference.tokens(asked)
        more = numbered(2, 150, seed=3)
        assert tokens_of(prefill.run(more, MAX_TOKENS)) == reference.tokens(more)
        world.hosts.plug_in(CABLE)
        prefill.all_blocks_free(60.0)
        decode.all_blocks_free(60.0)
        until(lambda: near.knows(2) and far.knows(2), "the nodes to know each other again", MEMBERS_S)
        fresh = iter(range(1000))

        def shared() -> bool:
            before = decode.metric(POOLED)
            new = numbered(1, 70, seed=100 + next(fresh))
            for engine in (prefill, decode):
                engine.run(new, 1)
                engine.all_blocks_free(60.0)
            return decode.metric(POOLED) > before

        until(shared, "blocks to cross the cable again", MEMBERS_S)
