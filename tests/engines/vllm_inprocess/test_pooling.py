"""Prefixes shared through the pool: the same tokens as one engine, and exactly the hits that were stored."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.harness import model_folder, until
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, fifty, numbered, prompts, tokens_of
from kvferry.store import Store
from kvferry.testing.nodes import NodeChild

# Several engines start in some of these, and machines may be slow.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_pool_loads_total|loaded"
FAILED = "kvferry_pool_loads_total|failed"
SAVED = "kvferry_pool_saved_blocks_total|saved"
HANDED_OFF = "kvferry_handoff_loads_total|loaded"
PATIENT = {"pool.lookup_timeout_s": 20}  # hits are counted exactly, however slow the machine is
BLOCK_BYTES = 4 * 2 * 4 * BLOCK * 64 * 4  # layers, K and V, heads, tokens, head dim, float32


def full_blocks(tokens: int) -> int:
    return tokens // BLOCK


def pooled_tokens(prompt: list[int]) -> int:
    """What of a stored prompt comes from the pool."""
    return full_blocks(len(prompt)) * BLOCK


@pytest.fixture
def alone(tmp_path: Path) -> Mapping[str, Any]:
    """Options of an engine that finds no node."""
    return {"cluster.directory": str(tmp_path), "store.dram": 96 << 20, **PATIENT}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeChild]:
    with NodeChild(tmp_path, "--dram", "160MiB") as started:
        yield started


@pytest.fixture
def shared(node: NodeChild) -> Mapping[str, Any]:
    """Options of engines that use the node."""
    return {"cluster.directory": node.cluster.directory, **PATIENT}


def settled(engine: LabEngine) -> None:
    """Wait until the engine holds no block, not even for a save, and forget its own prefixes."""
    engine.all_blocks_free()
    assert engine.call("forget_prefixes")


def test_the_same_tokens_from_the_pool(lab: Lab, reference, alone) -> None:
    asked = prompts()
    with lab.engine("kv_both", options=alone) as engine:
        first = engine.run(asked, MAX_TOKENS)
        assert tokens_of(first) == reference.tokens(asked)
        settled(engine)
        before = engine.metric(HITS)
        assert before == 0
        again = []
        for prompt in asked:  # one by one: no two share a prefix that the other one has just loaded
            again += engine.run([prompt], MAX_TOKENS)
            settled(engine)
        assert tokens_of(again) == reference.tokens(asked)
        assert engine.metric(HITS) == sum(pooled_tokens(prompt) for prompt in asked)
        assert engine.metric(FAILED) == 0
        assert engine.metric(LOADED) == sum(1 for prompt in asked if pooled_tokens(prompt))
        assert engine.metric("kvferry_pool_loaded_bytes_total") == BLOCK_BYTES * sum(
            full_blocks(len(prompt)) for prompt in asked
        )


def test_permuted_blocks_give_other_tokens(lab: Lab, reference, alone) -> None:
    """The negative control: if this gave the same tokens, equal tokens elsewhere would show nothing."""
    asked = numbered(4, 200)
    with lab.engine("kv_both", options=alone) as engine:
        engine.run(asked, MAX_TOKENS)
        settled(engine)
        engine.call("permute_pooled_blocks")
        answers = engine.run(asked, MAX_TOKENS)
        assert engine.metric(LOADED) == 4
    same = [got == want for got, want in zip(tokens_of(answers), reference.tokens(asked), strict=True)]
    assert not any(same)


def test_engines_share_a_node_which_outlives_them(lab: Lab, reference, shared) -> None:
    asked = fifty()
    stored = sum(pooled_tokens(prompt) for prompt in asked)
    with lab.engine("kv_both", options=shared) as other:
        with lab.engine("kv_both", options=shared) as first:
            assert tokens_of(first.run(asked, MAX_TOKENS)) == reference.tokens(asked)
            first.all_blocks_free()
            # A prompt's blocks, and those of the answer as far as they are full.
            assert first.metric(SAVED) == sum(full_blocks(len(one) + MAX_TOKENS - 1) for one in asked)
            assert tokens_of(other.run(asked, MAX_TOKENS)) == reference.tokens(asked)
            assert other.metric(HITS) == stored
            other.all_blocks_free()
            assert other.metric(SAVED) == 0  # all of it was there
        with lab.engine("kv_both", options=shared) as restarted:
            assert tokens_of(restarted.run(asked, MAX_TOKENS)) == reference.tokens(asked)
            longer = [prompt + numbered(1, 40)[0] for prompt in asked[:6]]
            settled(restarted)
            assert tokens_of(restarted.run(longer, MAX_TOKENS)) == reference.tokens(longer)
            assert restarted.metric(HITS) == stored + sum(pooled_tokens(prompt) for prompt in asked[:6])
            assert restarted.metric(FAILED) == 0
            restarted.all_blocks_free()


def test_what_must_not_be_shared_is_not(lab: Lab, reference, shared) -> None:
    """dtype, salt and namespace; the other fields of the identity: tests/unit/pool."""
    (asked,) = numbered(1, 100)
    with lab.engine("kv_both", options=shared) as engine:
        engine.run([asked], MAX_TOKENS)
        settled(engine)
        for salt, hits in (("a", 0), ("b", 0), ("a", 96)):
            before = engine.metric(HITS)
            (answer,) = engine.wait([engine.add(asked, MAX_TOKENS, salt=salt)])
            assert answer["tokens"] == reference.tokens([asked])[0]
            assert engine.metric(HITS) - before == hits
            settled(engine)
        assert engine.call("forget_pool")
        before = engine.metric(HITS)
        assert tokens_of(engine.run([asked], MAX_TOKENS)) == reference.tokens([asked])
        assert engine.metric(HITS) == before
        engine.all_blocks_free()
        with lab.engine("kv_both", options={**shared, "pool.namespace": "other weights"}) as other:
            other.run([asked], MAX_TOKENS)
            assert other.metric(HITS) == 0
            other.all_blocks_free()
        with lab.engine("kv_both", options=shared, dtype="bfloat16") as other:
            other.run([asked], MAX_TOKENS)
            assert other.metric(HITS) == 0
            other.all_blocks_free()


def test_what_vllm_puts_into_its_block_hashes(lab: Lab, prefill: LabEngine, decode: LabEngine) -> None:
    """Our keys rely on vLLM's hashes for what differs from request to request: they cover it, each apart from
    the others, and are the same in all processes. A vLLM that changes this fails here."""
    requests: list[dict[str, Any]] = [
        {},
        {"lora": ("x", "/a")},
        {"lora": ("y", "/a")},
        {"lora": ("x", "/b")},
        {"salt": "x"},
        {"salt": "y"},
        {"media": [("x", 4, 8)]},
        {"media": [("y", 4, 8)]},
        {"media": [("x", 5, 8)]},
        {"media": [("x", 4, 8), ("x", 12, 8)]},
        {"lora": ("x", "/a"), "salt": "x"},
    ]
    tokens = list(range(BLOCK))
    found = [prefill.call("block_hash", tokens=tokens, **one) for one in requests]
    assert len(set(found)) == len(requests)
    assert found == [decode.call("block_hash", tokens=tokens, **one) for one in requests]


def test_own_cache_then_pool_then_prefill_engine(lab: Lab, reference, shared) -> None:
    """A consumer asks the prefill engine only for what neither it nor the pool has."""
    options = {**shared, "pool.enabled": "on"}
    (prompt,) = numbered(1, 10 * BLOCK + 50)
    with (
        lab.engine("kv_producer", options=options) as prefill,
        lab.engine("kv_consumer", options=options) as decode,
    ):
        decode.run([prompt[: 4 * BLOCK + 1]], 1)  # 4 blocks in its own cache
        until(lambda: decode.metric(SAVED) == 4, "these to be saved")
        params = prefill.prefill([prompt])
        until(lambda: prefill.metric(SAVED) == 11 - 4, "the prompt to be saved")
        answers = decode.run([prompt], MAX_TOKENS, params)
        assert tokens_of(answers) == reference.tokens([prompt])
        state = decode.state()["metrics"]
        assert state[HITS] == len(prompt) - 4 * BLOCK
        assert state["kvferry_pool_loaded_bytes_total"] == (11 - 4) * BLOCK_BYTES
        assert state["kvferry_handoff_loaded_bytes_total|shm"] == BLOCK_BYTES
        # A prompt that the pool has to its end, but for less than a block, needs no hand-off at all.
        settled(decode)
        whole = prompt[: 11 * BLOCK]
        assert tokens_of(decode.run([whole], MAX_TOKENS, prefill.prefill([whole]))) == reference.tokens(
            [whole]
        )
        assert decode.metric(HANDED_OFF) == 1
        settled(decode)
        settled(prefill)
        asked = fifty()
        answers = decode.run(asked, MAX_TOKENS, prefill.prefill(asked))
        assert tokens_of(answers) == reference.tokens(asked)
        assert decode.metric(FAILED) == 0
        assert decode.metric("kvferry_handoff_loads_total|failed") == 0
        prefill.all_blocks_free()
        decode.all_blocks_free()


def _written(store: Store, count: int) -> bool:
    return store.node_stats().counters["ssd_written_total"] == count


def test_through_the_ssd_tier(lab: Lab, reference, tmp_path: Path) -> None:
    """Memory of the node for half of the blocks; the rest come from its SSD tier."""
    asked = numbered(8, 300)
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    environ = {"KVFERRY_STORE_SSD_WRITE": "through"}
    each = full_blocks(300 + MAX_TOKENS - 1)
    with (
        NodeChild(tmp_path, "--dram", "12MiB", "--ssd", f"{ssd}:256MiB", environ=environ) as node,
        node.open() as store,
        lab.engine("kv_both", options={"cluster.directory": str(tmp_path), **PATIENT}) as engine,
    ):
        for count, prompt in enumerate(asked, start=1):
            engine.run([prompt], MAX_TOKENS)
            # Memory that is needed at once is taken from what is on SSD, too, and otherwise from anything.
            until(functools.partial(_written, store, count * each), "blocks to be on SSD")
        assert store.node_stats().dram_objects < 8 * each
        settled(engine)
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        assert engine.metric(HITS) == 8 * pooled_tokens(asked[0])
        assert engine.metric(FAILED) == 0
        engine.all_blocks_free()


def test_the_node_is_killed_and_comes_back(lab: Lab, reference, tmp_path: Path) -> None:
    asked = numbered(8, 150)
    with (
        NodeChild(tmp_path, "--dram", "64MiB") as node,
        lab.engine("kv_both", options={"cluster.directory": str(tmp_path)}) as engine,
    ):
        engine.run(asked, MAX_TOKENS)
        settled(engine)
        ids = [engine.add(prompt, MAX_TOKENS) for prompt in asked]
        node.kill()
        assert tokens_of(engine.wait(ids)) == reference.tokens(asked)
        settled(engine)
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        settled(engine)
        with NodeChild(tmp_path, "--dram", "64MiB"):

            def pooled_again() -> bool:
                before = engine.metric(HITS)
                assert tokens_of(engine.run(asked[:2], MAX_TOKENS)) == reference.tokens(asked[:2])
                settled(engine)
                return engine.metric(HITS) - before == 2 * pooled_tokens(asked[0])

            until(pooled_again, "the engine to use the new node")


def test_preempted_requests_go_on(lab: Lab, reference, alone) -> None:
    """Four requests of 250 tokens need 32 blocks, the engine has 20: some are preempted, while blocks are
    held for saves, and what they lose comes back from the pool."""
    asked = numbered(4, 100)
    with lab.engine("kv_both", options=alone, num_gpu_blocks_override=21, max_model_len=512) as engine:
        for _ in range(2):
            assert tokens_of(engine.run(asked, 150)) == reference.tokens(asked, 150)
            settled(engine)
        metrics = engine.state()["metrics"]
        assert metrics["num_preemptions_total"] > 0
        assert metrics[LOADED] >= 4
        assert metrics.get(FAILED, 0) == 0


def test_layers_with_a_sliding_window(lab: Lab, alone) -> None:
    """Two KV cache groups: of the one with a window only what is still looked at is saved and loaded."""
    asked = numbered(4, 400)
    model = str(model_folder("sliding"))
    with lab.engine(None, model=model) as single:
        expected = tokens_of(single.run(asked, MAX_TOKENS))
    with lab.engine("kv_both", options=alone, model=model) as engine:
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == expected
        settled(engine)
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == expected
        assert engine.metric(HITS) == 4 * pooled_tokens(asked[0])
        assert engine.metric(FAILED) == 0
        engine.all_blocks_free()


def test_a_node_that_stands_still_holds_nothing_up(lab: Lab, reference, tmp_path: Path) -> None:
    asked = numbered(4, 150)
    options = {"cluster.directory": str(tmp_path), "pool.save_timeout_s": 2, "pool.load_timeout_s": 2}
    with NodeChild(tmp_path, "--dram", "64MiB") as node, lab.engine("kv_both", options=options) as engine:
        engine.run(asked[:2], MAX_TOKENS)
        settled(engine)
        node.pause()
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == reference.tokens(asked)
        settled(engine)
        node.resume()


@pytest.mark.slow
def test_tensor_parallel(lab: Lab, shared) -> None:
    """Each rank saves and loads its own part, and another number of ranks shares nothing with them."""
    asked = numbered(4, 150)
    with lab.engine("kv_both", options=shared, tensor_parallel_size=2) as engine:
        first = tokens_of(engine.run(asked, MAX_TOKENS))
        settled(engine)
        assert tokens_of(engine.run(asked, MAX_TOKENS)) == first
        assert engine.metric(HITS) == 4 * pooled_tokens(asked[0])
        assert engine.metric(LOADED) == 8
        engine.all_blocks_free()
    with lab.engine("kv_both", options=shared) as other:
        other.run(asked, MAX_TOKENS)
        assert other.metric(HITS) == 0
        other.all_blocks_free()
