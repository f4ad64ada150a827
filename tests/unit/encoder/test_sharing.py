from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvferry.config import load_config
from kvferry.encoder import (
    EncoderIdentity,
    EncoderKeys,
    EncoderPlanner,
    EncoderReader,
    EncoderWriter,
    Medium,
    pack,
)
from kvferry.encoder.reader import Answer
from kvferry.errors import KVFerryError, UnavailableError
from kvferry.pool import StoreLink
from kvferry.store import Store, open_embedded
from kvferry.testing.waiting import wait_until

KEYS = EncoderKeys(EncoderIdentity(model="m"))
ROOM = 1 << 20
PATIENCE_S = 60.0


@pytest.fixture
def store() -> Iterator[Store]:
    with open_embedded(load_config({"store": {"dram": 8 << 20}}, environ={})) as opened:
        yield opened


class Gate:
    """A store whose calls wait until the gate is open, or fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = threading.Event()
        self.open.set()
        self.error: KVFerryError | None = None
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.open.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            return getattr(self._store, name)(*arguments, **options)

        return call

    def close(self) -> None:
        pass


@pytest.fixture
def gate(store: Store) -> Gate:
    return Gate(store)


@pytest.fixture
def make_reader(gate: Gate) -> Iterator[Callable[..., EncoderReader]]:
    made: list[EncoderReader] = []

    def make(capacity_bytes: int = ROOM, wait_s: float = PATIENCE_S) -> EncoderReader:
        link = StoreLink(lambda: gate)  # type: ignore[arg-type,return-value]
        made.append(EncoderReader(link, KEYS, capacity_bytes=capacity_bytes, wait_s=wait_s))
        return made[-1]

    yield make
    gate.open.set()
    for reader in made:
        reader.close()


@pytest.fixture
def writer(gate: Gate) -> Iterator[EncoderWriter]:
    made = EncoderWriter(StoreLink(lambda: gate), KEYS, capacity_bytes=ROOM)  # type: ignore[arg-type,return-value]
    yield made
    gate.open.set()
    made.close()


def output(rows: int = 4, width: int = 8, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def put(store: Store, media: str, values: np.ndarray) -> None:
    store.put(KEYS.key(media), [pack("float32", values.shape), values])


def answer(reader: EncoderReader, media: str, rows: int = 4, **options: Any) -> Answer:
    answers = [Answer.WAIT]

    def settled() -> bool:
        answers.append(reader.ask(media, rows, **options))
        return answers[-1] is not Answer.WAIT

    wait_until(settled, PATIENCE_S, f"{media} to settle")
    return answers[-1]


def test_what_one_engine_encodes_another_loads(
    make_reader: Callable[..., EncoderReader], writer: EncoderWriter
) -> None:
    values = output()
    writer.save("cat", "float32", values.shape, values)
    assert writer.settled(PATIENCE_S)
    reader = make_reader()
    assert answer(reader, "cat") is Answer.READY
    found = reader.ready("cat")
    assert found is not None
    assert (found.dtype, found.shape, found.data.tobytes()) == ("float32", (4, 8), values.tobytes())
    assert writer.take_counts() == {"saves|stored": 1, "saved_bytes|": values.nbytes}
    assert reader.take_counts() == {"loads|loaded": 1, "loaded_bytes|": values.nbytes}
    assert reader.take_counts() == {}


def test_an_output_is_put_once_even_if_the_last_bits_differ(writer: EncoderWriter, store: Store) -> None:
    writer.save("cat", "float32", (4, 8), output(seed=1))
    assert writer.settled(PATIENCE_S)
    writer.save("cat", "float32", (4, 8), output(seed=2))
    assert writer.settled(PATIENCE_S)
    assert writer.take_counts() == {"saves|stored": 1, "saved_bytes|": 128, "saves|there": 1}
    assert (store.get(KEYS.key("cat")) or b"").endswith(output(seed=1).tobytes())


def test_saving_waits_for_nothing_and_holds_bounded_memory(gate: Gate, writer: EncoderWriter) -> None:
    gate.open.clear()
    big = np.zeros((ROOM // 2 // 32, 8), np.float32)
    for number in range(5):
        writer.save(f"m{number}", "float32", big.shape, big)
    writer.save("m0", "float32", big.shape, big)  # waits already
    assert writer.take_counts() == {"saves|dropped": 3}
    gate.open.set()
    assert writer.settled(PATIENCE_S)
    assert writer.take_counts()["saves|stored"] == 2


@pytest.mark.parametrize("error", [UnavailableError("gone"), KVFerryError("odd")])
def test_a_store_that_fails_costs_nothing_but_the_sharing(
    gate: Gate, make_reader: Callable[..., EncoderReader], writer: EncoderWriter, error: KVFerryError
) -> None:
    gate.error = error
    writer.save("cat", "float32", (4, 8), output())
    assert writer.settled(PATIENCE_S)
    assert writer.take_counts() == {"saves|failed": 1}
    reader = make_reader()
    assert answer(reader, "cat") is Answer.ABSENT
    assert reader.take_counts() == {"loads|failed": 1}


def test_absent_means_the_encoder_runs_here(make_reader: Callable[..., EncoderReader]) -> None:
    reader = make_reader()
    assert answer(reader, "cat") is Answer.ABSENT
    assert reader.ready("cat") is None
    assert reader.take_counts() == {"loads|absent": 1}


def test_what_is_being_made_elsewhere_is_waited_for(
    make_reader: Callable[..., EncoderReader], store: Store, gate: Gate
) -> None:
    reader = make_reader()
    assert reader.ask("cat", 4, patience_s=PATIENCE_S) is Answer.WAIT
    wait_until(lambda: gate.calls.count("sizes") > 2, PATIENCE_S, "several looks")
    put(store, "cat", output())
    assert answer(reader, "cat", patience_s=PATIENCE_S) is Answer.READY


def test_no_request_waits_longer_than_it_may(make_reader: Callable[..., EncoderReader], gate: Gate) -> None:
    gate.open.clear()
    reader = make_reader(wait_s=0.05)
    assert reader.ask("cat", 4) is Answer.WAIT
    assert answer(reader, "cat") is Answer.ABSENT
    assert reader.take_counts() == {"loads|late": 1}
    gate.open.set()  # what comes now is of no use, and does no harm
    assert answer(reader, "dog") is Answer.ABSENT
    assert reader.ready("cat") is None


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        b"\0" * 200,
        pack("float32", (4, 8)),
        pack("float32", (4, 8)) + b"\0" * 127,
        pack("float32", (3, 8)) + b"\0" * 96,
    ],
)
def test_what_is_no_such_output_is_not_loaded(
    make_reader: Callable[..., EncoderReader], store: Store, value: bytes
) -> None:
    store.put(KEYS.key("cat"), value)
    reader = make_reader()
    assert answer(reader, "cat") is Answer.ABSENT
    assert reader.take_counts() == {"loads|failed": 1}


def test_an_output_of_other_rows_is_not_used_for_a_request(
    make_reader: Callable[..., EncoderReader], store: Store
) -> None:
    put(store, "cat", output(rows=4))
    reader = make_reader()
    assert answer(reader, "cat", 4) is Answer.READY
    assert reader.ask("cat", 5) is Answer.ABSENT
    assert reader.ready("cat") is None


def test_fetched_outputs_take_bounded_memory(make_reader: Callable[..., EncoderReader], store: Store) -> None:
    big = np.zeros((ROOM * 2 // 5 // 32, 8), np.float32)
    reader = make_reader()
    for number in range(5):
        put(store, f"m{number}", big)
        assert answer(reader, f"m{number}", len(big)) is Answer.READY
    assert [reader.ready(f"m{number}") is not None for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    put(store, "huge", np.zeros((ROOM // 16, 8), np.float32))
    assert answer(reader, "huge", ROOM // 16) is Answer.ABSENT


def test_a_closed_reader_and_writer_say_no(
    make_reader: Callable[..., EncoderReader], writer: EncoderWriter
) -> None:
    reader = make_reader()
    reader.close()
    reader.close()
    assert reader.ask("cat", 4) is Answer.ABSENT
    writer.close()
    writer.close()
    writer.save("cat", "float32", (4, 8), output())
    assert writer.take_counts() == {}


class TestPlanner:
    def settle(self, planner: EncoderPlanner, *media: Medium) -> None:
        wait_until(lambda: planner.settled(media), PATIENCE_S, "the request to be let go on")

    def test_a_load_that_was_promised_is_kept(
        self, make_reader: Callable[..., EncoderReader], store: Store
    ) -> None:
        put(store, "cat", output())
        reader = make_reader()
        planner = EncoderPlanner(reader, publishes=False)
        assert not planner.settled([Medium("cat", 4)])
        self.settle(planner, Medium("cat", 4), Medium("dog", 4))
        assert planner.has("cat")
        assert not planner.has("dog")
        reader.forget("cat")  # dropped for want of room in the very moment
        assert planner.has("cat")
        planner.allocated("cat")
        planner.allocated("dog")
        step = planner.take_step([])
        assert list(step.loads) == ["cat"]
        assert planner.take_step([]).loads == {}
        assert planner.settled([Medium("cat", 4), Medium("dog", 4)]), "both are in the engine's own cache"

    def test_a_promise_ends_with_its_step(
        self, make_reader: Callable[..., EncoderReader], store: Store
    ) -> None:
        put(store, "cat", output())
        reader = make_reader()
        planner = EncoderPlanner(reader, publishes=False)
        self.settle(planner, Medium("cat", 4))
        assert planner.has("cat")
        assert planner.take_step([]).loads == {}
        reader.forget("cat")
        assert not planner.has("cat")

    def test_what_left_the_engine_is_looked_for_again(
        self, make_reader: Callable[..., EncoderReader], gate: Gate
    ) -> None:
        planner = EncoderPlanner(make_reader(), publishes=True)
        self.settle(planner, Medium("cat", 4))
        planner.allocated("cat")
        planner.take_step([])
        looks = len(gate.calls)
        assert planner.settled([Medium("cat", 4)])
        assert planner.take_step([]).publish == ["cat"]
        assert len(gate.calls) == looks
        planner.take_step(["cat"])
        assert not planner.settled([Medium("cat", 4)])

    def test_an_engine_that_only_encodes_loads_nothing(self) -> None:
        planner = EncoderPlanner(None, publishes=True)
        assert planner.settled([Medium("cat", 4)])
        assert not planner.has("cat")
        planner.allocated("cat")
        assert planner.take_step([]) == ({}, [])
        assert planner.settled([Medium("cat", 4)])
        assert planner.take_step([]) == ({}, ["cat"])
