"""Traces of requests for chains of blocks: those in tests/data/traces, and one that is made up."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

TRACES = Path(__file__).resolve().parents[1] / "tests" / "data" / "traces"
BLOCK_TOKENS = 512

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival. Request i asks for `ids[offsets[i]:offsets[i + 1]]`."""

    name: str
    ids: Numbers
    offsets: Numbers
    tokens: Numbers  # of the prompt of each request

    def hit_rate(self, hits: Numbers) -> float:
        """The part of all prompt tokens that lie in the first `hits` blocks of their requests."""
        return float(np.minimum(hits * BLOCK_TOKENS, self.tokens).sum() / self.tokens.sum())


def _trace(name: str, chains: list[list[int]], tokens: list[int]) -> Trace:
    offsets = np.cumsum([0, *map(len, chains)], dtype=np.uint64)
    ids = np.fromiter((block for chain in chains for block in chain), dtype=np.uint64)
    return Trace(name, ids, offsets, np.array(tokens, dtype=np.uint64))


def mooncake(name: str) -> Trace:
    """`conversation` or `synthetic`, of the Mooncake paper."""
    with gzip.open(TRACES / f"mooncake_{name}_trace.jsonl.gz", "rt") as lines:
        requests = [json.loads(line) for line in lines]
    return _trace(name, [one["hash_ids"] for one in requests], [one["input_length"] for one in requests])


def tool_agent(requests: int = 23_608, seed: int = 1) -> Trace:
    """A trace like Mooncake's `tool&agent`, which cannot be had: two hot system prompts and conversations.

    37 % of the requests begin with the same 12 blocks and 14 % with the same 5, each with a tail of its own;
    the others are turns of conversations that share one block and grow: two turns in five are not the last.
    """
    rng = np.random.default_rng(seed)
    made = 1

    def new(count: int) -> list[int]:
        nonlocal made
        made += count
        return list(range(made - count, made))

    first, tools, agent = new(1), new(11), new(4)
    waiting: list[list[list[int]]] = [[] for _ in range(requests + 20_000)]  # turns to come, by request
    chains: list[list[int]] = []
    for now in range(requests):
        kind = rng.random()
        if kind < 0.37:
            chain = first + tools + new(int(rng.integers(1, 6)))
        elif kind < 0.51:
            chain = first + agent + new(int(rng.integers(1, 3)))
        else:
            history = waiting[now].pop() if waiting[now] else first + new(int(rng.lognormal(2.3, 0.9)))
            waiting[now + 1] += waiting[now]  # one a time
            chain = history + new(1 + int(rng.geometric(0.5)))
            if rng.random() < 0.4:
                waiting[now + 1 + int(rng.lognormal(6.6, 0.8)) % 19_000].append(chain[:-1])
        chains.append(chain)
    tokens = [len(chain) * BLOCK_TOKENS - int(rng.integers(0, BLOCK_TOKENS)) for chain in chains]
    return _trace("tool&agent, made up", chains, tokens)
