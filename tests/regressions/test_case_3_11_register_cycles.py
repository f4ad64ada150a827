"""Case 3.11: register/unregister cycles split mappings until the kernel's limit is hit."""

from __future__ import annotations

import mmap
import os
import random

import numpy as np
import pytest

from _engines import engine_pair

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
