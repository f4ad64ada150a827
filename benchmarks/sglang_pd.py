"""What SGLang's prefill server does to send a prompt: KVFerry's backend beside the real Mooncake over TCP.

    python benchmarks/sglang_pd.py [--json FILE] [--rounds N] [--pages N] [--transport tcp|shm]

The managers are SGLang's own classes of both backends, a prefill rank in one process and decode ranks in
another. Timed is the call by which a worker thread sends a chunk of `--pages` pages of 16 tokens, 64 KiB of
KV cache for each token (`send_kvcache`, `send_kvcache_slice`), from page numbers to the last byte's arrival.
The backends take turns; medians over the rounds. What has arrived is compared. A backend of which a transfer
fails is not asked again in that case. KVFerry moves over TCP, too, unless `--transport shm` lets it use what
one host offers.

`neighbours`: the pages lie side by side on both sides. `scattered`: they do not. `tp1_to_tp2`: scattered, to
a rank that holds half of the heads, so that each token of each buffer moves by itself.

Needs KVFERRY_SGLANG_PYTHON (`python3 -m tools.envs sglang`) and KVFERRY_MOONCAKE_PYTHON, an interpreter with
Mooncake's package (`python3 -m tools.envs bench-peers`), from which only that package is taken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from engines.sglang_inprocess.pd_world import Rank, Size, World, prepare_sglang  # noqa: E402

SIZE = Size(pages=256, page=16, layers=16, heads=8, head_bytes=256)
BACKENDS = ("kvferry", "mooncake")


def serve(port: int) -> None:
    """The decode ranks: tell where they are, and stay until the other end closes."""
    prepare_sglang(port)
    told: dict[str, Any] = {}
    ranks = []
    for backend in BACKENDS:
        for tp_size in (1, 2):
            rank = Rank("decode", tp_size=tp_size, size=SIZE, backend=backend)
            ranks.append(rank)
            told[f"{backend}{tp_size}"] = {
                "session": rank.manager.get_session_id(),
                "addresses": [each.ctypes.data for each in rank.kv],
                "page_bytes": int(rank.kv[0][0].nbytes),
            }
    tell(told)
    for line in sys.stdin:
        order = json.loads(line)
        of_size = [rank for rank in ranks if rank.tp_size == order["tp_size"]]
        tell({rank.backend: checksum(rank, order["pages"]) for rank in of_size})
        for rank in of_size:
            for buffer in rank.kv:
                buffer[...] = 0
    os._exit(0)


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def checksum(rank: Rank, pages: list[int]) -> int:
    """Of some pages of all buffers, in order."""
    found = 0
    for buffer in rank.kv:
        found = zlib.crc32(np.ascontiguousarray(buffer[pages]), found)
    return found


class Sender:
    """The prefill rank of one backend, and the decode ranks that it sends to."""

    def __init__(self, backend: str, told: dict[str, Any]) -> None:
        self.rank = Rank("prefill", size=SIZE, backend=backend)
        self.rank.fill(1)
        self._to = {tp_size: told[f"{backend}{tp_size}"] for tp_size in (1, 2)}
        self._threads = ThreadPoolExecutor(4)

    def whole(self, near: np.ndarray, far: np.ndarray) -> int:
        to = self._to[1]
        status: int = self.rank.manager.send_kvcache(
            to["session"], near, to["addresses"], far, self._threads, dst_layer_ids=[]
        )
        return status

    def half(self, near: np.ndarray, far: np.ndarray) -> int:
        to = self._to[2]
        status: int = self.rank.manager.send_kvcache_slice(
            to["session"], near, to["addresses"], far, 0, 2, to["page_bytes"], self._threads, []
        )
        return status


def timed(send: Callable[[np.ndarray, np.ndarray], int], near: np.ndarray, far: np.ndarray) -> float:
    """Milliseconds of one call; infinite if it failed."""
    started = time.perf_counter()
    failed = send(near, far) != 0
    return math.inf if failed else (time.perf_counter() - started) * 1e3


class Case(NamedTuple):
    """How a chunk lies in both pools: `whole` pages, or the `half` of their heads."""

    kind: str
    near: np.ndarray
    far: np.ndarray

    @property
    def pieces(self) -> int:
        per_buffer = self.near.size * (1 if self.kind == "whole" else SIZE.page)
        return 2 * SIZE.layers * (1 if self._is_one_run else per_buffer)

    @property
    def _is_one_run(self) -> bool:
        return self.kind == "whole" and bool((np.diff(self.near) == 1).all())

    @property
    def mib(self) -> float:
        return self.near.size * (1.0 if self.kind == "whole" else 0.5)


def cases_of(pages: int) -> dict[str, Case]:
    shuffled = np.random.default_rng(1).permutation(SIZE.pages)[: 2 * pages].astype(np.int32)
    in_order = np.arange(pages, dtype=np.int32)
    return {
        "neighbours": Case("whole", in_order, in_order),
        "scattered": Case("whole", shuffled[:pages], shuffled[pages:]),
        "tp1_to_tp2": Case("half", shuffled[:pages], shuffled[pages:]),
    }


def take_turns(senders: dict[str, Sender], case: Case, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round; the first one connects and does not count."""
    found: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for number in range(rounds + 1):
        for backend in BACKENDS if number % 2 else BACKENDS[::-1]:
            if math.inf not in found[backend]:
                found[backend].append(timed(getattr(senders[backend], case.kind), case.near, case.far))
    return found


