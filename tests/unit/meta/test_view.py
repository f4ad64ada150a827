from __future__ import annotations

import pytest

from kvferry.errors import DataCorruptError, InvalidArgumentError, ProtocolError, UnauthenticatedError
from kvferry.meta.records import MAX_RECORD_BYTES, Member, Sealer, difference
from kvferry.meta.store import Batch, Entry, Event
from kvferry.meta.view import STALE_AFTER, ViewState

SECRET = "a secret of the cluster"
LEASE_S = 5.0
PREFIX = "kvferry/default/members/"


def member(n: int, **fields: object) -> Member:
    return Member(node_id=f"{n:032x}", endpoint=f"10.0.0.{n}:7000", host_id=f"host{n}", **fields)


class Scene:
    """One node's view of a store, with a clock that the test turns."""

    def __init__(self, settings=None):
        self.sealer = Sealer("default", SECRET)
        self.now = 1000.0
        self.revision = 0
        self.state = ViewState(member(1), self.sealer, settings or {}, lease_s=LEASE_S, now=self.now)

    def entry(self, who: Member, counter: int = 1, lease: str = "77", sealer=None, settings=None) -> Entry:
        self.revision += 1
        value = (sealer or self.sealer).seal(who, counter=counter, lease=lease, settings=settings or {})
        return Entry(PREFIX + who.node_id, value, self.revision, "77")

    def put(self, *entries: Entry, resync: bool = False):
        batch = Batch(tuple(Event(entry.key, entry) for entry in entries), resync)
        return [ignored.reason for ignored in self.state.apply(batch, self.now)]

    def remove(self, who: Member, resync: bool = False):
        self.state.apply(Batch((Event(PREFIX + who.node_id, None),), resync), self.now)

    def wait(self, seconds: float, step: float = 0.5):
        """Let time pass as it does while nothing hinders us."""
        until = self.now + seconds
        while self.now < until:
            self.now += step
            self.state.tick(self.now)

    def members(self) -> list[int]:
        return [int(found.node_id, 16) for found in self.state.view.members]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_alone_it_is_the_only_member(scene):
    assert scene.state.view == (1, (member(1),))


def test_members_come_and_go_and_the_number_grows_with_every_change(scene):
    numbers = [scene.state.view.number]
    for change in (
        lambda: scene.put(scene.entry(member(3))),
        lambda: scene.put(scene.entry(member(2))),
        lambda: scene.put(scene.entry(member(3, dram_bytes=5), counter=2)),
        lambda: scene.remove(member(3)),
        lambda: scene.state.set_own(member(1, roles=("draining",))),
    ):
        change()
        numbers.append(scene.state.view.number)
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert scene.state.view.members == (member(1, roles=("draining",)), member(2))


def test_what_changes_nothing_leaves_the_number(scene):
    scene.put(scene.entry(member(2)))
    number = scene.state.view.number
    scene.put(scene.entry(member(2), counter=2))
    scene.remove(member(9))
    scene.wait(3)
    assert scene.state.view.number == number


def test_our_own_key_in_the_store_is_not_asked_about_us(scene):
    scene.put(scene.entry(member(1, dram_bytes=99)))
    scene.remove(member(1))
    assert scene.state.view == (1, (member(1),))


def test_a_forged_record_is_ignored_and_counted(scene):
    forger = Sealer("default", "another secret, quite long")
    assert scene.put(scene.entry(member(2), sealer=forger)) == ["forged"]
    assert scene.put(scene.entry(member(2), sealer=Sealer("other", SECRET))) == ["forged"]
    assert scene.members() == [1]
    assert scene.state.ignored == {"forged": 2}


def test_a_record_moved_to_another_key_or_lease_is_forged(scene):
    entry = scene.entry(member(2))
    assert scene.put(entry._replace(key=PREFIX + member(3).node_id)) == ["forged"]
    assert scene.put(entry._replace(lease="78")) == ["forged"]
    assert scene.put(entry._replace(lease="")) == ["forged"]
    assert scene.put(scene.entry(member(2), lease="")) == ["forged"]
    assert scene.put(entry) == []


@pytest.mark.parametrize("value", [b"", b"\n", b"0" * 64, b"0" * 64 + b"\n" + b"x" * MAX_RECORD_BYTES, b"{}"])
def test_what_is_no_record_is_ignored(scene, value):
    assert scene.put(scene.entry(member(2))._replace(value=value)) == ["malformed"]
    assert scene.members() == [1]


