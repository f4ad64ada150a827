from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvferry.meta
from _members import LEASE_S, PATIENCE_S, Members, member, node_ids, records, see
from kvferry.config import ClusterOptions
from kvferry.errors import ConfigError, InvalidArgumentError
from kvferry.meta import View, open_store
from kvferry.metrics import MetricRegistry
from kvferry.testing.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def members(folder: Path) -> Iterator[Members]:
    with Members(lambda: open_store(ClusterOptions(directory=str(folder)), "")) as members:
        yield members


CHILD = """
import json, sys
import kvferry.meta
from kvferry.config import ClusterOptions
from kvferry.meta import Member, Membership, open_store
folder, node_id, lease_s, secret = sys.argv[1:]
who = Member(node_id=node_id, endpoint="127.0.0.1:7001", host_id="host")
store = open_store(ClusterOptions(directory=folder), "")
membership = Membership(store, cluster="default", secret=secret, member=who, lease_s=float(lease_s))
print(len(membership.join().members), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(folder: Path) -> Iterator[subprocess.Popen]:
    arguments = [str(folder), "c" * 32, "1.0", "a secret of the cluster"]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().strip().isdigit()
        yield process
        process.kill()


def test_members_find_each_other_and_leave(members):
    a, b, c = members.join(3)
    assert node_ids(a) == node_ids(b) == node_ids(c)
    b.leave()
    b.leave()
    see([a, c], 2)
    assert b.members().members


def test_join_returns_everybody_who_is_there(members):
    first = members.make()
    assert len(first.join().members) == 1
    view = members.make().join()
    assert len(view.members) == 2
    assert list(view.members) == sorted(view.members, key=lambda found: found.node_id)


def test_many_who_enter_at_the_same_instant_all_see_each_other(members):
    many = [members.make(lease_s=5.0) for _ in range(16)]
    barrier = threading.Barrier(len(many))

    def enter(membership):
        barrier.wait(PATIENCE_S)
        membership.join(PATIENCE_S)

    threads = [threading.Thread(target=enter, args=(membership,)) for membership in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    see(many, len(many))
    assert {frozenset(node_ids(membership)) for membership in many} == {frozenset(node_ids(many[0]))}
    assert all(membership.ignored() == {} for membership in many)


def test_no_clock_that_can_jump_is_used():
    sources = [path.read_text() for path in Path(kvferry.meta.__file__).parent.rglob("*.py")]
    assert len(sources) > 10
    assert not [text for text in sources if re.search(r"time\.time|datetime|localtime|st_mtime", text)]


def test_clusters_of_other_names_do_not_meet(members):
    one, two = members.make(), members.make(cluster="other")
    one.join()
    two.join()
    time.sleep(0.2)
    assert (len(one.members().members), len(two.members().members)) == (1, 1)


def test_a_description_can_change(members):
    a, b = members.join(2)
    a.update(roles=("draining",), dram_bytes=77)
    wait_until(lambda: any(found.dram_bytes == 77 for found in b.members().members), PATIENCE_S)
    assert any(found.roles == ("draining",) for found in a.members().members)
    with pytest.raises(InvalidArgumentError):
        a.update(dram_bytes=-1)


def test_listeners_get_the_present_view_and_every_later_state(members):
    (a,) = members.join(1)
    seen: list[View] = []
    told = threading.Event()

    def listen(view: View) -> None:
        seen.append(view)
        if len(view.members) == 2:
            told.set()

    def fail(_view: View) -> None:
        raise RuntimeError("a bug of the listener")

    a.on_change(fail)
    forget = a.on_change(listen)
    wait_until(lambda: bool(seen), PATIENCE_S)
    b = members.make()
    b.join()
    assert told.wait(PATIENCE_S)
    numbers = [view.number for view in seen]
    assert numbers == sorted(set(numbers))
    forget()
    b.leave()
    see([a], 1)
    time.sleep(0.1)
    assert len(seen[-1].members) == 2


def test_a_suspected_node_is_out_at_once_and_trust_takes_it_back(members):
    a, b = members.join(2)
    other = next(iter(node_ids(b) - {a.members().members[0].node_id}), "")
    other = next(node_id for node_id in node_ids(a) if node_id != a._own.member.node_id)
    number = a.members().number
    a.suspect(other)
    assert (len(a.members().members), a.members().number) == (1, number + 1)
    assert len(b.members().members) == 2
    a.trust(other)
    assert (len(a.members().members), a.members().number) == (2, number + 2)


def test_a_killed_node_is_gone_long_before_its_lease_ends(members, folder):
    a = members.make(lease_s=600.0)
    a.join()
    arguments = [str(folder), "c" * 32, "600.0", "a secret of the cluster"]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"2\n"
        see([a], 2)
        child.kill()
    see([a], 1)


def test_a_stopped_node_is_gone_after_its_lease_and_back_when_it_goes_on(members, child):
    a = members.make()
    a.join()
    see([a], 2)
    child.send_signal(signal.SIGSTOP)
    see([a], 1)
    child.send_signal(signal.SIGCONT)
    see([a], 2)
    assert a.ignored() == {}


def test_a_removed_directory_is_made_again_and_nobody_is_lost(members, folder):
    three = members.join(3)
    folder.rename(folder.with_name("gone"))  # all at once; they make it again while a removal goes on
    store = members.store()
    wait_until(lambda: len(records(store)) == 3, PATIENCE_S, "three records")
    time.sleep(1.5 * LEASE_S)
    see(three, 3)
    assert {membership.members().number for membership in three} <= {1, 2, 3}


def test_a_removed_record_is_put_back(members):
    (a,) = members.join(1)
    store = members.store()
    (before,) = records(store).items()
    for _ in range(3):
        store.delete(f"kvferry/default/members/{before[0]}")
        wait_until(lambda: len(records(store)) == 1, PATIENCE_S, "record put back")
    (after,) = records(store).items()
    assert (after[0], after[1] != before[1]) == (before[0], True)
    assert len(a.members().members) == 1


def test_other_settings_are_refused_at_the_door(members):
    first = members.make(settings={"replicas": 2, "format": 1})
    first.join()
    second = members.make(member(node_id="d" * 32), settings={"replicas": 3, "format": 1})
    with pytest.raises(
        ConfigError, match=r"replicas is 3 here and 2 on node [0-9a-f]{32} \(127.0.0.1:7000\)"
    ):
        second.join()
    assert "d" * 32 not in records(members.store())
    assert len(first.members().members) == 1
    first.leave()
    members.make(settings={"replicas": 3, "format": 1}).join()


def test_of_two_with_other_settings_who_enter_together_one_stays(members):
    for attempt in range(5):
        pair = [members.make(cluster=f"c{attempt}", settings={"replicas": n}) for n in (1, 2)]
        outcomes = []

        def enter(membership, outcomes=outcomes):
            try:
                outcomes.append(len(membership.join().members))
            except ConfigError:
                outcomes.append("refused")

        threads = [threading.Thread(target=enter, args=(membership,)) for membership in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(outcomes, key=str) == [1, "refused"]


def test_nodes_with_another_secret_do_not_meet_and_the_log_says_why(members, caplog):
    (a,) = members.join(1)
    with caplog.at_level(logging.WARNING, "kvferry.meta"):
        stranger = members.make(secret="another secret of someone")
        stranger.join()
        wait_until(lambda: a.ignored() == {"forged": 1}, PATIENCE_S)
    assert len(stranger.members().members) == len(a.members().members) == 1
    lines = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert len(lines) == 2
    assert all("cluster_secret" in line for line in lines)


def test_a_membership_joins_once(members):
    (a,) = members.join(1)
    with pytest.raises(InvalidArgumentError, match="once"):
        a.join()
    a.leave()
    with pytest.raises(InvalidArgumentError, match="once"):
        a.join()


def test_nothing_is_left_behind(members):
    before = {thread.name for thread in threading.enumerate()}
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Members(members._open_store) as some:
            some.join(2)
    assert {thread.name for thread in threading.enumerate()} == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert records(members.store()) == {}


def test_what_it_counts_is_exported(members):
    a, _ = members.join(2)
    store = members.store()
    store.put("kvferry/default/members/" + "e" * 32, json.dumps({}).encode())
    wait_until(lambda: a.ignored() == {"malformed": 1}, PATIENCE_S)
    registry = MetricRegistry(())
    registry.read_from(a.samples)
    assert registry.value("kvferry_meta_members") == 2
    assert registry.value("kvferry_meta_view") == a.members().number
    assert registry.value("kvferry_meta_store_up") == 1
    assert registry.value("kvferry_meta_ignored_records_total", reason="malformed") == 1
