from __future__ import annotations

import numpy as np
import pytest

from kvferry.config import load_config
from kvferry.errors import ConflictError, NotFoundError, UnavailableError
from kvferry.pool import PagePool
from kvferry.store import PutResult, runs_of
from kvferry.testing.fake_store import FakeStore


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def pool(store):
    found = PagePool(load_config({"pool.node": "own"}, environ={}), open_node=lambda _config: store)
    yield found
    found.close()


def names(*numbers):
    return np.array([[number] * 18 for number in numbers], np.uint8)


def pages(*fills):
    """Two pieces a page."""
    return [[np.full(4, fill, np.uint8), np.full(8, fill + 1, np.uint8)] for fill in fills]


def save(pool, numbers, values):
    return pool.save(names(*numbers), runs_of(values, writable=False), parents=[b""] * len(values), tag="t")


def test_pages_come_back(pool, store):
    assert save(pool, [1, 2], pages(10, 20)) == [True, True]
    assert store.objects[bytes([1] * 18)].tags == ("t",)
    assert pool.hits(names(1, 2, 3)) == 2
    assert pool.present(names(3, 2)).tolist() == [False, True]
    targets = pages(0, 0)
    assert pool.load(names(2, 3), runs_of(targets, writable=True)) == [True, False]
    assert [piece.tolist() for piece in targets[0]] == [[20] * 4, [21] * 8]
    assert pool.take_counts() == {
        "saved_blocks|saved": 2,
        "saved_bytes": 24,
        "lookups|hit": 2,
        "loads|failed": 1,
        "load_failures|not_found": 1,
        "loaded_bytes": 12,
    }
    assert pool.take_counts() == {}


def test_only_what_is_missing_is_put(pool, store):
    save(pool, [1], pages(10))
    assert save(pool, [1, 2], pages(50, 60)) == [True, True]
    assert store.objects[bytes([1] * 18)].data[0] == 10
    assert store.objects[bytes([2] * 18)].data == bytes([60] * 4 + [61] * 8)
    assert save(pool, [1, 2], pages(10, 60)) == [True, True]
    assert store.calls["put_runs"] == 2


def test_somebody_elses_page_of_the_name_is_as_good(pool, store, monkeypatch):
    results = [
        PutResult(ConflictError("other bytes"), False, 0),
        PutResult(UnavailableError("gone"), False, 0),
    ]
    monkeypatch.setattr(store, "put_runs", lambda *_args, **_more: results)
    assert save(pool, [1, 2], pages(10, 20)) == [True, False]
    counts = pool.take_counts()
    assert (counts["saved_blocks|existed"], counts["saved_blocks|failed"]) == (1, 1)
    assert counts["save_failures|unavailable"] == 1


def test_no_call_raises(pool, store, caplog):
    store.down = UnavailableError("no node")
    for _ in range(2):
        assert pool.hits(names(1)) == 0
        assert pool.present(names(1, 2)).tolist() == [False, False]
        assert pool.load(names(1), runs_of(pages(0), writable=True)) == [False]
        assert save(pool, [1], pages(0)) == [False]
    assert pool.forget("t") is None
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 4  # once each, and forget
    counts = pool.take_counts()
    assert counts["lookups|failed"] == 4
    assert counts["saved_blocks|failed"] == 2


def test_a_page_that_has_just_left_is_nothing_to_warn_of(pool, store, caplog, monkeypatch):
    save(pool, [1], pages(10))
    monkeypatch.setattr(store, "_get", lambda *_args: (_ for _ in ()).throw(NotFoundError("absent")))
    assert pool.load(names(1), runs_of(pages(0), writable=True)) == [False]
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_nothing_asked_is_nothing_done(pool, store):
    assert pool.hits(names()) == 0
    assert pool.present(names()).tolist() == []
    assert "match_prefix" not in store.calls


def test_memory_is_registered_whenever_it_comes(pool, store):
    pool.keep(b"early")
    pool.attach()
    pool.keep(b"late")
    assert store.calls["register"] == 2


def test_forget_counts_what_is_gone(pool):
    save(pool, [1, 2], pages(10, 20))
    assert pool.forget("other") == 0
    assert pool.forget("t") == 2


def test_a_node_of_its_own_ends_with_it(store):
    pool = PagePool(load_config({"pool.node": "own"}, environ={}), open_node=lambda _config: store)
    assert pool.embedded
    pool.close()
    pool.close()
    assert store.closed
    assert pool.hits(names(1)) == 0
