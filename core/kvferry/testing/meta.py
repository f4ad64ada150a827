"""What every metadata store must do, as one class of tests for pytest: subclass it, and all of it runs.

    from kvferry.testing.meta import MetaStoreConformance

    class TestMyStore(MetaStoreConformance):
        @pytest.fixture
        def open_store(self) -> Callable[[], MetaStore]:
            return lambda: MyStore(...)  # each call: another client of the same, empty store

Put `pytest.register_assert_rewrite("kvferry.testing.meta")` before the import for readable failures.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry.errors import CancelledError, InvalidArgumentError, KVFerryError, NotFoundError
from kvferry.meta import CREATE_ONLY, Batch, Event, MetaStore
from kvferry.testing.waiting import PATIENCE_S, read_until

OpenStore = Callable[[], MetaStore]
TTL_S = 1.0


class MetaStoreConformance:
    """Define the fixture `open_store`: it returns a function that gives clients of one empty store."""

    @pytest.fixture
    def stores(self, open_store: OpenStore) -> Iterator[OpenStore]:
        """As `open_store`; what it gave is closed after the test."""
        with contextlib.ExitStack() as stack:
            yield lambda: stack.enter_context(contextlib.closing(open_store()))

    @pytest.fixture
    def store(self, stores: OpenStore) -> MetaStore:
        """One client."""
        return stores()

    @pytest.fixture
    def other(self, stores: OpenStore) -> MetaStore:
        """Another client of the same store."""
        return stores()

    # Keys and values.

    @pytest.mark.parametrize("value", [b"", b"\n", bytes(range(256)), b"\0" * 65536], ids=len)
    def test_what_was_put_is_what_others_get(self, store: MetaStore, other: MetaStore, value: bytes) -> None:
        revision = store.put("a/b", value)
        entry = other.get("a/b")
        assert entry is not None
        assert (entry.key, entry.value, entry.revision, entry.lease) == ("a/b", value, revision, "")

    def test_a_key_that_is_not_there_is_none(self, store: MetaStore) -> None:
        assert store.get("nothing") is None
        assert store.list("nothing") == ()
        assert store.delete("nothing") is False

    def test_every_change_has_a_greater_revision(self, store: MetaStore, other: MetaStore) -> None:
        revisions = [client.put(f"k{n % 3}", b"x") for n, client in enumerate([store, other] * 5)]
        assert revisions == sorted(set(revisions))
        assert revisions[0] > CREATE_ONLY

    def test_deleted_is_gone(self, store: MetaStore, other: MetaStore) -> None:
        store.put("a", b"1")
        assert other.delete("a") is True
        assert store.get("a") is None
        assert store.delete("a") is False

    def test_list_gives_the_prefix_sorted_and_nothing_else(self, store: MetaStore) -> None:
        keys = ["a", "a/", "a/z", "a/b", "a/b.c", "a0", "b", "A/b", "a-b"]
        for key in keys:
            store.put(key, key.encode())
        for prefix in ("a/", "a", "", "a/b", "c"):
            found = [(entry.key, entry.value) for entry in store.list(prefix)]
            assert found == [(key, key.encode()) for key in sorted(keys) if key.startswith(prefix)]

    @pytest.mark.parametrize(
        "key", ["", "a b", "a\0", "ä", "a" * 201, "a+b", "a%2Fb", "../a\n"], ids=range(8)
    )
    def test_a_key_that_is_not_allowed_is_refused(self, store: MetaStore, key: str) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: store.put(key, b""),
            lambda: store.get(key),
            lambda: store.delete(key),
            lambda: store.compare_and_swap(key, 0, b""),
            lambda: store.list(f"{key} "),
            lambda: store.watch(f"{key} "),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                call()

    @pytest.mark.parametrize("key", [".", "..", "../..", "/", "/a/" * 60, "a" * 200])
    def test_no_allowed_key_is_special(self, store: MetaStore, key: str) -> None:
        store.put(key, b"v")
        assert [entry.key for entry in store.list("")] == [key]
        assert store.delete(key)

    def test_a_value_that_is_too_long_is_refused(self, store: MetaStore) -> None:
        with pytest.raises(InvalidArgumentError, match="65537"):
            store.put("a", bytes(65537))
        assert store.get("a") is None

    # Compare and swap.

    def test_swap_only_at_the_named_revision(self, store: MetaStore, other: MetaStore) -> None:
        first = store.compare_and_swap("a", CREATE_ONLY, b"1")
        assert first is not None
        assert other.compare_and_swap("a", CREATE_ONLY, b"2") is None
        assert other.compare_and_swap("a", first + 1, b"2") is None
        second = other.compare_and_swap("a", first, b"2")
        assert second is not None
        assert store.compare_and_swap("a", first, b"3") is None
        entry = store.get("a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"2", second)
        store.delete("a")
        assert store.compare_and_swap("a", second, b"3") is None
        assert store.compare_and_swap("a", CREATE_ONLY, b"3") is not None

    def test_of_those_who_count_at_the_same_time_none_is_lost(self, stores: OpenStore) -> None:
        each, failures = 10, list[BaseException]()
        clients = [stores() for _ in range(4)]
        clients[0].put("count", b"0")

        def count(client: MetaStore) -> None:
            done = 0
            while done < each:
                entry = client.get("count")
                assert entry is not None
                done += (
                    client.compare_and_swap("count", entry.revision, b"%d" % (int(entry.value) + 1))
                    is not None
                )

        def run(client: MetaStore) -> None:
            try:
                count(client)
            except (AssertionError, KVFerryError) as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        entry = clients[0].get("count")
        assert not failures
        assert entry is not None
        assert entry.value == b"%d" % (each * len(clients))

    # Leases.

    def test_keys_end_with_their_lease_and_others_stay(self, store: MetaStore, other: MetaStore) -> None:
        lease = store.lease(60.0)
        store.put("leased", b"1", lease=lease)
        store.compare_and_swap("swapped", CREATE_ONLY, b"1", lease=lease)
        store.put("free", b"1")
        assert [entry.lease for entry in other.list("")] == ["", lease.id, lease.id]
        lease.revoke()
        assert [entry.key for entry in other.list("")] == ["free"]
        assert lease.keep_alive() is False
        lease.revoke()
        with pytest.raises(NotFoundError):
            store.put("late", b"1", lease=lease)

    def test_a_key_that_was_put_again_without_the_lease_stays(self, store: MetaStore) -> None:
        lease = store.lease(60.0)
        store.put("a", b"1", lease=lease)
        store.put("a", b"2")
        lease.revoke()
        entry = store.get("a")
        assert entry is not None
        assert (entry.value, entry.lease) == (b"2", "")

    def test_a_lease_that_nobody_keeps_alive_ends(self, store: MetaStore, other: MetaStore) -> None:
        watch = other.watch("a")
        silent, kept = store.lease(TTL_S), store.lease(TTL_S)
        assert silent.ttl_s >= TTL_S
        store.put("a/silent", b"1", lease=silent)
        store.put("a/kept", b"1", lease=kept)
        started, state = time.monotonic(), dict[str, bytes]()
        with contextlib.closing(watch):
            while time.monotonic() - started < PATIENCE_S and list(state) != ["a/kept"]:
                assert kept.keep_alive() is True
                for event in getattr(watch.next(0.2), "events", ()):
                    state.pop(event.key, None) if event.entry is None else state.update({event.key: b""})
        assert time.monotonic() - started > TTL_S / 2
        assert list(state) == ["a/kept"]
        assert [entry.key for entry in other.list("a")] == ["a/kept"]
        assert silent.keep_alive() is False

    @pytest.mark.parametrize("ttl_s", [0.0, 0.9, -1.0, 1e9, float("nan")])
    def test_a_lease_time_that_makes_no_sense_is_refused(self, store: MetaStore, ttl_s: float) -> None:
        with pytest.raises(InvalidArgumentError):
            store.lease(ttl_s)

    # Watches.

    def test_a_watch_tells_the_state_first_even_if_that_is_nothing(self, store: MetaStore) -> None:
        store.put("ab", b"not under it")
        with contextlib.closing(store.watch("a/")) as watch:
            assert watch.next(PATIENCE_S) == Batch((), resync=True)
            assert watch.next(0.1) is None
        store.put("a/1", b"1")
        with contextlib.closing(store.watch("a/")) as watch:
            batch = watch.next(PATIENCE_S)
            assert batch == Batch((Event("a/1", store.get("a/1")),), resync=True)

    def test_a_watch_tells_what_others_change(self, store: MetaStore, other: MetaStore) -> None:
        with contextlib.closing(store.watch("a/")) as watch:
            first = watch.next(PATIENCE_S)
            assert first is not None
            assert first.resync
            other.put("a/1", b"1")
            other.put("b/1", b"1")
            batch = watch.next(PATIENCE_S)
            assert batch == Batch((Event("a/1", other.get("a/1")),), resync=False)
            other.put("a/1", b"2")
            batch = watch.next(PATIENCE_S)
            assert batch == Batch((Event("a/1", other.get("a/1")),), resync=False)
            other.delete("a/1")
            assert watch.next(PATIENCE_S) == Batch((Event("a/1", None),), resync=False)
            assert watch.next(0.1) is None

    def test_a_watch_ends_in_the_latest_state_however_many_changes(
        self, store: MetaStore, other: MetaStore
    ) -> None:
        with contextlib.closing(store.watch("a/")) as watch:
            for n in range(100):
                other.put(f"a/{n % 7}", b"%d" % n)
                if n % 10 == 9:
                    other.delete(f"a/{(n + 3) % 7}")
            wanted = {entry.key: entry.value for entry in other.list("a/")}
            assert read_until(watch, lambda state: state == wanted) == wanted

    def test_closing_ends_a_waiting_reader(self, store: MetaStore) -> None:
        watch = store.watch("")
        assert watch.next(PATIENCE_S) is not None
        closer = threading.Timer(0.2, watch.close)
        closer.start()
        with pytest.raises(CancelledError):
            watch.next(PATIENCE_S)
        closer.join()
        watch.close()
        with pytest.raises(CancelledError):
            watch.next(0.0)

    def test_nothing_goes_through_a_closed_store(self, stores: OpenStore, other: MetaStore) -> None:
        store = stores()
        lease = store.lease(60.0)
        watch = store.watch("")
        store.put("a", b"1")
        store.close()
        store.close()
        calls: list[Callable[[], Any]] = [
            lambda: store.put("a", b"2"),
            lambda: store.get("a"),
            lambda: store.list(""),
            lambda: store.lease(60.0),
            lambda: store.put("a", b"2", lease=lease),
            lambda: watch.next(1.0),
        ]
        for call in calls:
            with pytest.raises(CancelledError):
                call()
        entry = other.get("a")
        assert entry is not None
        assert entry.value == b"1"
