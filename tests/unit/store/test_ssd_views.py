"""Objects that lie on SSD, looked at in place."""

from __future__ import annotations

from pathlib import Path

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


def test_what_lies_on_ssd_is_brought_into_memory_to_be_seen(tmp_path: Path) -> None:
    with open_embedded(settings(ssd_directory=str(tmp_path / "log"), ssd=128 << 20)) as store:
        for number in range(OBJECTS):
            store.put(str(number), value(number))
        wait_until(lambda: len(on_ssd(store)) >= 5, 30)
        for key in on_ssd(store):
            with store.view(key) as view:
                assert bytes(view.data) == value(int(key))


def test_no_room_for_one_object_is_no_error_of_the_others(tmp_path: Path) -> None:
    """All memory is being read: what lies on SSD cannot be brought into it; the absent is still absent."""
    with open_embedded(settings(ssd_directory=str(tmp_path / "log"), ssd=128 << 20)) as store:
        for number in range(OBJECTS):
            store.put(str(number), value(number))
        wait_until(lambda: len(on_ssd(store)) >= 5, 30)
        below = on_ssd(store)[0]
        views = [store.view(info.key) for info in store.scan() if info.tier == "dram"]
        in_memory = next(info.key.decode() for info in store.scan() if info.tier == "dram")
        full = [f"fill {number}" for number in range(OBJECTS)]
        for key in full:
            if store.put_many([key], [value(1)], timeout_s=1)[0].error is not None:
                break
            views.append(store.view(key))
        targets = [bytearray(OBJECT_BYTES) for _ in range(3)]
        got = store.get_many_into([below, "absent", in_memory], targets, timeout_s=2)
        assert isinstance(got[0].error, ResourceExhaustedError)
        assert isinstance(got[1].error, NotFoundError)
        assert got[2].error is None
        assert targets[2] == value(int(in_memory))
        for view in views:
            view.close()
        assert store.get(below) == value(int(below))
