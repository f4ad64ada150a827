"""The benchmark of the stand-in for Mooncake: our side of it runs, and its rows say what was compared."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from benchmarks.mooncake_dropin import OURS, rows_of
from benchmarks.transfer_bench.cases import KIB, Case
from benchmarks.transfer_bench.peers import Kind, PeerSide

CASE = Case(64 * KIB, 8)


def test_rows_compare_each_of_ours_with_mooncake() -> None:
    rows = list(rows_of("put_from", CASE, {"tcp": 1e-3, "shared memory": 5e-4, "Mooncake": 1e-3}))
    assert [(row.bench, row.ratio, row.met) for row in rows] == [
        ("put_from, tcp", 1.0, True),
        ("put_from, shared memory", 2.0, True),
    ]


@pytest.mark.parametrize("name", OURS)
def test_the_worker_runs_on_kvferry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [each for each in sys.path if each and "site-packages" not in each]
    environment = {**OURS[name], "PYTHONPATH": ":".join([OURS[name]["PYTHONPATH"], *path])}
    with contextlib.ExitStack() as stack:
        side = PeerSide(Kind(name, "mooncake", environment), Path(sys.executable), 64 * CASE.bytes, stack)
        side.prepare(CASE)
        for op in ("write", "read"):
            side.verify(op)
            assert side.burst(op, 0.01).took_s
