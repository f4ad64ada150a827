"""Objects that lie on SSD, looked at in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.store.conftest import settings

from kvferry.errors import NotFoundError, ResourceExhaustedError
from kvferry.store import Store, open_embedded
from kvferry.testing.waiting import wait_until

OBJECTS = 48
OBJECT_BYTES = 1_000_000  # all together half as much again as the memory


def value(number: int) -> bytes:
    return bytes([number]) * OBJECT_BYTES


def on_ssd(store: Store) -> list[str]:
    return [info.key.decode() for info in store.scan() if info.tier == "ssd"]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Store]:
    """Holds more than its memory does; each object is on SSD before the next one comes."""
    tier = {"ssd_directory": str(tmp_path / "log"), "ssd": 128 << 20, "ssd_write": "through"}
    with open_embedded(settings(**tier)) as store:
        for number in range(OBJECTS):
            store.put(str(number), value(number))
            wait_until(lambda least=number + 1: store.node_stats().counters["ssd_written_total"] >= least, 60)
        wait_until(lambda: len(on_ssd(store)) >= 5, 60)
        yield store


def test_what_lies_on_ssd_is_brought_into_memory_to_be_seen(full: Store) -> None:
    for key in on_ssd(full):
        with full.view(key) as view:
            assert bytes(view.data) == value(int(key))


def test_no_room_for_one_object_is_no_error_of_the_others(full: Store) -> None:
    """All memory is being read: what lies on SSD cannot be brought into it; the absent is still absent."""
    below, in_memory = on_ssd(full)[0], next(i.key.decode() for i in full.scan() if i.tier == "dram")
    views = [full.view(info.key) for info in full.scan() if info.tier == "dram"]
    for number in range(OBJECTS):
        key = f"fill {number}"
        if full.put_many([key], [value(1)], timeout_s=1)[0].error is not None:
            break
        views.append(full.view(key))
    targets = [bytearray(OBJECT_BYTES) for _ in range(3)]
    got = full.get_many_into([below, "absent", in_memory], targets, timeout_s=2)
    assert isinstance(got[0].error, ResourceExhaustedError)
    assert isinstance(got[1].error, NotFoundError)
    assert got[2].error is None
    assert targets[2] == value(int(in_memory))
    for view in views:
        view.close()
    assert full.get(below) == value(int(below))
