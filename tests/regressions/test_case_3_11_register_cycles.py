"""Case 3.11: register/unregister cycles split mappings until the kernel's limit is hit."""

from __future__ import annotations

import logging
import mmap
import os
import random

import numpy as np
import pytest

from _engines import engine_pair, pattern
from kvferry.transfer import Engine, TransferEngine, _logging

PAGE = mmap.PAGESIZE


def mappings() -> int:
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


@pytest.mark.slow
def test_register_cycles_on_changing_ranges_leave_no_mappings_behind(extent):
    rng = random.Random(7)
    memory = np.frombuffer(mmap.mmap(-1, 64 << 20), dtype=np.uint8)
    with engine_pair() as pair:

        def cycle(count: int) -> None:
            for _ in range(count):
                start = rng.randrange(0, 48 << 20)
                length = rng.randrange(1, 16 << 20)
                pair.server.register(memory[start : start + length], name="m").unregister()

        cycle(200)
        before = mappings()
        cycle(extent.times(20_000, 100_000))
        assert mappings() - before < 10
        pair.peer.refresh()
        assert pair.peer.regions == []


@pytest.mark.slow
def test_allocate_cycles_leave_no_mappings_or_descriptors_behind():
    with engine_pair() as pair:

        def cycle(count: int) -> None:
            for number in range(count):
                region = pair.server.allocate((number % 7 + 1) * PAGE + 1, name="m")
                region.memory[0] = 1
                region.unregister()

        cycle(50)
        before = (mappings(), len(os.listdir("/proc/self/fd")))
        cycle(2000)
        after = (mappings(), len(os.listdir("/proc/self/fd")))
        assert after[0] - before[0] < 10
        assert after[1] <= before[1]


def test_memory_that_is_registered_again_is_the_same_region_until_all_are_gone():
    memory = pattern(PAGE)
    with engine_pair() as pair:
        first = pair.server.register(memory, name="m")
        # More of them than there can be regions.
        again = [pair.server.register(memory, name="m") for _ in range(5000)]
        assert {region.id for region in again} == {first.id}
        for region in (first, *again[1:]):
            region.unregister()
            region.unregister()  # idempotent: does not take another's registration back
        pair.peer.refresh()
        assert [region.id for region in pair.peer.regions] == [first.id]
        again[0].unregister()
        pair.peer.refresh()
        assert pair.peer.regions == []


def test_registering_before_each_transfer_registers_once(monkeypatch):
    """Ascend/TransferQueue#169: registration took 85 % of the time to read."""
    calls = []
    real = Engine.register
    monkeypatch.setattr(
        Engine, "register", lambda self, *args, **names: calls.append(1) or real(self, *args, **names)
    )
    theirs, ours = pattern(1 << 16), np.zeros(1 << 16, np.uint8)
    with TransferEngine() as owner, TransferEngine() as user:
        for _ in range(200):
            owner.register_memory(theirs, name="cache")
            user.register_memory(ours)
            ours[:] = 0
            user.wait(user.transfer(user.remote(str(owner.endpoint), "cache"), ours))
            assert (ours == theirs).all()
        assert len(calls) == 2


def test_memory_that_is_registered_all_the_time_is_warned_of_once(caplog):
    memory = pattern(PAGE)
    with Engine() as engine, caplog.at_level(logging.WARNING, logger="kvferry"):
        for _ in range(200):
            engine.register(memory, name="again").unregister()
        _logging.flush()
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "registered_too_often" in line]
    assert f"address={memory.ctypes.data:#x} bytes={PAGE} name=again times=61" in line
    assert "register this memory once" in line
