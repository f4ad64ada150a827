"""Random schedules of everything that can happen to a hand-off.

Nothing leaks, ends twice, or shows foreign bytes.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from _handoff import BlockIds, Clock, Decode, Prefill
from kvferry.errors import DataCorruptError
from kvferry.handoff import LeaseIssuer
from kvferry.handoff.messages import Release, Renew, encode_message
from kvferry.testing import FakeNetwork

BLOCKS = 16
STEPS = 300
SEEDS = 40
FOREIGN = 0xEE


class World:
    """Both engines' schedulers, as far as block accounting goes, around the real hand-off code."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.network = FakeNetwork(clock=self.clock)
        self.network.before_transfer = self.meet_fault
        self.decode = Decode(self.network, self.clock)
        self.decode_pool = BlockIds(BLOCKS)
        self.next_fault = ""
        self.count = 0
        self.offers: list[tuple[str, object, list[int]]] = []  # prefilled, not yet at the decode engine
        self.loading: dict[str, tuple[tuple[int, ...], list[int]]] = {}
        self.old_leases: list[str] = []
        self.seen: Counter[str] = Counter()
        self.start_prefill(None)

    def start_prefill(self, endpoint: str | None) -> None:
        self.prefill = Prefill(self.network, self.clock, lease_s=20.0, endpoint=endpoint)
        self.prefill_pool = BlockIds(BLOCKS)
        self.unadmitted: list[tuple[str, str]] = []

    def prefill_finishes(self) -> None:
        self.count += 1
        request = f"p{self.count}"
        assert request not in self.prefill_pool.used
        blocks = self.prefill_pool.take(request, self.random.randint(1, 4))
        if blocks is None:
            return
        remote = self.prefill.finish(request, blocks, admitted=False)
        self.unadmitted.append((remote.address.lease, request))
        self.old_leases.append(remote.address.lease)
        self.offers.append((f"d{self.count}", remote, self.prefill.memory.values(blocks)))

    def prefill_step(self) -> None:
        leases, self.unadmitted = self.unadmitted, []
        self.prefill.table.admit(self.prefill.issuer.authority, self.prefill.issuer.issued_through, leases)
        for owner in self.prefill.table.take_ended():
            self.prefill_pool.give_back(owner)
        for block in self.prefill_pool.free:
            self.prefill.memory.fill(block, FOREIGN)

    def decode_admits(self) -> None:
        if not self.offers:
            return
        request, remote, values = self.offers.pop(self.random.randrange(len(self.offers)))
        first = self.random.randrange(len(values))
        assert request not in self.decode_pool.used
        blocks = self.decode_pool.take(request, len(values) - first)
        if blocks is None:
            self.offers.append((request, remote, values))
            return
        for block in blocks:
            self.decode.memory.fill(block, 0)
        self.loading[request] = (blocks, values[first:])
        self.decode.submit(request, remote, blocks, first)

    def decode_waits(self) -> None:
        for request, remote, _ in self.offers[:2]:
            self.decode.consumer.watch(request, remote.address)

    def decode_rejects(self) -> None:
        if self.offers:
            request, remote, _ = self.offers.pop()
            self.decode.consumer.release(request, remote.address, "rejected")

    def decode_aborts(self) -> None:
        if self.loading:
            self.decode.consumer.cancel(self.random.choice(list(self.loading)))

    def decode_step(self) -> None:
        for result in self.decode.consumer.take_results():
            blocks, values = self.loading.pop(result.request_id)  # KeyError: reported twice or unknown
            if result.error is None:
                assert self.decode.memory.values(blocks) == values
            self.seen["loaded" if result.error is None else result.error.code] += 1
            self.decode_pool.give_back(result.request_id)

    def threads_run(self) -> None:
        self.decode.loads.run(self.random.randint(1, 3))
        self.decode.chores.run(self.random.randint(0, 3))

    def time_passes(self) -> None:
        self.clock.now += self.random.choice([0.1, 1.0, 1.0, 6.0, 21.0])
        self.prefill.table.expire()
        self.decode.consumer.tick()

    def fault_comes(self) -> None:
        self.next_fault = self.random.choice(["corrupt", "death", "expiry"])

    def meet_fault(self, transfer) -> None:
        fault, self.next_fault = self.next_fault, ""
        if fault == "corrupt":
            raise DataCorruptError("checksum of piece 0 is wrong")
        if fault == "death":
            self.restart_prefill()
        if fault == "expiry":  # the lease runs out and the blocks get other content while they are read
            self.clock.now += 25
            self.prefill.table.expire()
            self.prefill_step()

    def restart_prefill(self) -> None:
        self.prefill.engine.close()
        self.start_prefill(self.prefill.engine.endpoint)

    def suspend_prefill(self) -> None:
        self.prefill.engine.stopped = True

    def resume_prefill(self) -> None:
        self.prefill.engine.stopped = False

    def stray_notice(self) -> None:
        """A late, duplicate, unknown or malformed message from a third node."""
        in_use = {remote.address.lease for _, remote, _ in self.offers}
        ended = [lease for lease in self.old_leases if lease not in in_use and not self.loading]
        lease = self.random.choice([*ended, LeaseIssuer().issue(), "x"])
        reason = self.random.choice(["done", "rejected", "aborted"])
        bodies = [encode_message(Release(lease, 5, reason)), encode_message(Renew((lease,))), b"\xc1junk"]
        if not self.prefill.engine.stopped:
            stranger = self.network.engine()
            stranger.send(stranger.connect(self.prefill.engine.endpoint), self.random.choice(bodies))

    def run(self) -> None:
        weights = {
            self.prefill_finishes: 20,
            self.prefill_step: 20,
            self.decode_admits: 20,
            self.threads_run: 30,
            self.decode_step: 15,
            self.decode_waits: 4,
            self.decode_rejects: 2,
            self.decode_aborts: 3,
            self.time_passes: 5,
            self.fault_comes: 3,
            self.stray_notice: 4,
            self.suspend_prefill: 1,
            self.resume_prefill: 8,
            self.restart_prefill: 1,
        }
        for step in self.random.choices(list(weights), list(weights.values()), k=STEPS):
            step()
            self.decode_pool.check()
            self.prefill_pool.check()
            assert self.decode.consumer.pending() <= len(self.loading)
        self.settle()

    def settle(self) -> None:
        """Let everything run out; then every block must be back, and every lease have ended once."""
        self.resume_prefill()
        for _ in range(4):
            self.decode.loads.run()
            self.decode.chores.run()
            self.decode_step()
            self.clock.now += 21.0
            self.prefill.table.expire()
            self.decode.consumer.tick()
            self.prefill_step()
        assert self.loading == {}
        assert len(self.decode_pool.free) == BLOCKS
        self.decode.consumer.close()
        self.clock.now += 21.0
        self.prefill.table.expire()
        self.prefill_step()
        assert len(self.prefill_pool.free) == BLOCKS
        counts = self.prefill.table.take_counts()
        ended = sum(counts.get(reason, 0) for reason in ("done", "rejected", "aborted", "expired"))
        assert counts.get("granted", 0) == ended


@pytest.mark.parametrize("part", range(4))
def test_nothing_leaks_whatever_the_schedule(part):
    seen: Counter[str] = Counter()
    for seed in range(part, SEEDS, 4):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        seen += world.seen
    # The schedules must have met all of it, or they show nothing.
    assert seen["loaded"] > 100
    for outcome in ("stale", "data_corrupt", "peer_lost", "cancelled", "unavailable", "deadline_exceeded"):
        assert seen[outcome] > 0, outcome
