"""The campaign: rounds of mixed traffic, each struck by one kind of fault, each checked against the model."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.faults.store.history import Promise, check
from tests.faults.store.processes import CALL_S, PATIENCE_S, ClientProcess, Failure, Pool
from tests.faults.store.scenarios import SCENARIOS, Round, Scenario

from kvferry.testing.waiting import wait_until

SIZES = (0, 1, 100, 4095, 4096, 20_000, 65_536, 200_001)
RACED_SIZES = (16, 5_000, 100_000)
_MOST_TOLD = 5


class Campaign:
    """A pool of nodes that goes through all rounds. A context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        nodes: int = 4,
        traffic_s: float = 1.5,
        pause_s: float = 2.5,
    ) -> None:
        self.seed = seed
        self.calls = 0
        self._traffic_s = traffic_s
        self._pause_s = pause_s
        self._pool = Pool(directory, nodes)

    def run_round(self, number: int, scenario: Scenario | None = None) -> str:
        """One round to its end; returns the name of what struck. Raises `Failure`."""
        chosen = SCENARIOS[number % len(SCENARIOS)] if scenario is None else scenario
        name = chosen.strike.__name__
        try:
            self._run(number, chosen)
        except (Failure, AssertionError) as failure:
            raise Failure(f"round {number} ({name}): {failure}") from failure
        return name

    def _run(self, number: int, scenario: Scenario) -> None:
        pool = self._pool
        pool.complete()
        rng = random.Random(f"{self.seed}:{number}")
        durable = [f"r{number}/durable-{n}/{SIZES[n % len(SIZES)]}" for n in range(24)]
        now = Round(number, rng, pool, self._pause_s, durable)
        self._lay_down(durable)
        volatile = [f"r{number}/volatile-{n}/{SIZES[n % len(SIZES)]}" for n in range(24)]
        raced = [f"r{number}/raced-{n}/{RACED_SIZES[n % len(RACED_SIZES)]}" for n in range(6)]
        some, others = (durable, durable) if scenario.only_durable else (volatile, raced)
        clients = list(pool.clients)
        seconds = scenario.traffic(self._traffic_s, self._pause_s)
        for client in clients:
            writes = not scenario.only_durable
            client.say("run", durable, some, others, writes, seconds, f"{self.seed}:{number}:{client.name}")
        now.nap(self._traffic_s / 3)
        scenario.strike(now)
        for client in clients:
            client.hear()
        keys = [*durable, *some, *others]
        if now.was_away:
            pool.complete()
            wait_until(lambda: agree(clients, keys), PATIENCE_S, "all clients see the same")
        for client in clients:
            client.ask("each", "get", keys)
        pool.check_alive()
        self._judge(now, [op for client in clients for op in client.news()])
        pool.no_pins()
        pool.complete()
        pool.forget()

    def _lay_down(self, durable: list[str]) -> None:
        """Two copies of each, in a chain."""
        client = self._pool.clients[0]
        before = None
        for key in durable:
            done = client.ask("put", key, 0, 2, before)
            if done != "created 2":
                raise Failure(f"with all nodes alive a put of {key} with two replicas ended as {done!r}")
            before = key

    def _judge(self, now: Round, ops: list) -> None:
        ops += now.more_ops
        self.calls += len(ops)
        promise = Promise(frozenset(now.durable), CALL_S, now.one_content, now.may_fail)
        problems = check(ops, promise)
        if problems:
            told = "\n  ".join(problems[:_MOST_TOLD])
            raise Failure(f"{len(problems)} of {len(ops)} calls must not have ended so:\n  {told}")

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.close()


def agree(clients: list[ClientProcess], keys: list[str]) -> bool:
    """Whether all of them find the same; may take a while after a node was away."""
    answers = [client.ask("each", "get", keys) for client in clients]
    return all(answer == answers[0] for answer in answers)


def run(directory: Path, *, rounds: int, seed: int, only: int | None = None, **how: float) -> None:
    """All rounds; says what was done."""
    started = time.monotonic()
    counts: dict[str, int] = {}
    with Campaign(directory, seed=seed, **how) as campaign:  # type: ignore[arg-type]
        for number in [only] if only is not None else range(rounds):
            name = campaign.run_round(number)
            counts[name] = counts.get(name, 0) + 1
            print(f"round {number}: {name}, {time.monotonic() - started:.1f} s", flush=True)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print(f"seed {seed}: {campaign.calls} calls in {time.monotonic() - started:.0f} s, all right: {listed}")
