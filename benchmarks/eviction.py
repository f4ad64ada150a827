"""Replays traces through the eviction policies of a node, beside the best that knowing the future could do.

    python benchmarks/eviction.py [--json FILE] [--docs docs/benchmarks.md]

A figure is the part of all prompt tokens that were found, in percent, with room for so many million tokens.
The result is the same on every machine. Takes half a minute.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.traces import BLOCK_TOKENS, Numbers, Trace, mooncake, tool_agent  # noqa: E402
from benchmarks.transfer_bench.rows import Row, write_json, write_page  # noqa: E402

from kvferry import _native  # noqa: E402

POLICIES = ("lru", "lfu", "s3fifo", "prefix")
CAPACITIES = (1, 3, 10, 50)  # millions of tokens
BYTES_PER_TOKEN = 320 << 10  # a dense 70B model with 8 KV heads
NO_WORSE = ">= 0.995"  # than LRU: what recency alone decides may go either way
NO_CHAINS = ">= 0.995"  # than S3-FIFO, which judges each object by itself, too
TARGETS = {("conversation", 3): ">= 1.3", ("conversation", 1): ">= 1.5"}
MOST_BYTES = "<= 24"
LONE = 1 << 40  # ids of lone objects
LONE_SHARES = (0.1, 0.2)  # of the capacity


def optimum(trace: Trace, blocks: int) -> Numbers:
    """Return the hits of each request if those blocks are kept that are used again soonest (Belady, 1966)."""
    never = len(trace.offsets)
    following = np.full(len(trace.ids), never, dtype=np.int64)
    latest: dict[int, int] = {}
    bounds = trace.offsets.tolist()
    ids = trace.ids.tolist()
    for request in range(len(bounds) - 2, -1, -1):
        for at in range(bounds[request], bounds[request + 1]):
            following[at] = latest.get(ids[at], never)
            latest[ids[at]] = request
    uses = following.tolist()
    held: dict[int, int] = {}  # block: when it is used next
    heap: list[tuple[int, int, int]] = []  # the last one used first; of those the last in its chain
    hits = np.zeros(len(bounds) - 1, dtype=np.uint64)
    for request in range(len(bounds) - 1):
        chain = range(bounds[request], bounds[request + 1])
        hits[request] = next((n for n, at in enumerate(chain) if ids[at] not in held), len(chain))
        for depth, at in enumerate(chain):
            held.pop(ids[at], None)
            if uses[at] < never:
                held[ids[at]] = uses[at]
                heapq.heappush(heap, (-uses[at], -depth, ids[at]))
        while len(held) > blocks:
            use, _depth, block = heapq.heappop(heap)
            if held.get(block) == -use:
                del held[block]
    return hits


def replay(trace: Trace, policy: str, tokens: int, *, chained: bool = True) -> tuple[float, float]:
    """Return the hit rate and the bytes that the policy took for each object. `chained`: the policy is told
    which block comes before which.
    """
    sizes = np.full(len(trace.ids), BLOCK_TOKENS * BYTES_PER_TOKEN, dtype=np.uint64)
    hits, policy_bytes, objects = _native.replay_trace(
        trace.ids, trace.offsets, sizes, tokens * BYTES_PER_TOKEN, policy, chained
    )
    return trace.hit_rate(hits), policy_bytes / objects


def lone(trace: Trace, policy: str, tokens: int, share: float) -> float:
    """Return the part of lone objects that is found. Between the requests of the trace, one in 50, an object
    without a chain is put, and read once when about `share` of the capacity was asked for since.
    """
    wait = max(1, round(share * tokens / BLOCK_TOKENS * (len(trace.offsets) - 1) / len(trace.ids)))
    chains: list[list[int]] = []
    reads: list[int] = []
    due: dict[int, int] = {}
    for request, (begin, end) in enumerate(itertools.pairwise(trace.offsets.tolist())):
        chains.append(trace.ids[begin:end].tolist())
        if request in due:
            reads.append(len(chains))
            chains.append([due[request]])
        if request % 50 == 0:
            due[request + wait] = LONE + request
            chains.append([LONE + request])
    lengths = np.cumsum([0, *map(len, chains)], dtype=np.uint64)
    ids = np.fromiter(itertools.chain.from_iterable(chains), dtype=np.uint64)
    sizes = np.full(len(ids), BLOCK_TOKENS * BYTES_PER_TOKEN, dtype=np.uint64)
    hits = _native.replay_trace(ids, lengths, sizes, tokens * BYTES_PER_TOKEN, policy)[0]
    return float(hits[reads[len(reads) // 4 :]].mean())  # the first ones were put while there was room


def compare(trace: Trace, millions: int) -> tuple[list[Row], dict[str, float]]:
    """Rows of the prefix policy beside the others and the optimum; and all figures by name."""
    tokens = millions * 1_000_000
    figures = {policy: 100 * replay(trace, policy, tokens)[0] for policy in POLICIES}
    for policy in ("lru", "s3fifo", "prefix"):
        figures[f"{policy}, no chains"] = 100 * replay(trace, policy, tokens, chained=False)[0]
    figures["optimum"] = 100 * trace.hit_rate(optimum(trace, tokens // BLOCK_TOKENS))
    target = TARGETS.get((trace.name, millions), NO_WORSE)
    rows = [
        Row(
            f"hits, {trace.name}",
            f"{millions}M tokens",
            figures["prefix"],
            "%",
            other,
            figures[other],
            target if other == "lru" else "",
        )
        for other in ("lru", "lfu", "s3fifo", "optimum")
    ]
    rows += [
        Row(
            f"hits, {trace.name}, no chains",
            f"{millions}M tokens",
            figures["prefix, no chains"],
            "%",
            other,
            figures[f"{other}, no chains"],
            NO_CHAINS if other == "s3fifo" else "",
        )
        for other in ("lru", "s3fifo")
    ]
    return rows, figures


def lone_rows(trace: Trace, millions: int) -> list[Row]:
    """What becomes of single objects among chains."""
    return [
        Row(
            f"lone objects, {trace.name}",
            f"{millions}M tokens, read after {share:.0%}",
            100 * lone(trace, "prefix", millions * 1_000_000, share),
            "%",
            "s3fifo",
            100 * lone(trace, "s3fifo", millions * 1_000_000, share),
            ">= 0.99",
        )
        for share in LONE_SHARES
    ]


def memory_rows(trace: Trace) -> list[Row]:
    """What each policy takes for an object of many, the trace's blocks all held."""
    return [
        Row("memory of the policy", policy, replay(trace, policy, 1 << 40)[1], "B/object", target=MOST_BYTES)
        for policy in POLICIES
    ]


