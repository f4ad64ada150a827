from __future__ import annotations

from collections.abc import Sequence

from kvferry_lmcache.usage import MIN_PAUSE_S, Ledger


def test_what_is_absent_is_taken_once_and_asked_for_with_pauses() -> None:
    now, asked = [0.0], []
    ledger: Ledger[int] = Ledger(clock=lambda: now[0])
    for key in range(5000):
        ledger.add(key, 10)
    ledger.add(3, 99)  # known: it keeps its bytes

    def present(keys: Sequence[int]) -> list[bool]:
        asked.append(len(keys))
        now[0] += 1.0
        return [key not in (3, 4999) for key in keys]

    assert ledger.take_absent(present) == {3: 10, 4999: 10}
    assert sum(asked) == 5000
    now[0] += 10 * len(asked) - 0.5
    assert ledger.take_absent(present) == {}
    assert sum(asked) == 5000  # it took long, so it is not asked again soon
    now[0] += 1.0
    assert ledger.take_absent(present) == {}
    assert sum(asked) == 2 * 5000 - 2


def test_where_nobody_knows_nothing_is_taken() -> None:
    now = [0.0]
    ledger: Ledger[str] = Ledger(clock=lambda: now[0])
    ledger.add("a", 1)
    assert ledger.take_absent(lambda keys: None) == {}
    now[0] += MIN_PAUSE_S
    assert ledger.take_absent(lambda keys: [False] * len(keys)) == {"a": 1}
    assert ledger.take(["a"]) == {}
