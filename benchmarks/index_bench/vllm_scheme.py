"""How vLLM names and finds blocks, in a process of its own that answers JSON lines:

    {"build": N}   index N documents            -> {"scheme": ..., "hash_s": [...], "insert_s": [...]}
    {"match": I}   hash and look up document I  -> {"hash_s": ..., "match_s": ..., "blocks": ...}

Runs under any interpreter: with vLLM's own functions where it is importable, else with the same steps written
out (SHA-256 of the pickled tuple of parent, tokens and extra keys; a dict by hash and group).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.index_bench.prompts import BLOCK_TOKENS, prompt

GROUP = 0


def sha256(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def hash_block_tokens(function: Any, parent: bytes | None, tokens: Any, extra: Any = None) -> bytes:
    return function((parent or bytes(32), tuple(tokens), extra))


def make_block_hash_with_group_id(block_hash: bytes, group: int) -> bytes:
    return block_hash + group.to_bytes(4, "big")


class BlockMap:
    """Hash with group to a block."""

    def __init__(self) -> None:
        self._cache: dict[bytes, Any] = {}

    def get_one_block(self, key: bytes) -> Any:
        return self._cache.get(key)

    def insert(self, key: bytes, block: Any) -> None:
        self._cache[key] = block


class Block:
    """Stands for vLLM's own record of a block."""

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id


class Scheme:
    """vLLM's functions, or the same steps."""

    def __init__(self) -> None:
        self.hash_function: Any = sha256
        self.hash_block: Any = hash_block_tokens
        self.with_group: Any = make_block_hash_with_group_id
        self.block: Any = Block
        self.map: Any = BlockMap()
        self.name = "vLLM's scheme (sha256)"
        try:
            from vllm import __version__  # type: ignore[import-not-found]
            from vllm.utils.hashing import sha256 as vllm_sha256  # type: ignore[import-not-found]
            from vllm.v1.core import block_pool, kv_cache_utils  # type: ignore[import-not-found]
        except ImportError:
            return
        self.hash_function = vllm_sha256
        self.hash_block = kv_cache_utils.hash_block_tokens
        self.with_group = kv_cache_utils.make_block_hash_with_group_id
        self.block = kv_cache_utils.KVCacheBlock
        self.map = block_pool.BlockHashToBlockMap()
        kv_cache_utils.init_none_hash(vllm_sha256)
        self.name = f"vLLM {__version__} (sha256)"

    def hashes(self, tokens: list[int]) -> list[bytes]:
        found: list[bytes] = []
        parent = None
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            parent = self.hash_block(self.hash_function, parent, tokens[start : start + BLOCK_TOKENS], None)
            found.append(parent)
        return found

    def insert(self, hashes: list[bytes], first_id: int) -> None:
        for number, block_hash in enumerate(hashes, first_id):
            key = self.with_group(block_hash, GROUP)
            if self.map.get_one_block(key) is None:
                self.map.insert(key, self.block(number))

    def match(self, hashes: list[bytes]) -> int:
        blocks = []
        for block_hash in hashes:
            block = self.map.get_one_block(self.with_group(block_hash, GROUP))
            if block is None:
                break
            blocks.append(block)
        return len(blocks)


def timed(call: Any, *arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - started, result


def build(scheme: Scheme, documents: int) -> dict[str, Any]:
    hash_s, insert_s = [], []
    for number in range(documents):
        took, hashes = timed(scheme.hashes, prompt(number).tolist())
        hash_s.append(took)
        insert_s.append(timed(scheme.insert, hashes, number * len(hashes))[0])
    return {"scheme": scheme.name, "hash_s": hash_s, "insert_s": insert_s}


def match(scheme: Scheme, number: int) -> dict[str, Any]:
    hash_s, hashes = timed(scheme.hashes, prompt(number).tolist())
    match_s, blocks = timed(scheme.match, hashes)
    return {"hash_s": hash_s, "match_s": match_s, "blocks": blocks}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")  # imports may print
    os.dup2(2, 1)
    scheme = Scheme()
    for line in sys.stdin:
        request = json.loads(line)
        answer = build(scheme, request["build"]) if "build" in request else match(scheme, request["match"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
