"""Moves blocks between two processes of this host: KVFerry beside raw references, and beside other transfer
libraries, all in the same run and in turns.

    python benchmarks/transfer.py [--quick] [--json FILE] [--docs FILE] [--peers PYTHON] [--boost]

A case is SIZExCOUNT: that many scattered blocks per operation, four sets of block numbers in turn. Bytes are
checked for every case and side. A figure is the median of its rounds. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.transfer_bench import report  # noqa: E402
from benchmarks.transfer_bench.cases import CASES, MIB, QUICK_CASES, Case  # noqa: E402
from benchmarks.transfer_bench.compare import SMALL_4K, compare  # noqa: E402
from benchmarks.transfer_bench.extras import MANY_BLOCKS, available_mib, extra_rows  # noqa: E402
from benchmarks.transfer_bench.measure import Measured, Method, measure  # noqa: E402
from benchmarks.transfer_bench.peers import peer_sides  # noqa: E402
from benchmarks.transfer_bench.rows import Row, table, write_json, write_page  # noqa: E402
from benchmarks.transfer_bench.sides import Side, Target, local_sides  # noqa: E402
from benchmarks.transfer_bench.stages import BENCH as STAGES  # noqa: E402
from benchmarks.transfer_bench.stages import stage_rows  # noqa: E402

WORKING_SET_MIB = (512, 256)
ROUNDS, QUICK_ROUNDS = 9, 3
PROCESSES = 16  # of about one working set each, when all peers are there


class Run:
    """One run of the benchmark, and what came out of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._method = Method(QUICK_ROUNDS if options.quick else ROUNDS, options.boost)
        self.length = options.working_set * MIB
        self.notes: list[str] = []
        self.rows: list[Row] = []
        self.figures: dict[str, Measured] = {}

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            target = Target(self.length, stack)
            sides, ours = local_sides(target, stack)
            if not self._options.only:
                self.rows += extra_rows(ours, target, MANY_BLOCKS // (10 if self._options.quick else 1))
                stages = list(stage_rows(ours, target))
                print(f"{table(self.rows)}\n\n{report.pivot(stages)}\n", flush=True)
                self.rows += stages
            if self._options.peers:
                sides += self._peers(stack)
            else:
                self._note("other libraries were not measured: no --peers")
            for case in self._cases():
                self._measure(case, sides)

    def _peers(self, stack: contextlib.ExitStack) -> list[Side]:
        def missing(name: str, why: str) -> None:
            self._note(f"{name}: not measured, {why}")

        peers = peer_sides(self._options.peers, self.length, stack, missing)
        for package in dict.fromkeys(peer.package for peer in peers):
            self._note(f"with {package}")
        return list(peers)

    def _cases(self) -> list[Case]:
        wanted = re.compile(self._options.only or ".*")
        cases = QUICK_CASES if self._options.quick else CASES
        return [case for case in cases if case.bytes <= self.length and wanted.fullmatch(case.name)]

    def _measure(self, case: Case, sides: list[Side]) -> None:
        fitting = [side for side in sides if case == SMALL_4K or not side.name.endswith(", prepared")]

        def failed(side: Side, error: Exception) -> None:
            self._note(f"{side.name} failed on {case.name}: {error}")
            if side in sides:
                sides.remove(side)

        self.figures[case.name] = measure(case, fitting, self._method, failed)
        rows = compare(self.figures[case.name], case)
        self.rows += rows
        print(table(rows).split("\n", 2)[2] if rows else f"| {case.name}: nothing to compare |", flush=True)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        print(f"# {text}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="also put the result into this page")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put a short table into this page")
    parser.add_argument("--quick", action="store_true", help="four cases and fewer rounds, within 30 s")
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="what benchmarks/peers.sh printed")
    parser.add_argument("--boost", action="store_true", help="measured bursts before all else (needs root)")
    parser.add_argument("--only", metavar="CASES", help="regular expression: these cases, nothing else")
    default = next((size for size in WORKING_SET_MIB if available_mib() > size * (PROCESSES + 4)), 128)
    parser.add_argument("--working-set", type=int, metavar="MIB", default=default, help="here: %(default)s")
    return parser.parse_args()


def main() -> int:
    options = _parse()
    if options.boost and os.geteuid() != 0:
        raise SystemExit("--boost needs root")
    run, started, where = Run(options), time.monotonic(), report.machine()
    run.run()
    took_s = time.monotonic() - started
    about = [
        where,
        f"working set {options.working_set} MiB, {took_s:.0f} s" + (", boosted" if options.boost else ""),
        *run.notes,
    ]
    summary = report.targets(run.rows)
    print("\n" + "\n".join(about) + f"\n\n{summary}\n\nMissed:\n{report.missed(run.rows)}")
    if options.json:
        write_json(options.json, run.rows, {"machine": where, "notes": about[1:]})
    if options.docs:
        stages = [row for row in run.rows if row.bench == STAGES]
        extras = [row for row in run.rows if row.bench.partition(" ")[0] not in ("shm", "tcp", STAGES)]
        write_page(
            options.docs,
            {
                "transfer about": "\n".join(f"- {line}" for line in about),
                "transfer targets": summary,
                "transfer missed": report.missed(run.rows),
                "transfer extras": table(extras),
                "transfer stages": report.pivot(stages),
                "transfer tables": report.tables(run.figures),
            },
        )
    if options.readme:
        write_page(options.readme, {"transfer headlines": report.headlines(run.figures)})
    met, not_met = (sum(row.met is verdict for row in run.rows) for verdict in (True, False))
    print(f"\ntargets: {met} met, {not_met} missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
