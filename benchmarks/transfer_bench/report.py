"""The result for people: what was run where, targets, tables of all figures."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.transfer_bench.compare import (
    CPU,
    NIXL,
    NIXL_TCP,
    P50,
    RAW_SHARED,
    RAW_STREAMS,
    SPEED,
    Measure,
)
from benchmarks.transfer_bench.measure import Figures, Measured
from benchmarks.transfer_bench.rows import Row


def machine() -> str:
    """One line that says what the figures were taken on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {system}, load {os.getloadavg()[0]:.1f}"


def _group(row: Row) -> tuple[str, str, str]:
    against = row.against.removesuffix(", no progress thread")
    if against.startswith("raw"):
        against = "raw"
    return f"{row.bench}: {row.unit}", against, row.target


def targets(rows: Sequence[Row]) -> str:
    """One line per kind of target: how many cases meet it, and the worst."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.target:
            groups.setdefault(_group(row), []).append(row)
    lines = ["| what | against | target | cases that meet it | median | worst |", "|---|---|---|--:|--:|--:|"]
    for (what, against, target), members in groups.items():
        values = sorted(_value(row) for row in members)
        worst = (max if target.startswith("<") else min)(members, key=_value)
        met = sum(row.met is True for row in members)
        verdict = f"{met} of {len(members)}" + ("" if met == len(members) else " (**missed**)")
        lines.append(
            f"| {what} | {against} | {target} | {verdict} | {statistics.median(values):.3g} "
            f"| {_value(worst):.3g} ({worst.case}) |"
        )
    return "\n".join(lines)


def _value(row: Row) -> float:
    return row.ours if row.ratio is None else row.ratio


def missed(rows: Sequence[Row]) -> str:
    """The rows that miss their target."""
    lines = [
        f"- {row.bench} {row.case}: {row.ours:.3g} {row.unit}"
        + (f", {row.against} {row.theirs:.3g}, ratio {row.ratio:.2f}" if row.ratio is not None else "")
        + f"; target {row.target}"
        for row in rows
        if row.met is False
    ]
    return "\n".join(lines) or "None."


def _cell(figures: Figures, measure: Measure) -> str:
    best = f" ({_digits(figures.best_speed)})" if measure is SPEED else ""
    return _digits(measure.of(figures)) + best


def _matrix(figures: Mapping[str, Measured], op: str, measure: Measure) -> str:
    cases = list(figures)
    sides = list(dict.fromkeys(side for one in figures.values() for side, at in one if at == op))
    best = " (best)" if measure is SPEED else ""
    lines = [f"| {op}, {measure.unit}{best} | {' | '.join(cases)} |", "|---|" + "--:|" * len(cases)]
    for side in sides:
        cells = [_cell(one[side, op], measure) if (side, op) in one else "" for one in figures.values()]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    return "\n".join(lines)


HEADLINES: tuple[tuple[str, str, Measure, tuple[str, ...], tuple[str, ...]], ...] = (
    ("shm arena", "64Kx1024", SPEED, RAW_SHARED, NIXL),
    ("shm arena", "4Kx1024", SPEED, RAW_SHARED, NIXL),
    ("shm foreign", "64Kx1024", SPEED, ("raw process_vm",), NIXL),
    ("shm foreign", "4Kx1024", SPEED, ("raw process_vm",), NIXL),
    ("tcp", "64Kx1024", SPEED, RAW_STREAMS, NIXL_TCP),
    ("tcp", "4Kx1024", SPEED, RAW_STREAMS, NIXL_TCP),
    ("shm arena", "4Kx1", P50, RAW_SHARED, NIXL),
    ("tcp", "4Kx1", P50, RAW_STREAMS, NIXL_TCP),
)


def headlines(figures: Mapping[str, Measured]) -> str:
    """A short table: ours, the best raw reference, NIXL by default and at its best, reading."""
    lines = [
        "| what | unit | KVFerry | best raw reference | NIXL default | NIXL best |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for ours, case, measure, raw, nixl in HEADLINES:
        of = {side: measure.of(one) for (side, op), one in figures.get(case, {}).items() if op == "read"}
        best = max if measure.more_is_better else min
        cells = [_digits(of[ours]) if ours in of else ""]
        for among in (raw, nixl[:1], nixl):
            there = [side for side in among if side in of]
            name = best(there, key=of.__getitem__) if there else ""
            note = f" ({name.removeprefix('raw ')})" if name.startswith("raw") else ""
            cells.append(_digits(of[name]) + note if there else "")
        lines.append(f"| {ours} read, {case} | {measure.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pivot(rows: Sequence[Row]) -> str:
    """Rows of one bench: a line for each case, a column for each unit."""
    units = list(dict.fromkeys(row.unit for row in rows))
    found = {(row.case, row.unit): _digits(row.ours) for row in rows}
    lines = ["| " + " | ".join(["case", *units]) + " |", "|---|" + "--:|" * len(units)]
    cases = dict.fromkeys(row.case for row in rows)
    lines += [
        "| " + " | ".join([one, *(found.get((one, unit), "") for unit in units)]) + " |" for one in cases
    ]
    return "\n".join(lines)


def _digits(value: float) -> str:
    """Three digits, never with an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def tables(figures: Mapping[str, Measured]) -> str:
    """All sides and cases: speed, latency and processor time, for both operations."""
    return "\n\n".join(
        _matrix(figures, op, measure) for measure in (SPEED, P50, CPU) for op in ("read", "write")
    )
