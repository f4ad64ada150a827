"""Prefixes shared through the pool: the same tokens as one engine, and exactly the hits that were stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import Lab, LabEngine
from engines.vllm_inprocess.prompts import BLOCK, MAX_TOKENS, prompts, tokens_of
from kvferry.testing.nodes import NodeChild

pytestmark = pytest.mark.engine

HITS = "external_prefix_cache_hits_total"
LOADED = "kvferry_pool_loads_total|loaded"
FAILED = "kvferry_pool_loads_total|failed"
SAVED = "kvferry_pool_saved_blocks_total|saved"
HANDED_OFF = "kvferry_handoff_loads_total|loaded"
BLOCK_BYTES = 4 * 2 * 4 * BLOCK * 64 * 4  # layers, K and V, heads, tokens, head dim, float32


def full_blocks(tokens: int) -> int:
    return tokens // BLOCK


def pooled_tokens(prompt: list[int]) -> int:
    """What of a stored prompt comes from the pool."""
    return full_blocks(len(prompt)) * BLOCK


@pytest.fixture
def alone(tmp_path: Path) -> Mapping[str, Any]:
    """Options of an engine that finds no node."""
    return {"cluster.directory": str(tmp_path), "store.dram": 256 << 20}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeChild]:
    with NodeChild(tmp_path, "--dram", "256MiB") as started:
        yield started


@pytest.fixture
def shared(node: NodeChild) -> Mapping[str, Any]:
    """Options of engines that use the node."""
    return {"cluster.directory": node.cluster.directory}


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
