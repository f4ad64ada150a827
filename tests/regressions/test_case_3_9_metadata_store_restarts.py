"""Case 3.9: the metadata store restarts, or loses its data. Nodes go on, and all records come back."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from _members import LONG_LEASE_S, PATIENCE_S, PREFIX, SECRET, Members, member, node_ids, records, see
from kvferry.errors import KVFerryError, UnavailableError
from kvferry.meta import Membership
from kvferry.meta.etcd import EtcdStore
from kvferry.meta.etcd.gateway import Gateway
from kvferry.meta.records import Sealer
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.waiting import wait_until


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as etcd:
        yield etcd


@pytest.fixture
def members(etcd: EtcdCluster) -> Iterator[Members]:
    def open_store() -> EtcdStore:
        return EtcdStore(Gateway(etcd.urls, call_timeout_s=1.5))

    with Members(open_store, LONG_LEASE_S) as members:
        yield members


class Watched:
    """The smallest view that each node ever had."""

    def __init__(self, memberships: list[Membership]) -> None:
        self.smallest = [len(membership.members().members) for membership in memberships]
        for index, membership in enumerate(memberships):
            membership.on_change(lambda view, index=index: self._note(index, len(view.members)))

    def _note(self, index: int, count: int) -> None:
        self.smallest[index] = min(self.smallest[index], count)


def lines(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def outage(etcd: EtcdCluster, memberships: list[Membership]) -> None:
    """Kill etcd, wait until everybody noticed, start it again without what it knew."""
    etcd.kill()
    wait_until(lambda: all(m.store_away_s > 0 for m in memberships), PATIENCE_S, "all notice")
    etcd.empty()
    etcd.start()
    etcd.wait_ready()
    wait_until(lambda: all(m.store_away_s == 0 for m in memberships), PATIENCE_S, "all noticed the end")


def test_everything_is_back_and_nobody_was_lost(
    etcd: EtcdCluster, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    three = members.join(3)
    three[0].update(dram_bytes=123456)
    wait_until(lambda: all(123456 in {m.dram_bytes for m in x.members().members} for x in three), PATIENCE_S)
    views, watched, store = [x.members() for x in three], Watched(three), members.store()
    caplog.clear()  # they said that they joined
    with caplog.at_level(logging.INFO, "kvferry.meta"):
        outage(etcd, three)
        wait_until(lambda: set(records(store)) == node_ids(three[0]), PATIENCE_S, "records")
        time.sleep(1.5 * LONG_LEASE_S)  # what was only kept for a while would end now
    assert watched.smallest == [3, 3, 3]
    assert [x.members() for x in three] == views
    sealer = Sealer("default", SECRET)
    stored = {sealer.open(entry).member for entry in store.list(PREFIX)}
    assert stored == set(views[0].members)
    # One line at the change and one at the recovery, for each node; nothing else.
    assert lines(caplog, "going on with the last view, members 3") == 3
    assert lines(caplog, "answers again after") == 3
    assert len(caplog.records) == 6
    assert all(record.getMessage().count("does not answer") <= 1 for record in caplog.records)
    assert {m for x in three for m in x.ignored()} == set()


def test_who_starts_while_it_is_away_says_so_once_and_has_nothing_to_remove(
    etcd: EtcdCluster, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    etcd.kill()
    late = members.make()
    with caplog.at_level(logging.INFO, "kvferry.meta"), pytest.raises(UnavailableError) as refused:
        late.join()
    assert str(refused.value).count(etcd.urls[0]) == 1
    assert caplog.messages == []


def test_an_outage_too_short_to_be_noticed_loses_nobody(etcd: EtcdCluster, members: Members) -> None:
    three = members.join(3)
    watched, store = Watched(three), members.store()
    before = records(store)
    etcd.kill()
    etcd.empty()
    etcd.start()
    etcd.wait_ready()

    def back() -> bool:
        with contextlib.suppress(KVFerryError):
            return set(records(store)) == set(before)
        return False

    wait_until(back, PATIENCE_S, "records")
    time.sleep(1.5 * LONG_LEASE_S)
    assert watched.smallest == [3, 3, 3]


def test_who_dies_during_the_outage_is_gone_after_it_and_who_joins_is_seen(
    etcd: EtcdCluster, members: Members
) -> None:
    a, b, c = members.join(3)
    etcd.kill()
    wait_until(lambda: min(x.store_away_s for x in (a, b, c)) > 0, PATIENCE_S)
    c.leave()
    assert len(a.members().members) == 3
    a.suspect(next(iter(node_ids(a) - {x._own.member.node_id for x in (a, b)})))
    assert (len(a.members().members), len(b.members().members)) == (2, 3)
    etcd.start()  # it still has c's record, until the lease of that ends
    etcd.wait_ready()
    see([a, b], 2)
    late = members.make(member())
    late.join()
    see([a, b, late], 3)
