"""Names of KV blocks, and who holds them: canonical block keys (docs/keys.md) and an index of their chains.

Keys travel as arrays of shape [n, 16] and type uint8, one row a key, or as `bytes` of 16 where there is one.
"""

from __future__ import annotations

from kvferry._native import IndexStats, Stored
from kvferry.index.chain_index import ChainIndex
from kvferry.index.engine_events import EngineBlocks, EventBatch, EventKeys, decode_batch
from kvferry.index.keys import ContentSpan, KeyChain, KeyIdentity, KeySpace
from kvferry.index.prefix_index import PrefixIndex

__all__ = [
    "ChainIndex",
    "ContentSpan",
    "EngineBlocks",
    "EventBatch",
    "EventKeys",
    "IndexStats",
    "KeyChain",
    "KeyIdentity",
    "KeySpace",
    "PrefixIndex",
    "Stored",
    "decode_batch",
]
