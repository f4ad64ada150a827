"""Pins and unpins that are not paired: a node holds the pins of the views that live, and no others.

Held to that over random schedules: views are made, closed, dropped, kept by arrays, left by exceptions, of
objects that are removed, put anew and evicted meanwhile.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvferry.config import load_config
from kvferry.errors import DeadlineExceededError, KVFerryError, NotFoundError, ResourceExhaustedError
from kvferry.store import Store, View, open_embedded
from kvferry.testing.waiting import wait_until

MIB = 1 << 20
PUT_S = 0.3  # for a put, which waits so long where all is being read
KEYS = [f"key {number}" for number in range(12)]


def content(key: str, version: int) -> bytes:
    return f"{key} {version} ".encode() * (MIB // 16)


def arrays_of(view: View) -> list[Any]:
    """The object in place, in one run or a few; each holds the pin."""
    return [np.frombuffer(piece, dtype=np.uint8) for piece in view.pieces]


def joined(runs: list[Any]) -> bytes:
    return b"".join(run.tobytes() for run in runs)


class Schedule:
    """One random schedule, and what it should leave."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._rng = random.Random(seed)
        self._versions = dict.fromkeys(KEYS, 0)
        self._views: list[tuple[View, bytes]] = []
        self._arrays: list[tuple[list[Any], bytes]] = []
        self._fillers = 0

    def step(self) -> None:
        """Do something."""
        self._rng.choice(
            [self.look, self.look, self.look, self.close, self.drop, self.keep_array, self.let_array_go,
             self.fail_inside, self.remove_and_put_anew, self.press]
        )()  # fmt: skip

    def _view(self, key: str) -> View | None:
        try:
            return self._store.view(key)
        except NotFoundError:  # evicted
            self._store.put_many([key], [content(key, self._versions[key])], timeout_s=PUT_S)
            return None

    def look(self) -> None:
        key = self._rng.choice(KEYS)
        if len(self._views) < 10 and (view := self._view(key)) is not None:
            self._views.append((view, content(key, self._versions[key])))

    def _take(self) -> tuple[View, bytes] | None:
        return self._views.pop(self._rng.randrange(len(self._views))) if self._views else None

    def close(self) -> None:
        if taken := self._take():
            assert bytes(taken[0].data) == taken[1]
            taken[0].close()
            taken[0].close()

    def drop(self) -> None:
        self._take()

    def keep_array(self) -> None:
        if len(self._arrays) < 5 and (taken := self._take()):
            runs = arrays_of(taken[0])
            taken[0].close()
            self._arrays.append((runs, taken[1]))

    def let_array_go(self) -> None:
        if self._arrays:
            runs, right = self._arrays.pop(0)
            assert joined(runs) == right

    def fail_inside(self) -> None:
        view = self._view(self._rng.choice(KEYS))
        if view is not None:
            with pytest.raises(KeyError), view:
                raise KeyError

    def remove_and_put_anew(self) -> None:
        """Who looks at the old bytes keeps them."""
        key = self._rng.choice(KEYS)
        self._store.remove(key)
        self._versions[key] += 1
        self._store.put_many([key], [content(key, self._versions[key])], timeout_s=PUT_S)

    def press(self) -> None:
        """Others put, so that what is not pinned is evicted."""
        for _ in range(6):
            self._fillers += 1
            try:
                value = bytes([self._fillers % 256]) * MIB
                self._store.put(f"filler {self._fillers}", value, timeout_s=PUT_S)
            except (ResourceExhaustedError, DeadlineExceededError):
                return  # nearly all is being read, or the machine stands still

    def check(self) -> None:
        """The law, and that all that is held is still what it was."""
        gc.collect()
        held = [(arrays_of(view), right) for view, right in self._views] + self._arrays
        assert all(joined(runs) == right for runs, right in held)
        objects = {runs[0].ctypes.data for runs, _right in held}
        assert self._store.node_stats().pinned_objects == len(objects)

    def end(self) -> None:
        """Let go of everything."""
        self._views.clear()
        self._arrays.clear()
        gc.collect()


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """Let collections look at what the test makes only, not at all that the run has made before."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("own_garbage")
def test_the_node_holds_the_pins_of_living_views_and_no_others(extent) -> None:
    with open_embedded(load_config({"store": {"dram": 24 * MIB}}, environ={})) as store:
        for seed in range(extent.times(4, 100)):
            schedule = Schedule(store, seed)
            for number in range(60):
                schedule.step()
                if number % 5 == 4:
                    schedule.check()
            schedule.end()
            schedule.check()
            store.remove_many(KEYS)
        store.remove_many([info.key for info in store.scan()])
        wait_until(lambda: store.node_stats().dram_used == 0, 60, "all memory is free again")


def test_errors_of_reads_leave_no_pins() -> None:
    with open_embedded(load_config({"store": {"dram": 24 * MIB}}, environ={})) as store:
        store.put("key", bytes(100_000))
        for call in (
            lambda: store.get_into("key", bytearray(10)),
            lambda: store.get_range("key", 99_999, bytearray(2)),
            lambda: store.get_into("key", bytearray(100_000), timeout_s=-1),
            lambda: store.view("other"),
        ):
            with pytest.raises(KVFerryError):
                call()
        assert store.node_stats().pinned_objects == 0
