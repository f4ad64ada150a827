"""What is compared with what, and the targets: measured figures in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.transfer_bench.cases import KIB, MIB, Case
from benchmarks.transfer_bench.measure import Figures, Measured
from benchmarks.transfer_bench.rows import Row

RAW_SHARED = ("raw memcpy", "raw streaming copy")
RAW_STREAMS = ("raw 1 stream", "raw 2 streams")  # the same thing for a single block
NIXL = ("NIXL", "NIXL, no progress thread")
NIXL_TCP = ("NIXL tcp", "NIXL tcp, no progress thread")
SMALL_4K = Case(4 * KIB, 1)
MANY_4K = Case(4 * KIB, 1024)
LATENCY_BYTES = MIB  # up to here an operation's latency is shown, too


@dataclass(frozen=True)
class Measure:
    """A figure and the better direction."""

    unit: str
    of: Callable[[Figures], float]
    more_is_better: bool


SPEED = Measure("GB/s", lambda figures: figures.speed, more_is_better=True)
CPU = Measure("CPU s/GB", lambda figures: figures.cpu, more_is_better=False)
P50 = Measure("us p50", lambda figures: figures.latency_us(50), more_is_better=False)
P99 = Measure("us p99", lambda figures: figures.latency_us(99), more_is_better=False)


@dataclass(frozen=True)
class Rule:
    """Ours against the best of `against`. `target(case, op)`: "" for a row without one, None for no row."""

    ours: str
    measure: Measure
    against: tuple[str, ...]
    target: Callable[[Case, str], str | None]


def _bulk(case: Case) -> bool:
    """64 KiB x 128 and up."""
    return case.size >= 64 * KIB and case.bytes >= 8 * MIB


def _large(case: Case) -> bool:
    """64 KiB x 1024 and up."""
    return case.size >= 64 * KIB and case.bytes >= 64 * MIB


def _targets(*wanted: tuple[Callable[[Case], bool], str]) -> Callable[[Case, str], str]:
    def target(case: Case, _op: str) -> str:
        return next((limit for holds, limit in wanted if holds(case)), "")

    return target


def _many_4k(case: Case) -> bool:
    return case == MANY_4K


def _several_4k(case: Case) -> bool:
    return case.size == 4 * KIB and case.count > 1


def _steady(case: Case) -> bool:
    """Operations long enough for throughput to matter: 4 KiB x 1024 and up."""
    return case.bytes >= 4 * MIB


def _always(_case: Case) -> bool:
    return True


def _nixl_tcp(case: Case, op: str) -> str:
    if _large(case):
        return ">= 5" if op == "read" else ">= 2"
    return ">= 4" if _many_4k(case) else ""


def _only(holds: Callable[[Case], bool], limit: str) -> Callable[[Case, str], str | None]:
    return lambda case, _op: limit if holds(case) else None


def _single_4k(case: Case) -> bool:
    return case == SMALL_4K


def _short(case: Case) -> bool:
    return case.bytes <= LATENCY_BYTES


RULES = (
    Rule("shm arena", SPEED, RAW_SHARED, _targets((_bulk, ">= 0.9"), (_many_4k, ">= 0.8"))),
    Rule("shm arena", SPEED, NIXL[:1], _targets((_bulk, ">= 2"))),
    Rule("shm arena", SPEED, NIXL, _targets((_bulk, ">= 1.4"), (_many_4k, ">= 5"))),
    Rule("shm foreign", SPEED, ("raw process_vm",), _targets((_bulk, ">= 0.95"))),
    Rule("shm foreign", SPEED, NIXL, _targets((_bulk, ">= 1"), (_several_4k, ">= 2"))),
    Rule("tcp", SPEED, ("raw 2 streams",), _targets((_large, ">= 0.9"), (_many_4k, ">= 0.7"))),
    Rule("tcp", SPEED, NIXL_TCP[:1], _nixl_tcp),
    Rule("tcp", SPEED, NIXL_TCP, _nixl_tcp),
    Rule("tcp", SPEED, ("Mooncake tcp",), _targets((_large, ">= 2.5"))),
    Rule("tcp", SPEED, ("gloo",), _targets((_large, ">= 2.5"))),
    Rule("shm arena", P50, RAW_SHARED, _only(_single_4k, "<= 1.5")),
    Rule("shm arena", P50, ("raw memcpy, prepared",), _only(_single_4k, "")),
    Rule("shm foreign", P50, ("raw process_vm",), _only(_single_4k, "<= 1.5")),
    Rule("tcp", P50, RAW_STREAMS, _only(_single_4k, "<= 1.3")),
    Rule("shm arena", P50, NIXL, _only(_single_4k, "< 1")),
    Rule("shm foreign", P50, NIXL, _only(_single_4k, "< 1")),
    Rule("tcp", P50, NIXL_TCP, _only(_single_4k, "< 1")),
    Rule("shm arena", P99, RAW_SHARED, _only(_short, "")),
    Rule("shm foreign", P99, ("raw process_vm",), _only(_short, "")),
    Rule("tcp", P99, RAW_STREAMS, _only(_short, "")),
    Rule("shm arena", CPU, RAW_SHARED, _targets((_steady, "<= 1.2"))),
    Rule("shm foreign", CPU, ("raw process_vm",), _targets((_steady, "<= 1.2"))),
    Rule("tcp", CPU, ("raw 2 streams",), _targets((_steady, "<= 1.2"))),
    Rule("shm arena", CPU, NIXL, _targets((_always, "< 1"))),
    Rule("shm foreign", CPU, NIXL, _targets((_always, "< 1"))),
    Rule("tcp", CPU, NIXL_TCP, _targets((_always, "< 1"))),
)


def compare(measured: Measured, case: Case) -> list[Row]:
    """The rows of one case: each rule whose sides were measured, and no row twice."""
    return list(dict.fromkeys(_rows(measured, case)))


def _rows(measured: Measured, case: Case) -> Iterator[Row]:
    for op in ("read", "write"):
        for rule in RULES:
            target = rule.target(case, op)
            ours = measured.get((rule.ours, op))
            others = {name: measured[name, op] for name in rule.against if (name, op) in measured}
            if target is None or ours is None or not others:
                continue
            of = rule.measure.of
            best = max if rule.measure.more_is_better else min
            name = best(others, key=lambda one: of(others[one]))
            bench = f"{rule.ours} {op}"
            yield Row(bench, case.name, of(ours), rule.measure.unit, name, of(others[name]), target)