def test_every_flipped_bit_is_noticed(scene):
    entry = scene.entry(member(2))
    for n in range(0, len(entry.value) * 8, 5):
        changed = bytearray(entry.value)
        changed[n // 8] ^= 1 << n % 8
        assert scene.put(entry._replace(value=bytes(changed))) in (["forged"], ["malformed"])
    assert scene.members() == [1]


def test_a_replayed_record_is_ignored_while_the_node_lives_and_after_it_left(scene):
    first, second = scene.entry(member(2, dram_bytes=1)), scene.entry(member(2, dram_bytes=2), counter=2)
    scene.put(first)
    scene.put(second)
    assert scene.put(first) == ["replayed"]
    assert scene.state.view.members[1].dram_bytes == 2
    scene.remove(member(2))
    assert scene.put(first, second) == ["replayed", "replayed"]
    assert scene.members() == [1]
    assert scene.put(scene.entry(member(2), counter=3)) == []
    assert scene.members() == [1, 2]


def test_an_old_incarnation_is_ignored_whatever_its_counter(scene):
    scene.put(scene.entry(member(2, incarnation=2)))
    assert scene.put(scene.entry(member(2, incarnation=1), counter=9)) == ["replayed"]
    assert scene.put(scene.entry(member(2, incarnation=3))) == []


def test_a_forged_record_over_a_real_one_removes_it_only_if_it_is_not_put_back(scene):
    scene.put(scene.entry(member(2)))
    scene.put(scene.entry(member(2))._replace(value=b"rubbish"))
    scene.wait(LEASE_S - 1)
    assert scene.members() == [1, 2]
    scene.put(scene.entry(member(2), counter=2))
    scene.wait(3 * LEASE_S)
    assert scene.members() == [1, 2]
    scene.put(scene.entry(member(2))._replace(value=b"rubbish"))
    scene.wait(LEASE_S + 1)
    assert scene.members() == [1]


def test_a_record_missing_after_a_reconnection_may_be_put_back_for_one_lease(scene):
    for n in (2, 3):
        scene.put(scene.entry(member(n)))
    for n in (2, 3):
        scene.remove(member(n), resync=True)
    scene.wait(LEASE_S - 1)
    assert scene.members() == [1, 2, 3]
    scene.put(scene.entry(member(2), counter=2))
    scene.wait(2)
    assert scene.members() == [1, 2]


def test_nothing_expires_while_the_store_is_away(scene):
    scene.put(scene.entry(member(2)))
    scene.put(scene.entry(member(3)))
    scene.remove(member(3), resync=True)
    scene.state.suspect(member(2).node_id, scene.now)
    scene.state.set_reachable(False, scene.now)
    scene.wait(1000)
    assert scene.members() == [1, 3]
    scene.state.set_reachable(True, scene.now)
    scene.wait(LEASE_S - 1)
    assert scene.members() == [1, 3]
    scene.wait(2)
    assert scene.members() == [1]
    scene.wait(LEASE_S)
    assert scene.members() == [1, 2]


def test_a_pause_of_this_process_lets_nothing_expire(scene):
    scene.put(scene.entry(member(2)))
    scene.remove(member(2), resync=True)
    scene.now += 100 * STALE_AFTER * LEASE_S  # stopped, then woken up
    scene.state.tick(scene.now)
    assert scene.members() == [1, 2]


def test_a_suspected_node_is_out_at_once_and_back_when_it_writes(scene):
    scene.put(scene.entry(member(2)))
    scene.state.suspect(member(2).node_id, scene.now)
    assert scene.members() == [1]
    scene.put(scene.entry(member(2), counter=2))
    assert scene.members() == [1, 2]


def test_a_suspected_node_is_back_when_the_store_kept_it_or_it_was_reached(scene):
    scene.put(scene.entry(member(2)))
    scene.state.suspect(member(2).node_id, scene.now)
    scene.wait(2 * LEASE_S - 1)
    assert scene.members() == [1]
    scene.wait(2)
    assert scene.members() == [1, 2]
    scene.state.suspect(member(2).node_id, scene.now)
    scene.state.trust(member(2).node_id, scene.now)
    assert scene.members() == [1, 2]


def test_who_is_heard_but_too_slow_is_taken_back_once_in_a_lease_time(scene):
    scene.put(scene.entry(member(2)))
    scene.state.suspect(member(2).node_id, scene.now)
    scene.state.trust(member(2).node_id, scene.now)
    scene.state.suspect(member(2).node_id, scene.now)
    scene.wait(LEASE_S - 1)
    scene.state.trust(member(2).node_id, scene.now)
    assert scene.members() == [1]
    scene.wait(1)
    scene.state.trust(member(2).node_id, scene.now)
    assert scene.members() == [1, 2]


def test_suspecting_ourselves_or_a_stranger_changes_nothing(scene):
    scene.state.suspect(member(1).node_id, scene.now)
    scene.state.suspect(member(7).node_id, scene.now)
    assert scene.state.view.number == 1


def test_a_record_that_nobody_writes_anew_is_not_believed_for_ever(scene):
    scene.put(scene.entry(member(2)), scene.entry(member(3)))
    scene.wait(STALE_AFTER * LEASE_S - 10)
    scene.put(scene.entry(member(3), counter=2))
    scene.wait(20)
    assert scene.members() == [1, 3]
    assert scene.state.ignored == {"stale": 1}


def test_a_node_with_other_settings_is_left_out_with_one_sentence():
    scene = Scene({"replicas": 2, "format": 1})
    entry = scene.entry(member(2), settings={"replicas": 3, "format": 1})
    (ignored,) = scene.state.apply(Batch((Event(entry.key, entry),), False), scene.now)
    assert ignored.reason == "mismatched"
    assert ignored.text == (
        f'replicas is 2 here and 3 on node {member(2).node_id} (10.0.0.2:7000) of cluster "default"; '
        "it must be the same on all nodes"
    )


def test_a_setting_differs_by_value_by_type_and_by_absence():
    assert difference({"a": 1, "b": "x"}, {"b": "x", "a": 1}) is None
    assert difference({"a": 1}, {"a": 2}) == ("a", "1", "2")
    assert difference({"a": 1}, {"a": True}) == ("a", "1", "true")
    assert difference({"a": 1}, {}) == ("a", "1", "not set")
    assert difference({}, {"a": "x"}) == ("a", "not set", '"x"')


def test_records_survive_the_round_trip():
    sealer = Sealer("default", SECRET)
    who = member(2, incarnation=3, dram_bytes=1 << 40, ssd_bytes=7, roles=("store", "directory"))
    value = sealer.seal(who, counter=9, lease="77", settings={"replicas": 2})
    record = sealer.open(Entry(PREFIX + who.node_id, value, 1, "77"))
    assert (record.member, record.counter, record.settings) == (who, 9, {"replicas": 2})


IMPOSSIBLE = [
    {"node_id": "0" * 32},
    {"node_id": "xyz"},
    {"endpoint": ""},
    {"host_id": ""},
    {"incarnation": 0},
    {"dram_bytes": -1},
    {"roles": ("Not a role",)},
    {"roles": ("a",) * 17},
]


@pytest.mark.parametrize("fields", IMPOSSIBLE, ids=lambda fields: next(iter(fields)))
def test_a_member_that_cannot_be_is_refused_when_it_is_written(fields):
    valid = {"node_id": "1" * 32, "endpoint": "h:1", "host_id": "h"}
    with pytest.raises(InvalidArgumentError):
        Sealer("default", SECRET).seal(Member(**{**valid, **fields}), counter=1, lease="1", settings={})


def test_why_a_record_is_not_believed_has_its_own_error():
    sealer = Sealer("default", SECRET)
    who = member(2)
    key = PREFIX + who.node_id
    value = sealer.seal(who, counter=1, lease="1", settings={})
    with pytest.raises(UnauthenticatedError, match="cluster_secret"):
        Sealer("default", "other").open(Entry(key, value, 1, "1"))
    with pytest.raises(DataCorruptError):
        sealer.open(Entry(key, b"rubbish", 1, "1"))
    for body in (
        b"not json",
        b'{"format":1}',
        value.partition(b"\n")[2].replace(b'"format":1', b'"format":2'),
    ):
        with pytest.raises(ProtocolError, match="format"):
            sealer.open(Entry(key, sealer._tag(body) + b"\n" + body, 1, "1"))