def check_what_arrived(child: subprocess.Popen[str], name: str, case: Case) -> None:
    """Compare what the backends have moved; raises `RuntimeError`."""
    assert child.stdin is not None
    assert child.stdout is not None
    order = {"tp_size": 1 if case.kind == "whole" else 2, "pages": case.far.tolist()}
    child.stdin.write(json.dumps(order) + "\n")
    child.stdin.flush()
    if len(set(json.loads(child.stdout.readline()).values())) != 1:
        raise RuntimeError(f"{name}: the backends moved different bytes")


def rows_of(name: str, case: Case, found: dict[str, list[float]], transport: str) -> Iterator[dict[str, Any]]:
    for backend, times in found.items():
        how = transport if backend == "kvferry" else "tcp"
        row = {"case": name, "backend": backend, "transport": how, "pieces": case.pieces, "mib": case.mib}
        if math.inf in times:
            yield {**row, "failed": True}
        else:
            ms = statistics.median(times[1:])
            yield {**row, "ms": round(ms, 2), "gib_s": round(case.mib / 1024 / ms * 1e3, 2)}


def measure(rounds: int, pages: int, transport: str) -> list[dict[str, Any]]:
    """Run it; see the module's text."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = int(place.getsockname()[1])
    command = [sys.executable, __file__, "--serve", str(port)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rows: list[dict[str, Any]] = []
    try:
        prepare_sglang(port)
        World(port)  # the prefill ranks register with its bootstrap server
        assert child.stdout is not None
        told = next(json.loads(line) for line in child.stdout if line.startswith('{"'))
        senders = {backend: Sender(backend, told) for backend in BACKENDS}
        for name, case in cases_of(pages).items():
            found = take_turns(senders, case, rounds)
            if not any(math.inf in times for times in found.values()):
                check_what_arrived(child, name, case)
            rows += rows_of(name, case, found, transport)
    finally:
        child.kill()
        child.wait(30)
    return rows


def mooncake_alone(python: Path, folder: Path) -> str:
    """A folder for PYTHONPATH with an environment's Mooncake, and nothing else of it."""
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    for found in (site / "mooncake", *site.glob("mooncake_transfer_engine*")):
        (folder / found.name).symlink_to(found)
    return str(folder)


def in_sglangs_environment(arguments: list[str], transport: str) -> int:
    """Run this program again, with SGLang's interpreter."""
    from engines.sglang.environment import cpu_environment, sglang_python

    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        env = cpu_environment(KVFERRY_TRANSFER_TRANSPORTS=transport, MC_FORCE_TCP="1")
        mooncake = mooncake_alone(Path(os.environ["KVFERRY_MOONCAKE_PYTHON"]), Path(folder))
        env["PYTHONPATH"] += os.pathsep + mooncake
        command = [sglang_python(), __file__, "--inside", *arguments]
        return subprocess.run(command, env=env, timeout=900, check=False).returncode


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pages", type=int, default=16, help="of 16 tokens each; at most 128")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp", help="what KVFerry may use")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
    if not options.inside:
        sys.exit(in_sglangs_environment(sys.argv[1:], options.transport))
    rows = measure(options.rounds, options.pages, options.transport)
    for row in rows:
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in row.items()) + "\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Mooncake's threads do not end by themselves


if __name__ == "__main__":
    main()
