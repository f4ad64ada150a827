"""Programs that import `mooncake`: on KVFerry's module of that name, beside the real Mooncake.

    python benchmarks/mooncake_dropin.py --peers PYTHON [--quick] [--json FILE]

The same worker programs run with either module, in turns: transfers by address between two processes, and
puts and gets by address of a store. `--peers`: an interpreter with Mooncake, as benchmarks/peers.sh prints
it. Mooncake runs over tcp; KVFerry once over tcp alone and once as it comes, which is shared memory on one
host. A case is SIZExCOUNT: that many scattered blocks in one call. Bytes are checked once per case.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.store_bench.cluster import Nodes, touch_memory  # noqa: E402
from benchmarks.store_bench.peers import MODULE as STORE_WORKER  # noqa: E402
from benchmarks.store_bench.peers import PeerSide as StoreSide  # noqa: E402
from benchmarks.store_bench.peers import mooncake_side  # noqa: E402
from benchmarks.store_bench.sides import in_turns  # noqa: E402
from benchmarks.transfer_bench import report  # noqa: E402
from benchmarks.transfer_bench.cases import KIB, MIB, Case  # noqa: E402
from benchmarks.transfer_bench.peers import KINDS, Kind  # noqa: E402
from benchmarks.transfer_bench.peers import PeerSide as TransferSide  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json  # noqa: E402

THEIRS = "Mooncake"
TRANSFERS = (Case(4 * KIB, 1), Case(4 * KIB, 512), Case(64 * KIB, 1), Case(64 * KIB, 128), Case(MIB, 16))
STORED = (Case(64 * KIB, 1), Case(64 * KIB, 64), Case(MIB, 1), Case(MIB, 8))
QUICK = {"transfer": (Case(64 * KIB, 128),), "store": (Case(64 * KIB, 64),)}
LENGTH, DRAM = 64 * MIB, 512 * MIB
ROUNDS, QUICK_ROUNDS = 7, 3
BURST_S = 0.05
TARGET = ">= 1"


def dropin_env(**more: str) -> dict[str, str]:
    """The environment in which `mooncake` is KVFerry's."""
    path = [str(ROOT / "connectors/mooncake"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), **more}


OURS = {"tcp": dropin_env(KVFERRY_TRANSFER_TRANSPORTS="tcp"), "shared memory": dropin_env()}


def rows_of(call: str, case: Case, took: dict[str, float]) -> Iterator[Row]:
    """Ours beside theirs, GB/s."""
    speed = {name: case.bytes / seconds / 1e9 for name, seconds in took.items()}
    for name in OURS:
        yield Row(f"{call}, {name}", case.name, speed[name], "GB/s", THEIRS, speed[THEIRS], TARGET)


class BlocksSide(TransferSide):
    """A pair of processes, timed as a store is."""

    def burst(self, op: str, seconds: float) -> list[float]:
        return list(super().burst(op, seconds).took_s)


def transfers(peers: Path, cases: Sequence[Case], rounds: int) -> Iterator[Row]:
    """Reads and writes of scattered blocks of another process."""
    [kind] = [kind for kind in KINDS if kind.worker == "mooncake"]
    with contextlib.ExitStack() as stack:
        sides = [BlocksSide(Kind(THEIRS, "mooncake", kind.env), peers, LENGTH, stack)]
        for name, env in OURS.items():
            sides.append(BlocksSide(Kind(name, "mooncake", env), Path(sys.executable), LENGTH, stack))
        for case in cases:
            for side in sides:
                side.prepare(case)
                for op in ("write", "read"):
                    side.verify(op)
            for op in ("write", "read"):
                yield from rows_of(f"batch_transfer_sync_{op}", case, in_turns(sides, op, rounds, BURST_S))


def stored(peers: Path, folder: Path, cases: Sequence[Case], rounds: int) -> Iterator[Row]:
    """Puts from addresses and gets into addresses; another process holds the values."""
    calls = {"put": ("put_from", "batch_put_from"), "get": ("get_into", "batch_get_into")}
    with contextlib.ExitStack() as stack:
        nodes = Nodes(folder, stack)
        node = nodes.start_one("--dram", str(DRAM))
        touch_memory(nodes.open(node), DRAM * 9 // 10)
        command = [sys.executable, "-m", STORE_WORKER, "mooncake", str(node.advert.endpoint)]
        sides = [mooncake_side(THEIRS, peers, folder, stack, own=False)]
        for name, env in OURS.items():  # each with keys of its own
            sides.append(StoreSide(name, command, stack, env={**env, "KVFERRY_STORE_TENANT": name}))
        for case in cases:
            for side in sides:
                side.prepare(case)
            for op in ("put", "get"):
                took = in_turns(sides, op, rounds)
                yield from rows_of(calls[op][case.count > 1], case, took)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True, metavar="PYTHON", help="with Mooncake in it")
    parser.add_argument("--quick", action="store_true", help="one case of each, and fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args()
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    where = report.machine()
    rows: list[Row] = []

    def take(found: Iterator[Row]) -> None:
        for row in found:
            rows.append(row)
            print(table([row]).split("\n")[2], flush=True)

    parts: dict[str, Callable[[Path, Sequence[Case]], Iterator[Row]]] = {
        "transfer": lambda _folder, cases: transfers(options.peers, cases, rounds),
        "store": lambda folder, cases: stored(options.peers, folder, cases, rounds),
    }
    for name, cases in (("transfer", TRANSFERS), ("store", STORED)):
        with tempfile.TemporaryDirectory() as folder:
            take(parts[name](Path(folder), QUICK[name] if options.quick else cases))
    print(f"\n{where}\n\n{report.targets(rows)}\n\nMissed:\n{report.missed(rows)}")
    if options.json:
        write_json(options.json, rows, {"machine": where})
    return 0


if __name__ == "__main__":
    sys.exit(main())
