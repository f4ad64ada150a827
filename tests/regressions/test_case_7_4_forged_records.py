"""Case 7.4: whoever can write to the metadata store does not become a member, and brings no node back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from _members import PATIENCE_S, PREFIX, SECRET, Members, member, node_ids, records, see
from kvferry.config import ClusterOptions
from kvferry.meta import Membership, open_store
from kvferry.meta.records import Sealer
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.waiting import wait_until


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def members(etcd: EtcdCluster) -> Iterator[Members]:
    with Members(lambda: open_store(ClusterOptions(store=etcd.address), SECRET)) as members:
        store = members.store()
        for entry in store.list(""):
            store.delete(entry.key)
        yield members


def lease_of(etcd: EtcdCluster, number: str = "0") -> str:
    """A lease that an attacker holds; he may choose its number."""
    answer = etcd.request("/v3/lease/grant", {"TTL": "3600", "ID": number})
    assert "error" not in answer
    return answer["ID"]


def expect(membership: Membership, **counts: int) -> None:
    wait_until(lambda: membership.ignored() == counts, PATIENCE_S, f"{counts} ignored")


def test_a_forged_record_is_no_member(etcd: EtcdCluster, members: Members) -> None:
    a, b = members.join(2)
    phantom = member(endpoint="6.6.6.6:666")
    lease = lease_of(etcd)
    forged = Sealer("default", "what the attacker guesses").seal(phantom, counter=1, lease=lease, settings={})
    etcd.put(PREFIX + phantom.node_id, forged, lease=lease)
    for x in (a, b):
        expect(x, forged=1)
        assert len(x.members().members) == 2
    # Nor does a change of somebody else's record pass: address, or whose it is.
    node_id = a._own.member.node_id
    real = records(members.store())[node_id]
    etcd.put(PREFIX + phantom.node_id, real, lease=lease)
    etcd.put(PREFIX + secrets.token_hex(16), real.replace(b"127.0.0.1:7000", b"6.6.6.6:70000"), lease=lease)
    for x in (a, b):
        expect(x, forged=3)
        assert {found.endpoint for found in x.members().members} == {"127.0.0.1:7000"}
        assert node_id in node_ids(x)


def test_a_record_of_a_node_that_left_does_not_bring_it_back(etcd: EtcdCluster, members: Members) -> None:
    a, b = members.join(2)
    gone = b._own.member.node_id
    entry = next(entry for entry in members.store().list(PREFIX) if entry.key.endswith(gone))
    b.leave()
    see([a], 1)
    etcd.put(entry.key, entry.value)
    expect(a, forged=1)  # it hangs on no lease
    etcd.put(entry.key, entry.value, lease=lease_of(etcd))
    expect(a, forged=2)  # on another one
    etcd.put(entry.key, entry.value, lease=lease_of(etcd, entry.lease))
    expect(a, forged=2, replayed=1)  # the attacker made one of the same number
    assert len(a.members().members) == 1


def test_an_old_record_of_a_living_node_changes_nothing(etcd: EtcdCluster, members: Members) -> None:
    a, b = members.join(2)
    key = PREFIX + b._own.member.node_id
    store = members.store()
    old = store.get(key)
    b.update(dram_bytes=42)
    wait_until(lambda: 42 in {found.dram_bytes for found in a.members().members}, PATIENCE_S)
    etcd.put(key, old.value, lease=old.lease)
    expect(a, replayed=1)
    wait_until(lambda: store.get(key).value != old.value, PATIENCE_S, "the node puts its record back")
    assert 42 in {found.dram_bytes for found in a.members().members}
    assert len(a.members().members) == 2


def test_rubbish_in_the_store_is_counted_and_no_more(etcd: EtcdCluster, members: Members) -> None:
    a, b = members.join(2)
    rubbish = [b"", b"\xff" * 100, b"{}", b"0" * 64 + b"\n{}", b"x" * 60_000]
    for n, value in enumerate(rubbish):
        etcd.put(f"{PREFIX}rubbish{n}", value)
    for x in (a, b):
        wait_until(lambda x=x: sum(x.ignored().values()) == len(rubbish), PATIENCE_S, "all counted")
        assert len(x.members().members) == 2
    late = members.make()
    assert len(late.join().members) == 3
