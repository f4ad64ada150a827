"""Puts and gets: KVFerry's store beside Redis, Mooncake's store, its transfer engine and a plain copy.

    python benchmarks/store.py [--quick] [--long] [--json FILE] [--docs FILE] [--peers PYTHON]

All sides take turns in one run. A case is SIZExCOUNT: that many values per operation. A node runs as a
process, its clients in this one; one of them uses tcp alone, as on another host: over loopback, and in
network namespaces whose loopback carries only so much (with root and iproute2; else left out). Bytes are
checked once per case. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.store_bench import growth  # noqa: E402
from benchmarks.store_bench.cluster import Nodes, touch_memory  # noqa: E402
from benchmarks.store_bench.link import NoLinkError, limited_link  # noqa: E402
from benchmarks.store_bench.peers import PeerSide, peer_sides  # noqa: E402
from benchmarks.store_bench.questions import asking, stalls, viewing  # noqa: E402
from benchmarks.store_bench.remote import link_rows, remote_rows  # noqa: E402
from benchmarks.store_bench.sides import Ours, PlainCopy, Side, in_turns  # noqa: E402
from benchmarks.store_bench.ssd import ssd_rows  # noqa: E402
from benchmarks.transfer_bench import report  # noqa: E402
from benchmarks.transfer_bench.cases import Case  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json, write_page  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
COPY_CASES = (Case(64 * KIB, 64), Case(MIB, 1), Case(MIB, 16), Case(16 * MIB, 1))
PEER_CASES = (Case(64 * KIB, 1), Case(64 * KIB, 64), Case(MIB, 1), Case(MIB, 8))
COPY_TARGET = {"get": ">= 0.9", "put": ">= 0.8"}
PEER_TARGET = {"Redis, unix socket": ">= 5", "Redis, loopback": ">= 5", "Mooncake store": ">= 3"}
DRAM = 512 * MIB
LINKS_GBIT = (10, 25)
ROUNDS, QUICK_ROUNDS = 7, 3
CALLS = {"get": ("get_into", "get_many_into"), "put": ("put", "put_many")}


def beside(ours: Ours, others: Sequence[Side], case: Case, rounds: int) -> Iterator[Row]:
    """Both operations of one case, all sides in turns; GB/s."""
    for side in (ours, *others):
        side.prepare(case)
    for op in ("get", "put"):
        took = in_turns([ours, *others], op, rounds)
        speed = {name: case.bytes / seconds / 1e9 for name, seconds in took.items()}
        for side in others:
            if isinstance(side, PeerSide):
                target = PEER_TARGET.get(side.name, "")
            else:
                target = COPY_TARGET[op] if case.size >= MIB else ""
            call = CALLS[op][case.count > 1]
            yield Row(call, case.name, speed[ours.name], "GB/s", side.name, speed[side.name], target)


class Run:
    """One run, and what came out of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._rounds = QUICK_ROUNDS if options.quick else ROUNDS
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def run(self, folder: Path) -> None:
        with contextlib.ExitStack() as stack:
            nodes = Nodes(folder, stack)
            node = nodes.start_one("--dram", str(DRAM))
            ours = Ours("ours", nodes.open(node))
            touch_memory(ours.store, DRAM * 9 // 10)
            for case in COPY_CASES:
                self._take(beside(ours, [PlainCopy()], case, self._rounds))
            self._take(viewing(ours.store, ours.source))
            self._take(asking(ours.store))
            self._take(stalls(ours.store, ours.source, ours.target))
            self._take(remote_rows(Ours("remote", nodes.open(node, ["tcp"])), self._rounds))
            self._beside_peers(ours, folder, stack)
        for gbit in LINKS_GBIT:
            self._over_link(folder / f"link-{gbit}", gbit)
        with contextlib.ExitStack() as stack:
            nodes = Nodes(folder / "growth", stack)
            if not self._options.quick:
                self._take(growth.with_keys(nodes, self._options.long))
            self._take(growth.with_nodes(nodes))
            self._take(ssd_rows(nodes, self._options.disk or folder, self._note))

    def _over_link(self, folder: Path, gbit: int) -> None:
        try:
            with limited_link(gbit), contextlib.ExitStack() as stack:
                nodes = Nodes(folder, stack)
                remote = Ours("remote", nodes.open(nodes.start_one("--dram", str(DRAM)), ["tcp"]))
                self._take(link_rows(remote, gbit, self._rounds))
        except NoLinkError as error:
            self._note(f"a {gbit} Gbit/s link was not measured: {error}")

    def _beside_peers(self, ours: Ours, folder: Path, stack: contextlib.ExitStack) -> None:
        if self._options.peers is None:
            self._note("other stores were not measured: no --peers")
            return
        peers = peer_sides(
            self._options.peers, folder, stack, lambda name, why: self._note(f"{name}: not measured, {why}")
        )
        for package in dict.fromkeys(peer.package for peer in peers):
            self._note(f"with {package}")
        for case in PEER_CASES if peers else ():
            self._take(beside(ours, peers, case, self._rounds))

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            print(table([row]).split("\n")[2], flush=True)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        print(f"# {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no growth with keys")
    parser.add_argument("--long", action="store_true", help="2 million keys, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also put the result into this page")
    parser.add_argument("--disk", type=Path, metavar="DIR", help="where the SSD tier is measured; empty")
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="what benchmarks/peers.sh printed")
    run = Run(parser.parse_args())
    options, started, where = parser.parse_args(), time.monotonic(), report.machine()
    with tempfile.TemporaryDirectory() as folder:
        run.run(Path(folder))
    about = [where, f"{time.monotonic() - started:.0f} s", *run.notes]
    summary = report.targets(run.rows)
    print("\n" + "\n".join(about) + f"\n\n{summary}\n\nMissed:\n{report.missed(run.rows)}")
    if options.json:
        write_json(options.json, run.rows, {"machine": where, "notes": about[1:]})
    if options.docs:
        sections = {
            "store about": "\n".join(f"- {line}" for line in about),
            "store targets": summary,
            "store missed": report.missed(run.rows),
            "store": table(run.rows),
        }
        write_page(options.docs, sections)
    met, missed = (sum(row.met is verdict for row in run.rows) for verdict in (True, False))
    print(f"\ntargets: {met} met, {missed} missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
