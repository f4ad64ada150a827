"""The transfer benchmark: what a row says, which targets apply where, and that the whole of it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.transfer_bench import reference, report
from benchmarks.transfer_bench.cases import CASES, KIB, MIB, QUICK_CASES, SETS, Case, block_sets
from benchmarks.transfer_bench.compare import compare
from benchmarks.transfer_bench.measure import Figures, Measured, Method, measure
from benchmarks.transfer_bench.rows import Row, table, write_page
from benchmarks.transfer_bench.timing import Burst, run_burst

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = {"bench", "case", "ours", "unit", "against", "theirs", "ratio", "target", "met"}


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "met"),
    [
        (9.0, 10.0, ">= 0.9", True),
        (8.9, 10.0, ">= 0.9", False),
        (12.0, 10.0, "<= 1.2", True),
        (12.1, 10.0, "<= 1.2", False),
        (10.0, 10.0, "< 1", False),
        (5.0, 10.0, "", None),
    ],
)
def test_a_target_is_about_ours_divided_by_theirs(
    ours: float, theirs: float, target: str, met: bool | None
) -> None:
    row = Row("tcp read", "64Kx1024", ours, "GB/s", "raw 2 streams", theirs, target)
    assert row.met is met
    assert set(row.to_dict()) == SCHEMA
    assert row.to_dict()["ratio"] == pytest.approx(ours / theirs, rel=1e-3)


def test_a_target_without_another_side_is_about_ours() -> None:
    assert Row("idle", "", 0.9, "%", target="< 1").met is True
    assert Row("idle", "", 1.1, "%", target="< 1").met is False
    assert Row("idle", "", 1.1, "%", target="< 1").to_dict()["ratio"] is None


def _measured(case: Case, seconds: dict[str, float], cpu_s: float = 1.0) -> Measured:
    burst = {name: Burst((took,) * 3, cpu_s) for name, took in seconds.items()}
    return {(name, op): Figures(case, [one]) for name, one in burst.items() for op in ("read", "write")}


ALL = {
    "shm arena": 1.0,
    "shm foreign": 1.0,
    "tcp": 1.0,
    "raw memcpy": 3.0,
    "raw streaming copy": 2.0,
    "raw process_vm": 2.0,
    "raw 1 stream": 2.5,
    "raw 2 streams": 2.0,
    "NIXL": 4.0,
    "NIXL, no progress thread": 3.0,
    "NIXL tcp": 9.0,
    "NIXL tcp, no progress thread": 8.0,
    "Mooncake tcp": 9.0,
    "gloo": 9.0,
}
EXPECTED = {  # bench, unit, against -> target, at 64 KiB x 1024
    ("shm arena read", "GB/s", "raw streaming copy"): ">= 0.9",
    ("shm arena read", "GB/s", "NIXL"): ">= 2",
    ("shm arena read", "GB/s", "NIXL, no progress thread"): ">= 1.4",
    ("shm foreign read", "GB/s", "raw process_vm"): ">= 0.95",
    ("shm foreign read", "GB/s", "NIXL, no progress thread"): ">= 1",
    ("tcp read", "GB/s", "raw 2 streams"): ">= 0.9",
    ("tcp read", "GB/s", "NIXL tcp"): ">= 5",
    ("tcp read", "GB/s", "NIXL tcp, no progress thread"): ">= 5",
    ("tcp write", "GB/s", "NIXL tcp, no progress thread"): ">= 2",
    ("tcp read", "GB/s", "Mooncake tcp"): ">= 2.5",
    ("tcp read", "GB/s", "gloo"): ">= 2.5",
    ("tcp write", "CPU s/GB", "raw 2 streams"): "<= 1.2",
}


def test_ours_is_compared_with_the_best_of_the_others_and_has_the_targets_of_the_case() -> None:
    rows = compare(_measured(Case(64 * KIB, 1024), ALL), Case(64 * KIB, 1024))
    found = {(row.bench, row.unit, row.against): row.target for row in rows}
    assert {key: found.get(key) for key in EXPECTED} == EXPECTED
    assert len(found) == len(rows)  # no row twice


def test_single_small_blocks_have_targets_of_latency() -> None:
    found = {
        (row.bench, row.unit): row.target
        for row in compare(_measured(Case(4 * KIB, 1), ALL), Case(4 * KIB, 1))
        if row.target and row.against.startswith("raw")
    }
    assert found[("tcp read", "us p50")] == "<= 1.3"
    assert found[("shm arena write", "us p50")] == "<= 1.5"
    assert not any(unit == "GB/s" for _bench, unit in found)


def test_what_was_not_measured_has_no_row() -> None:
    rows = compare(_measured(Case(MIB, 16), {"tcp": 1.0, "raw 2 streams": 1.0}), Case(MIB, 16))
    assert {row.against for row in rows} == {"raw 2 streams"}


def test_block_sets_are_the_same_in_every_process_and_hold_no_block_twice() -> None:
    for case in CASES:
        sets, again = block_sets(case, 512 * MIB), block_sets(case, 512 * MIB)
        assert len(sets) == SETS
        for one, other in zip(sets, again, strict=True):
            assert len(np.unique(one.here)) == len(np.unique(one.there)) == case.count
            assert (one.here == other.here).all()


def test_a_wrong_byte_is_found() -> None:
    memory = reference.private_memory(MIB)
    blocks = np.array([3, 1, 2], dtype=np.uint32)
    reference.fill(memory, blocks, 4 * KIB, 7)
    assert reference.first_wrong(memory, blocks, blocks, 4 * KIB, 7) == -1
    assert reference.first_wrong(memory, blocks, blocks, 4 * KIB, 8) == 0
    memory[2 * 4 * KIB + 4095] ^= 1
    assert reference.first_wrong(memory, blocks, blocks, 4 * KIB, 7) == 2


class Fake:
    """A side whose operation takes no time; `wrong`: its bytes are."""

    def __init__(self, name: str, *, wrong: bool = False) -> None:
        self.name, self.wrong, self.pids, self.every = name, wrong, (), 1

    def prepare(self, case: Case) -> None:
        pass

    def burst(self, op: str, seconds: float) -> Burst:
        return run_burst(lambda _number: None, seconds, self.pids)

    def verify(self, op: str) -> None:
        assert not self.wrong, "wrong bytes"


def test_a_side_with_wrong_bytes_has_no_figures() -> None:
    failed: list[str] = []
    measured = measure(
        QUICK_CASES[0],
        [Fake("good"), Fake("bad", wrong=True)],
        Method(rounds=2, boost=False, burst_s=0.001),
        lambda side, error: failed.append(f"{side.name}: {error}"),
    )
    assert set(measured) == {("good", "read"), ("good", "write")}
    assert len(measured["good", "read"].bursts) == 2
    assert len(failed) == 1
    assert failed[0].startswith("bad: wrong bytes")


def test_the_short_table_has_the_best_of_the_others() -> None:
    case = Case(64 * KIB, 1024)
    text = report.headlines({case.name: _measured(case, ALL)})
    line = next(line for line in text.splitlines() if line.startswith("| tcp read, 64Kx1024 |"))
    assert line.count("0.0671") == 1  # ours
    assert "0.0336 (2 streams)" in line
    assert "0.00746 | 0.00839" in line  # NIXL by default and at its best


def test_the_summary_counts_and_names_the_worst() -> None:
    rows = [
        Row("tcp read", case, ours, "GB/s", "raw 2 streams", 10.0, ">= 0.9")
        for case, ours in (("1Mx16", 9.5), ("1Mx128", 8.0))
    ]
    assert "1 of 2 (**missed**) | 0.875 | 0.8 (1Mx128)" in report.targets(rows)
    assert report.missed(rows) == "- tcp read 1Mx128: 8 GB/s, raw 2 streams 10, ratio 0.80; target >= 0.9"
    assert report.missed(rows[:1]) == "None."
    assert "| tcp read | 1Mx16 | 9.5 GB/s | raw 2 streams | 10 | 0.95 | >= 0.9 met |" in table(rows)


def test_a_page_is_changed_between_its_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n")
    write_page(page, {"x": "new"})
    assert page.read_text() == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n"
    with pytest.raises(ValueError, match="no marks"):
        write_page(page, {"y": "new"})


def test_the_pages_marks_are_those_that_the_benchmark_fills() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("<!-- transfer headlines: ") == 2
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for name in ("about", "targets", "missed", "extras", "stages", "tables"):
        assert text.count(f"<!-- transfer {name}: begin -->") == 1
        assert text.count(f"<!-- transfer {name}: end -->") == 1


@pytest.mark.slow
def test_the_whole_benchmark_runs_and_reports_libraries_that_are_not_there(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    script = ROOT / "benchmarks/transfer.py"
    options = ["--quick", "--working-set", "16", "--json", str(result), "--peers", "/nowhere/python"]
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(result.read_text())
    assert all(set(row) == SCHEMA for row in told["rows"])
    benches = {row["bench"] for row in told["rows"]}
    paths = {f"{side} {op}" for side in ("shm arena", "shm foreign", "tcp") for op in ("read", "write")}
    assert paths <= benches
    assert {"idle", "submit a prepared plan", "description on the wire", "fairness", "stages"} <= benches
    assert not [note for note in told["notes"] if " failed on " in note]
    assert any(note.startswith("NIXL: not measured") for note in told["notes"])
