"""Names 100,000-token prompts and finds them among 925,000 blocks: KVFerry beside vLLM's scheme, in turns.

    python benchmarks/index.py [--quick] [--json FILE] [--docs FILE] [--vllm PYTHON]

`--vllm`: an interpreter that imports vLLM; without it the same scheme is run by Python's own library. All
sides take turns, each with a few prompts in a row; a figure is the median of all prompts. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from benchmarks.index_bench.prompts import (  # noqa: E402
    BLOCK_TOKENS,
    DOCUMENTS,
    SYSTEM_TOKENS,
    distinct_blocks,
    prompt,
)
from benchmarks.transfer_bench.lines import Helper  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json, write_page  # noqa: E402

from kvferry.index import ChainIndex, KeyIdentity, KeySpace  # noqa: E402
from kvferry.index.keys import Algorithm  # noqa: E402

ALGORITHMS: tuple[Algorithm, ...] = ("sha256", "xxh3")
IDENTITY = KeyIdentity(model="benchmark", block_tokens=BLOCK_TOKENS)
LABEL = {"sha256": "SHA-256", "xxh3": "XXH3-128"}
HASH_TARGET = {"sha256": "<= 0.8", "xxh3": "<= 0.2"}
INSTANCES = 4
BURST, THEIR_BURST = 8, 2  # prompts that a side takes in a row; theirs takes a hundred times as long for each
Times = dict[str, list[float]]


class Ours:
    """An index for each algorithm, filled with the same documents; the instances hold them in turn."""

    def __init__(self) -> None:
        self.spaces = {name: KeySpace(IDENTITY, algorithm=name, secret="benchmark") for name in ALGORITHMS}
        self.indexes = {name: ChainIndex() for name in ALGORITHMS}
        self.insert_s: Times = defaultdict(list)

    def build(self, documents: int) -> None:
        for number in range(documents):
            tokens = prompt(number)
            for name in ALGORITHMS:
                keys = self.spaces[name].keys(tokens)
                self.insert_s[name].append(timed(self.indexes[name].stored, number % INSTANCES, keys)[0])

    def round(self, name: Algorithm, tokens: np.ndarray, times: Times) -> int:
        """Hash and match; the other search comes last, as it finds what it looks at in the cache."""
        index = self.indexes[name]
        hash_s, keys = timed(self.spaces[name].keys, tokens)
        match_s, found = timed(index.match, keys)
        times[f"{name} hash"].append(hash_s)
        times[f"{name} match"].append(match_s)
        times[f"{name} both"].append(hash_s + match_s)
        times[f"{name} closed"].append(timed(lambda: index.match(keys, closed=True))[0])
        return int(found.max())


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - started, result


def measure(ours: Ours, vllm: Helper, documents: int, rounds: int, first: int) -> Times:
    """Rounds of all sides on documents first, first + 7, ...; of later ones, the system prompt is found."""
    times: Times = defaultdict(list)
    hits = first < documents
    expected = (len(prompt(0)) if hits else SYSTEM_TOKENS) // BLOCK_TOKENS
    numbers = itertools.count(first, 7)
    for _ in range(rounds):
        burst = [number % documents if hits else number for number in itertools.islice(numbers, BURST)]
        prompts = [prompt(number) for number in burst]
        for name, tokens in itertools.product(ALGORITHMS, prompts):
            assert ours.round(name, tokens, times) == expected
        for number in burst[:THEIR_BURST]:
            theirs = vllm.ask({"match": number})
            assert theirs["blocks"] == expected
            times["vllm hash"].append(theirs["hash_s"])
            times["vllm match"].append(theirs["match_s"])
            times["vllm both"].append(theirs["hash_s"] + theirs["match_s"])
    return times


def hit_rows(times: Times, case: str, scheme: str, targets: bool) -> Iterator[Row]:
    """What ours takes, and how much faster it is than theirs: in the median, and at best on either side."""
    middle = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    best = {name: min(values) * 1e3 for name, values in times.items()}
    for name in ALGORITHMS:
        label = LABEL[name]
        for what, bench in (("hash", "hash"), ("match", "match each instance"), ("closed", "match, closed")):
            target = (
                {"hash": HASH_TARGET[name], "match": "<= 0.1", "closed": "<= 0.1"}[what] if targets else ""
            )
            yield Row(f"{bench}, {label}", case, middle[f"{name} {what}"], "ms", target=target)
            yield Row(f"{bench}, {label}, the best", case, best[f"{name} {what}"], "ms")
        for of, suffix in ((middle, ""), (best, ", the best")):
            rate, theirs = 1 / of[f"{name} both"], 1 / of["vllm both"]
            target = ">= 15" if targets else ""
            yield Row(f"hash and match, {label}{suffix}", case, rate, "per ms", scheme, theirs, target)


def build_rows(ours: Ours, built: dict[str, Any], documents: int) -> Iterator[Row]:
    """Inserting, and what a block takes."""
    blocks = distinct_blocks(documents)
    case = f"{blocks} blocks"
    per_document = len(prompt(0)) // BLOCK_TOKENS
    theirs = per_document / statistics.median(built["insert_s"]) / 1e6
    for name in ALGORITHMS:
        stats = ours.indexes[name].stats()
        assert stats.blocks == blocks
        rate = per_document / statistics.median(ours.insert_s[name]) / 1e6
        yield Row(f"insert, {LABEL[name]}", case, rate, "M blocks/s", built["scheme"], theirs)
        yield Row(
            f"memory, {LABEL[name]}", case, stats.memory_bytes / blocks, "bytes per block", target="<= 64"
        )


def about(scheme: str, seconds: float) -> list[str]:
    """What the figures depend on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    return [
        f"- {model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load {load:.1f}",
        f"- beside {scheme}; {seconds:.0f} s",
    ]


def main() -> None:
    """Measure, print, write the files."""
    parser = argparse.ArgumentParser(description="Hash prompts and find them in an index.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents, three rounds")
    parser.add_argument(
        "--rounds", type=int, default=15, help="turns of each side for each case (default 15)"
    )
    parser.add_argument("--vllm", default=sys.executable, help="an interpreter that imports vLLM")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--docs", type=Path, help="write the table into this page")
    options = parser.parse_args()
    documents, rounds = (DOCUMENTS // 10, 3) if options.quick else (DOCUMENTS, options.rounds)
    started = time.monotonic()
    ours = Ours()
    ours.build(documents)
    script = ROOT / "benchmarks" / "index_bench" / "vllm_scheme.py"
    with Helper([options.vllm, str(script)]) as vllm:
        built = vllm.ask({"build": documents})
        rows = list(build_rows(ours, built, documents))
        for case, first in (("full hit", 0), (f"{SYSTEM_TOKENS}-token hit", 10 * DOCUMENTS)):
            times = measure(ours, vllm, documents, rounds, first)
            rows += hit_rows(times, f"100k tokens, {case}", built["scheme"], targets=first == 0)
    lines = about(built["scheme"], time.monotonic() - started)
    print("\n".join([*lines, "", table(rows)]))
    if options.json:
        write_json(options.json, rows, {"about": lines})
    if options.docs:
        write_page(options.docs, {"index about": "\n".join(lines), "index": table(rows)})


if __name__ == "__main__":
    main()