def table(figures: dict[tuple[str, int], dict[str, float]]) -> str:
    """All figures as a Markdown table."""
    names = (*POLICIES, "prefix, no chains", "optimum")
    lines = ["| trace | tokens | " + " | ".join(names) + " |", "|---|--:|" + "--:|" * len(names)]
    for (trace, millions), one in figures.items():
        lines.append(f"| {trace} | {millions} M | " + " | ".join(f"{one[name]:.1f}" for name in names) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to it")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into this page")
    arguments = parser.parse_args()
    rows: list[Row] = []
    figures: dict[tuple[str, int], dict[str, float]] = {}
    traces = [mooncake("conversation"), mooncake("synthetic"), tool_agent()]
    for trace in traces:
        for millions in CAPACITIES:
            more, figures[trace.name, millions] = compare(trace, millions)
            rows += more
        rows += lone_rows(trace, 3)
    rows += memory_rows(traces[0])
    print(table(figures))
    for row in rows:
        if row.met is not None:
            value = f"{row.ours:.4g} {row.unit}" + (
                f", {row.ratio:.3f} of {row.against}" if row.ratio else ""
            )
            print(f"{row.bench}, {row.case}: {value}, target {row.target}: {'met' if row.met else 'MISSED'}")
    if arguments.json:
        write_json(arguments.json, rows, {})
    if arguments.docs:
        write_page(arguments.docs, {"eviction": table(figures)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
