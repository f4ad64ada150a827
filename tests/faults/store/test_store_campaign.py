"""The campaign in short, and that its checker sees what it is for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.faults.store.campaign import Campaign
from tests.faults.store.failover import PROMISED, SLOW_MACHINE, measure
from tests.faults.store.history import Op, Promise, check
from tests.faults.store.scenarios import SCENARIOS

KEY = "r0/some/100"
PROMISE = Promise(frozenset(), 5.0)


def op(
    name: str, begin: float, outcome: object, variant: int | None = None, *, end: float | None = None
) -> Op:
    return Op("client", name, KEY, variant, begin, begin + 1 if end is None else end, outcome)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_pool_survives_what_strikes_it(tmp_path: Path, extent) -> None:
    scenarios = SCENARIOS if extent.long else [one for one in SCENARIOS if one.short]
    pause_s = extent.times(6, 30)
    with Campaign(tmp_path, seed=11, nodes=3, traffic_s=1.0, pause_s=pause_s) as campaign:
        for number in range(extent.times(len(scenarios), 200)):
            campaign.run_round(number, scenarios[number % len(scenarios)])
        assert campaign.calls > 1000


@pytest.mark.slow
def test_the_death_of_a_node_is_felt_for_a_moment_only(tmp_path: Path, extent) -> None:
    felt = measure(tmp_path, extent.times(2, 40))
    print(felt)
    (PROMISED if extent.long else SLOW_MACHINE).check(felt)


def test_what_is_right_is_not_complained_of() -> None:
    history = [
        op("put", 0, "created 1", 0), op("get", 2, 0), op("put", 3, "conflict", 1), op("remove", 4, "ok"),
        op("get", 6, "absent"), op("put", 7, "created 1", 1), op("get", 9, 1), op("get", 10, "absent"),
    ]  # fmt: skip
    assert check(history, PROMISE) == []


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        ([op("get", 0, "wrong")], "wrong bytes"),
        ([op("get", 0, "absent", end=30.0)], "late"),
        ([op("get", 0, 0)], "nobody had written that"),
        ([op("put", 0, "conflict", 0), op("get", 2, 0)], "nobody had written that"),
        ([op("put", 0, "created 1", 0), op("remove", 2, "ok"), op("get", 4, 0)], "came back"),
        (
            [op("put", 0, "created 1", 0), op("put", 0, "created 1", 1), op("get", 2, 0), op("get", 4, 1)],
            "two contents",
        ),
    ],
)
def test_what_is_wrong_is_complained_of(history: list[Op], complaint: str) -> None:
    [problem] = check(history, PROMISE)
    assert complaint in problem


def test_puts_without_an_answer_may_take_effect_later() -> None:
    history = [op("put", 0, "deadline_exceeded", 0), op("remove", 2, "ok"), op("get", 4, 0)]
    assert check(history, PROMISE) == []
    killed = [op("put", 0, "unknown", 0, end=math.inf), op("remove", 2, "ok"), op("get", 4, 0)]
    assert check(killed, PROMISE) == []


@pytest.mark.parametrize("outcome", ["absent", "unavailable"])
def test_durable_keys_must_be_found(outcome: str) -> None:
    promise = Promise(frozenset([KEY]), 5.0)
    [problem] = check([op("get", 0, outcome)], promise)
    assert "a copy lives" in problem
    lost = Promise(frozenset([KEY]), 5.0, may_fail=frozenset(["client"]))
    assert bool(check([op("get", 0, outcome)], lost)) == (outcome == "absent")
