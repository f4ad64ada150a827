"""What the clients of a round asked and heard, checked against a model of the store.

The model knows nothing of nodes: keys are written once, a cache may forget, nothing else may happen. Durable
keys are those that the faults of the round must not take: they stay readable all the time.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_STORED = (
    "conflict",
    "invalid_argument",
    "out_of_range",
    "resource_exhausted",
)  # ends of puts that stored nothing
MARGIN_S = 6.0  # how late an end may be: processes need a processor, too


@dataclass(frozen=True, slots=True)
class Op:
    """One call. `end` is infinite, `outcome` "unknown" if its process was killed in the middle."""

    client: str
    op: str
    key: str
    variant: int | None
    begin: float
    end: float
    outcome: Any

    def stored(self) -> bool:
        """Whether this put may have stored its bytes."""
        return self.op == "put" and self.outcome not in NOT_STORED

    def lasts_until(self) -> float:
        """When its effect must have come: an outcome that is no answer leaves that open."""
        answered = self.outcome == "there" or str(self.outcome).startswith("created")
        return self.end if answered else math.inf


def read_history(path: Path) -> list[Op]:
    """The calls of one client, in order. A line that was cut by the end of its process is left out."""
    begun: dict[int, list[Any]] = {}
    ended: dict[int, list[Any]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        try:
            number, what, *rest = json.loads(line)
        except json.JSONDecodeError:
            continue
        (begun if what == "begin" else ended)[number] = rest
    return [
        Op(path.stem, op, key, variant, begin, *reversed(ended.get(number, ["unknown", math.inf])))
        for number, (op, key, variant, begin) in begun.items()
    ]


@dataclass(frozen=True)
class Promise:
    """What must hold in a round."""

    durable: frozenset[str]  # must be found by every read
    timeout_s: float
    # No key changes its content unless it is removed: not while nodes cannot ask each other.
    one_content: bool = True
    may_fail: frozenset[str] = frozenset()  # clients whose calls may end in errors: their node was hit
    # Clients whose node was cut off, and when it had heard again what it missed: what others had removed
    # before may still be found there.
    cut_off: frozenset[str] = frozenset()
    healed_at: float = -math.inf


def check(ops: Iterable[Op], promise: Promise) -> list[str]:
    """Return what must not have happened, in sentences."""
    by_key: dict[str, list[Op]] = defaultdict(list)
    problems: list[str] = []
    for op in ops:
        by_key[op.key].append(op)
        if op.outcome == "wrong":
            problems.append(f"wrong bytes: {op}")
        if math.isfinite(op.end) and op.end - op.begin > promise.timeout_s + MARGIN_S:
            problems.append(f"late: {op}")
        if op.op != "put" and op.key in promise.durable:
            problems += _check_durable(op, promise)
    for key, all_of_key in by_key.items():
        problems += _check_key(key, sorted(all_of_key, key=lambda op: op.begin), promise)
    return problems


def _check_durable(op: Op, promise: Promise) -> list[str]:
    if op.outcome in ("unknown", "no room"):
        return []
    found = {"get": 0, "exists": True, "match": len(promise.durable)}[op.op]
    if op.outcome == found and type(op.outcome) is type(found):
        return []
    failed = isinstance(op.outcome, str) and op.outcome not in ("absent", "wrong")
    if failed and op.client in promise.may_fail:
        return []
    return [f"a copy lives, and was not found: {op}"]


def _check_key(key: str, ops: list[Op], promise: Promise) -> list[str]:
    problems = []
    puts = [op for op in ops if op.stored()]
    seen = [(place, op) for place, op in enumerate(ops) if op.op == "get" and isinstance(op.outcome, int)]
    model = _KeyModel(puts, [op for op in ops if op.op == "remove" and op.outcome == "ok"])
    for place, op in seen:
        wrong = model.complaint(op, promise)
        if wrong:
            lately = "".join(f"\n      {one}" for one in ops[max(0, place - 8) : place])
            problems.append(f"{wrong}, {key}: {op}, after{lately}")
    if promise.one_content:
        problems += _check_one_content(puts, [op for _place, op in seen])
    return problems


class _KeyModel:
    """Who may have written what is read of one key; `puts` in the order in which they began.

    The searches are by bisection: a long round has hundreds of thousands of calls on some fifty keys.
    """

    def __init__(self, puts: list[Op], removes: list[Op]) -> None:
        self._begins: dict[Any, list[float]] = defaultdict(list)  # of the puts of one content
        self._last: dict[Any, list[float]] = defaultdict(list)  # by when they and all before took effect
        for put in puts:
            last = self._last[put.variant]
            self._begins[put.variant].append(put.begin)
            last.append(max(put.lasts_until(), last[-1] if last else -math.inf))
        removes = sorted(removes, key=lambda op: op.end)
        self._gone_ends = [op.end for op in removes]
        self._gone_begins = list(itertools.accumulate((op.begin for op in removes), max))

    def complaint(self, seen: Op, promise: Promise) -> str:
        """What is wrong with a read, or nothing."""
        writers = bisect.bisect_left(self._begins[seen.outcome], seen.end)
        if writers == 0:
            return "nobody had written that"
        if seen.client in promise.cut_off and seen.begin < promise.healed_at:
            return ""
        # Every put of what was seen had ended before the last removal began that ended before.
        gone = bisect.bisect_left(self._gone_ends, seen.begin)
        if gone > 0 and self._last[seen.outcome][writers - 1] < self._gone_begins[gone - 1]:
            return "it came back after it was removed"
        return ""


def _check_one_content(puts: list[Op], seen: list[Op]) -> list[str]:
    """Another content than one seen before must have been put after that one was seen."""
    problems = []
    for before, after in itertools.pairwise(seen):
        if before.outcome == after.outcome or after.begin < before.end:
            continue
        writers = [put for put in puts if put.variant == after.outcome]
        if all(put.lasts_until() < before.begin for put in writers):
            problems.append(f"two contents at the same time: {before} and {after}")
    return problems
