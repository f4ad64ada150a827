"""Objects that lie on SSD, looked at in place."""

from __future__ import annotations

from pathlib import Path

from tests.unit.store.conftest import settings

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
