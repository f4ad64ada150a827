"""Puts faster than the SSD tier can take them, and what a node says of an SSD tier that cannot be."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.store.conftest import settings

from kvferry.errors import KVFerryError
from kvferry.store import Store, open_embedded

MIB = 1 << 20
DRAM_MIB, OBJECTS, WRITERS = 16, 160, 3


def put_some(store: Store, value: bytes, writer: int) -> None:
    for first in range(0, OBJECTS, 10):
        keys = [f"{writer}-{number}" for number in range(first, first + 10)]
        errors = [result.error for result in store.put_many(keys, [value] * len(keys), timeout_s=60)]
        assert errors == [None] * len(keys)


@pytest.mark.parametrize("mode", ["back", "through"])
def test_writers_are_slowed_down_and_nothing_is_lost(tmp_path: Path, mode: str) -> None:
    value = os.urandom(MIB // 2)
    config = settings(dram=DRAM_MIB * MIB, ssd_directory=str(tmp_path / "log"), ssd=1 << 30, ssd_write=mode)
    with open_embedded(config) as store:
        with ThreadPoolExecutor(WRITERS) as pool:
            done = [pool.submit(put_some, store, value, writer) for writer in range(WRITERS)]
        for writer in done:
            writer.result()
        keys = [f"{writer}-{number}" for writer in range(WRITERS) for number in range(OBJECTS)]
        stats = store.node_stats()
        assert stats.counters["ssd_skipped_total"] == 0
        assert stats.counters["evicted_total"] == 0
        assert stats.degraded == []
        assert all(store.exists_many(keys))
        assert store.get(keys[0]) == value
        assert store.get(keys[-1]) == value


def test_a_put_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    """Everything is looked at, so that no room can be made: that is said at once, whatever the disk does."""
    config = settings(dram=4 * MIB, ssd_directory=str(tmp_path / "log"), ssd=256 * MIB)
    with open_embedded(config) as store:
        for number in range(3):
            store.put(str(number), bytes(MIB))
        views = [store.view(str(number)) for number in range(3)]
        with pytest.raises(KVFerryError, match="pinned"):
            store.put("more", bytes(3 * MIB), timeout_s=30)
        for view in views:
            view.close()
        store.put("more", bytes(3 * MIB), timeout_s=30)


def test_an_ssd_tier_larger_than_an_index_can_describe_names_the_flag(tmp_path: Path) -> None:
    config = settings(ssd_directory=str(tmp_path / "log"), ssd=1 << 50)
    with pytest.raises(KVFerryError, match=r"one for each 64 KiB of --ssd.*--max-objects.*at most"):
        open_embedded(config)
    assert not (tmp_path / "log").exists()


def test_only_the_last_part_of_the_directory_is_made(tmp_path: Path) -> None:
    config = settings(ssd_directory=str(tmp_path / "disk" / "log"), ssd=64 * MIB)
    with pytest.raises(KVFerryError, match="mount its disk, or make it"):
        open_embedded(config)
    assert not (tmp_path / "disk").exists()
