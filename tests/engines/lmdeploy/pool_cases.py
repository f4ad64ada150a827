"""LMDeploy's own `MooncakeStoreConnector` on our module `mooncake`. A program: a JSON line for each case.

Engines with LMDeploy's CacheEngine, connector, threads and look-up server; no model, so that the blocks are
filled and checked here. The environment says which node keeps the objects (MOONCAKE_CONFIG_PATH).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import world
from lmdeploy.messages import KVTransferConfig
from lmdeploy.pytorch.kv_connector.base import KVConnectorRole
from lmdeploy.pytorch.kv_connector.factory import build_kv_connector
from lmdeploy.pytorch.kv_connector.mooncake.store import worker as store_worker
from lmdeploy.pytorch.kv_connector.mooncake.store.data import (
    MooncakeStoreConnectorMetadata,
    MooncakeStoreLoadRequest,
    MooncakeStoreSaveRequest,
    build_prefix_block_hashes,
)
from world import ANSWER_S, BLOCK, DECODE, PREFILL

# What the connector asks of rows and of this machine, whose memory is the host's.
torch.Tensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
store_worker._get_local_hostname = lambda: "127.0.0.1"

_numbers = itertools.count(1)
PROMPT = [at * at % 1000 for at in range(7 * BLOCK)]


class Engine:
    """An engine's only worker that pools."""

    def __init__(self, name: str, model: str = "tiny") -> None:
        self.blocks = world.Worker(name)
        self.blocks.cache.cache_config.kv_transfer_config = KVTransferConfig(
            "MooncakeStoreConnector", "kv_both", {"model_name": model}
        )
        self.connector: Any = build_kv_connector(KVConnectorRole.WORKER, self.blocks.cache.cache_config)
        self.connector.register_kv_caches(self.blocks.cache.connector_kv_caches)

    def save(self, tokens: list[int], block_ids: list[int]) -> None:
        """Save whole blocks of a prompt, and wait until they are."""
        number = next(_numbers)
        ids = tuple(block_ids)
        order = MooncakeStoreSaveRequest(number, number, 0, ids, ids, hashes(tokens)[: len(ids)])
        self._run(MooncakeStoreConnectorMetadata(save_requests=(order,)), "completed_save_ids", number)

    def load(self, tokens: list[int], block_ids: list[int]) -> set[int]:
        """Load blocks of a prompt; returns those that failed."""
        number = next(_numbers)
        count = len(block_ids)
        order = MooncakeStoreLoadRequest(number, tuple(block_ids), hashes(tokens)[:count], count)
        orders = MooncakeStoreConnectorMetadata(load_requests=(order,))
        found = self._run(orders, "finished_receiving", number)
        return set(found.invalid_block_ids)

    def known(self, tokens: list[int]) -> int:
        """How many tokens of a prompt the pool has."""
        return int(self.connector.connector_worker.lookup(len(tokens), hashes(tokens)))

    def _run(self, orders: MooncakeStoreConnectorMetadata, field: str, number: int) -> Any:
        self.connector.bind_connector_metadata(orders)
        self.connector.start_load_kv()
        self.connector.start_save_kv()
        self.connector.clear_connector_metadata()
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            found = self.connector.get_finished()
            if number in (getattr(found, field) or ()):
                return found
            time.sleep(0.005)
        raise AssertionError(f"{field} does not name {number}")


def hashes(tokens: list[int]) -> tuple[bytes, ...]:
    return build_prefix_block_hashes(tokens, BLOCK)


def what_one_engine_saves_another_loads() -> None:
    first, second = Engine(PREFILL), Engine(DECODE)
    saved, into = [3, 9, 4, 20, 11, 2], [39, 0, 7, 1, 30, 12]
    first.blocks.fill({block: 10 + at for at, block in enumerate(saved)}, 99)
    assert second.known(PROMPT) == 0
    first.save(PROMPT, saved)
    assert first.known(PROMPT) == second.known(PROMPT) == len(saved) * BLOCK
    second.blocks.fill({}, 255)
    assert second.load(PROMPT, into) == set()
    expected = [255] * second.blocks.blocks
    for at, block in enumerate(into):
        expected[block] = 10 + at
    assert second.blocks.values() == expected, second.blocks.values()
    first.connector.shutdown()
    assert second.known(PROMPT) == len(saved) * BLOCK  # the node keeps it
    second.connector.shutdown()


def another_model_or_prompt_finds_nothing() -> None:
    one, other = Engine(PREFILL), Engine(DECODE, "other")
    one.save(PROMPT, [1, 2])
    assert other.known(PROMPT) == 0
    assert one.known([*PROMPT[:BLOCK], *PROMPT]) == BLOCK
    assert one.known(PROMPT[1:]) == 0
    for each in (one, other):
        each.connector.shutdown()


def a_block_that_is_gone_is_named() -> None:
    engine, prompt = Engine(PREFILL), PROMPT[::-1]
    engine.save(prompt, [1, 2])
    engine.blocks.fill({}, 7)
    assert engine.load(prompt, [5, 6]) == set()
    assert 8 in engine.load(prompt, [5, 6, 8])  # the third was never saved
    assert engine.blocks.values()[8] == 7
    engine.connector.shutdown()


CASES: list[Callable[[], None]] = [
    what_one_engine_saves_another_loads,
    another_model_or_prompt_finds_nothing,
    a_block_that_is_gone_is_named,
]

if __name__ == "__main__":
    for check in CASES:
        problem = ""
        try:
            check()
        except Exception:  # noqa: BLE001  (told to the test)
            problem = traceback.format_exc()
        print(json.dumps({"case": check.__name__, "problem": problem}), flush=True)
