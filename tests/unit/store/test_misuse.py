"""What programs do wrong with a store: other types, closed stores and views, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.unit.store.conftest import settings

from kvferry.errors import CancelledError, InvalidArgumentError, OutOfRangeError, UnsupportedError
from kvferry.store import Runs, Store, open_embedded, open_store

DEADLINE_S = 30.0


@pytest.mark.parametrize("key", [5, None, [1, 2], 10**12, "\ud800", 1.5])
def test_what_is_neither_bytes_nor_text_is_no_key(store: Store, key: Any) -> None:
    for call in (lambda: store.put(key, b"value"), lambda: store.get(key), lambda: store.exists(key)):
        with pytest.raises(InvalidArgumentError, match="key"):
            call()
    assert list(store.scan()) == []


@pytest.mark.parametrize(
    "empty",
    [
        np.zeros(0),
        np.zeros((0, 3)),
        np.zeros(0, "M8[D]"),
        memoryview(b""),
        bytearray(),
        [],
        [b"", np.zeros(0)],
    ],
    ids=["array", "rows", "dates", "memoryview", "bytearray", "no runs", "empty runs"],
)
def test_every_empty_buffer_has_0_bytes(store: Store, empty: Any) -> None:
    store.put("empty", empty)
    assert store.get("empty") == b""
    assert store.get_into("empty", np.zeros(0, np.uint8)) == 0
    assert store.get_range("empty", 0, np.zeros(0, np.uint8)) == 0


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1 << 70])
def test_offsets_outside_any_object(store: Store, offset: int) -> None:
    store.put("key", b"value")
    with pytest.raises(OutOfRangeError):
        store.get_range("key", offset, bytearray(1))


@pytest.mark.parametrize(
    "options",
    [{"tags": "abc"}, {"tags": b"abc"}, {"tags": [5]}, {"replicas": -1}, {"replicas": 17}],
    ids=["one tag", "bytes", "number", "negative", "many"],
)
def test_options_of_puts_that_cannot_be_meant(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put("key", b"value", **options)
    assert not store.exists("key")


EIGHT = np.frombuffer(b"12345678", np.uint8)


def _runs(*values: list[tuple[int, int]]) -> Runs:
    flat = [run for value in values for run in value]
    return Runs(
        np.array([address for address, _ in flat], np.uint64),
        np.array([length for _, length in flat], np.uint64),
        np.array([len(value) for value in values], np.int64),
        [],
    )


@pytest.mark.parametrize(
    "wrong",
    [
        [(EIGHT.ctypes.data, 8), (1 << 20, 1 << 63), (1 << 20, 1 << 63)],
        [(1 << 20, (1 << 64) - 8)],
        [((1 << 64) - 4, 8)],
    ],
    ids=["sum", "one long", "one high"],
)
def test_runs_that_add_up_to_more_than_there_is_harm_no_other(
    store: Store, wrong: list[tuple[int, int]]
) -> None:
    """Their sum modulo 2^64 was taken for the size."""
    good = [(EIGHT.ctypes.data, 8)]
    results = store.put_runs(["good", "wrong", "also good"], _runs(good, wrong, good))
    assert [result.created for result in results] == [True, False, True]
    assert isinstance(results[1].error, InvalidArgumentError)
    assert 'key "wrong"' in str(results[1].error)
    assert not store.exists("wrong")
    target = np.zeros(8, np.uint8)
    got = store.get_runs_into(["good", "good"], _runs(wrong, [(target.ctypes.data, 8)]))
    assert isinstance(got[0].error, InvalidArgumentError)
    assert got[1].error is None
    assert target.tobytes() == b"12345678"


TIMES: list[Any] = ["5", b"5", [1], float("nan"), -1, -0.5]


@pytest.mark.parametrize("wrong", TIMES, ids=repr)
def test_what_is_no_time_is_named(store: Store, wrong: Any) -> None:
    """Not the signature of the native call, which says nothing to who called this one."""
    with pytest.raises(InvalidArgumentError, match="ttl_s"):
        store.put("key", b"value", ttl_s=wrong)
    with pytest.raises(InvalidArgumentError, match="within_s"):
        store.prefetch(["key"], within_s=wrong)
    for call in (
        lambda: store.put("key", b"value", timeout_s=wrong),
        lambda: store.get("key", timeout_s=wrong),
        lambda: store.get_range("key", 0, bytearray(1), timeout_s=wrong),
        lambda: store.view("key", timeout_s=wrong),
        lambda: store.exists("key", timeout_s=wrong),
        lambda: store.match_prefix(["key"], timeout_s=wrong),
        lambda: list(store.scan(timeout_s=wrong)),
        lambda: store.remove("key", timeout_s=wrong),
        lambda: store.remove_tag("tag", timeout_s=wrong),
        lambda: store.node_stats(timeout_s=wrong),
    ):
        with pytest.raises(InvalidArgumentError, match="timeout_s"):
            call()
    assert list(store.scan()) == []


@pytest.mark.parametrize("ttl_s", [0, 0.0, 1e-9, 0.0009])
def test_what_would_be_absent_at_once_is_not_put(store: Store, ttl_s: float) -> None:
    for call in (
        lambda: store.put("key", b"value", ttl_s=ttl_s),
        lambda: store.put_many(["key"], [b"value"], ttl_s=ttl_s),
    ):
        with pytest.raises(InvalidArgumentError, match=r"ttl_s.*0\.001 s is the least"):
            call()


def test_an_address_in_place_of_a_configuration_is_named() -> None:
    wrong: Any = "127.0.0.1:7000"
    for call in (lambda: open_store(wrong), lambda: open_embedded(wrong)):
        with pytest.raises(InvalidArgumentError, match=r"not str; an address is given as open_store\(node="):
            call()
    with pytest.raises(InvalidArgumentError, match=r"address such as .*, not int"):
        open_store(settings(), node=7000)  # type: ignore[arg-type]


def test_times_of_any_number_type(store: Store) -> None:
    for time_s in (5, np.float32(5), np.int64(5), 10**400, float("inf")):
        store.put("key", b"value", ttl_s=time_s, timeout_s=time_s)  # type: ignore[arg-type]
    [info] = store.scan()
    assert info.expires_in_s is not None


def generator() -> Iterator[bytes]:
    yield b"value"


@pytest.mark.parametrize("values", [generator(), {"key": b"value"}, {b"value"}, 5, None], ids=repr)
def test_values_that_are_no_sequence_are_named(store: Store, values: Any) -> None:
    for call in (store.put_many, store.get_many_into):
        with pytest.raises(InvalidArgumentError, match="values"):
            call(["key"], values)
    assert not store.exists("key")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"replicas": "2"}, "replicas"), ({"replicas": 1.5}, "replicas"), ({"replicas": None}, "replicas"),
        ({"tags": 5}, "tags"), ({"tags": None}, "tags"), ({"tags": ["\ud800"]}, "tag"),
        ({"parents": 5}, "keys"), ({"chain": "yes"}, "chain"),
    ],
)  # fmt: skip
def test_other_arguments_of_the_wrong_type_are_named(
    store: Store, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        store.put_many(["key"], [b"value"], **options)
    for call in (
        lambda: store.exists_many(5),  # type: ignore[arg-type]
        lambda: store.get_range("key", "0", bytearray(1)),  # type: ignore[arg-type]
        lambda: store.get_many_into(["key"], [bytearray(1)], verify="no"),  # type: ignore[arg-type]
        lambda: store.remove_tag(5),  # type: ignore[arg-type]
        lambda: store.remove_tag("\ud800"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"keys|offset|verify|tag"):
            call()
    assert not store.exists("key")


class Sparse:
    """Looks like a sparse torch.Tensor."""

    layout = "torch.sparse_csr"

    @property
    def nbytes(self) -> int:
        raise RuntimeError("nbytes is not defined for sparse tensors.")

    def data_ptr(self) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


def test_a_sparse_tensor_is_no_value(store: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="has no memory of its own"):
        store.put("key", Sparse())
    with pytest.raises(InvalidArgumentError, match="has no memory of its own"):
        store.get_into("key", Sparse())


def test_one_value_is_not_several(store: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="sequence of values"):
        store.put_many(["a", "b"], b"xy")


def test_a_closed_view_is_not_taken_for_an_empty_object(store: Store) -> None:
    store.put("key", b"value")
    view = store.view("key")
    view.close()
    for look in (lambda: view.data, lambda: view.pieces):
        with pytest.raises(InvalidArgumentError, match="closed"):
            look()


def test_a_closed_store_says_so() -> None:
    store = open_embedded(settings())
    store.put("key", b"value")
    store.close()
    calls = (
        lambda: store.put("other", b""),
        lambda: store.get("key"),
        lambda: store.exists("key"),
        lambda: store.match_prefix(["key"]),
        lambda: store.sizes(["key"]),
        lambda: store.view("key"),
        lambda: store.remove("key"),
        lambda: store.remove_tag("tag"),
        lambda: list(store.scan()),
        lambda: store.prefetch(["key"]),
        store.node_stats,
        lambda: asyncio.run(store.aio.get("key")),
    )
    for call in calls:
        with pytest.raises(CancelledError, match="this store is closed"):
            call()


def in_child(work: Any) -> int:
    """Return the exit code of a forked child that runs `work()`; it is killed after the deadline."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_neither_use_the_store_nor_take_pins_of_its_parent(store: Store) -> None:
    value = os.urandom(1_000_000)
    store.put("seen", value)
    view = store.view("seen")
    assert asyncio.run(store.aio.exists("seen"))  # whose thread, idle now, a child does not have

    def work() -> None:
        for call in (
            lambda: store.get("seen"),
            lambda: store.put("other", b"value"),
            lambda: store.view("seen"),
            lambda: store.exists("seen"),
            lambda: list(store.scan()),
            lambda: asyncio.run(store.aio.exists("seen")),
        ):
            with pytest.raises(UnsupportedError, match="forked"):
                call()
        view.close()
        store.close()

    assert in_child(work) == 0
    assert store.node_stats().pinned_objects == 1
    for index in range(80):  # more than twice the node's memory
        store.put(f"other {index}", os.urandom(1_000_000))
    assert bytes(view.data) == value


def test_all_calls_can_be_awaited(store: Store) -> None:
    at_once = {
        "aio",
        "close",
        "counters",
        "error",
        "in_place",
        "members",
        "own_endpoint",
        "prefetch",
        "register",
        "unregister",
    }
    from_addresses = {"put_runs", "get_runs_into"}
    calls = {name for name in dir(Store) if not name.startswith("_")} - at_once - from_addresses
    assert calls == {name for name in dir(type(store.aio)) if not name.startswith("_")}

    async def ask() -> tuple[list[int | None], int]:
        await store.aio.put("key", b"value")
        return await store.aio.sizes(["key", "absent"]), (await store.aio.node_stats()).objects

    assert asyncio.run(ask()) == ([5, None], 1)
