"""Who is a member, as one node sees it: a pure state machine over records, suspicions and time.

It has no clock, no thread and no store of its own, so that each rule can be tested by itself.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvferry.errors import KVFerryError, ProtocolError, UnauthenticatedError
from kvferry.meta.records import Member, Record, Sealer, Setting, difference
from kvferry.meta.store import Batch, Entry

RENEWALS = 12  # a node writes its record anew after so many lease times ...
STALE_AFTER = 40  # ... and one that was not written anew for so many is not believed any more
_MAX_REMEMBERED = 16384


class View(NamedTuple):
    """The members at one moment, sorted by node id. `number` grows with every change that this node sees."""

    number: int
    members: tuple[Member, ...]


class Ignored(NamedTuple):
    """A record that was not believed: why (a word, for counting), and a sentence."""

    key: str
    reason: str
    text: str


@dataclass
class _Known:
    record: Record
    written_at: float  # when we saw the counter grow
    missing_since: float | None = None
    suspected_at: float | None = None
    trusted_at: float | None = None  # after a suspicion


class ViewState:
    """Takes events in, gives views out. Not thread-safe; `now` is any clock that never goes back, in seconds.

    A record that is missing after a reconnection is kept for one lease time more: a store that lost its data
    gets it back from the nodes. A node under suspicion is left out until it writes again, until `trust`, or
    until the store held its lease for two more lease times. While the store is away nothing expires.
    """

    def __init__(
        self, own: Member, sealer: Sealer, settings: Mapping[str, Setting], *, lease_s: float, now: float
    ) -> None:
        self._own = own
        self._sealer = sealer
        self._settings = settings
        self._lease_s = lease_s
        self._known: dict[str, _Known] = {}
        # node id -> (incarnation, counter) of the newest record that was believed, present or not
        self._newest: collections.OrderedDict[str, tuple[int, int]] = collections.OrderedDict()
        self._reachable = True
        self._ticked_at = now
        self._view = View(1, (own,))
        self.ignored: collections.Counter[str] = collections.Counter()

    @property
    def view(self) -> View:
        """The present view; this node is always part of it."""
        return self._view

    def set_own(self, member: Member) -> None:
        """This node describes itself anew."""
        self._own = member
        self._renew_view()

    def set_reachable(self, reachable: bool, now: float) -> None:
        """Note whether the store answers."""
        if reachable and not self._reachable:
            self._start_afresh(now)
        self._reachable = reachable

    def apply(self, batch: Batch, now: float) -> list[Ignored]:
        """Take changes of the store; returns what was not believed."""
        ignored = []
        for key, entry in batch.events:
            node_id = key.rpartition("/")[2]
            if node_id == self._own.node_id:
                continue
            if entry is None:
                self._gone(node_id, now, at_once=not batch.resync)
            elif problem := self._present(node_id, entry, now):
                self.ignored[problem.reason] += 1
                ignored.append(problem)
                self._gone(node_id, now, at_once=False)
        self._renew_view()
        return ignored

    def suspect(self, node_id: str, now: float) -> None:
        """Leave a node out at once: the data path lost it."""
        known = self._known.get(node_id)
        if known is not None and known.suspected_at is None:
            known.suspected_at = now
            self._renew_view()

    def trust(self, node_id: str, now: float) -> None:
        """Take a node back: it was heard of. Once in a lease time: it may be heard, and yet be too slow."""
        known = self._known.get(node_id)
        if known is None or known.suspected_at is None:
            return
        if known.trusted_at is None or now - known.trusted_at >= self._lease_s:
            known.suspected_at, known.trusted_at = None, now
            self._renew_view()

    def tick(self, now: float) -> None:
        """Let time pass."""
        paused = now - self._ticked_at > self._lease_s  # this process was stopped, not the others
        self._ticked_at = now
        if paused:
            self._start_afresh(now)
        if not self._reachable:
            return
        for node_id, known in list(self._known.items()):
            if known.missing_since is not None and now - known.missing_since > self._lease_s:
                del self._known[node_id]
            elif now - known.written_at > STALE_AFTER * self._lease_s:
                self.ignored["stale"] += 1
                del self._known[node_id]
            elif known.suspected_at is not None and now - known.suspected_at > 2 * self._lease_s:
                known.suspected_at = None
        self._renew_view()

    def _start_afresh(self, now: float) -> None:
        """Count no time in which nothing could be heard."""
        for known in self._known.values():
            known.written_at = now
            known.missing_since = now if known.missing_since is not None else None
            known.suspected_at = now if known.suspected_at is not None else None

    def _gone(self, node_id: str, now: float, *, at_once: bool) -> None:
        known = self._known.get(node_id)
        if known is None:
            return
        if at_once:
            del self._known[node_id]
        elif known.missing_since is None:
            known.missing_since = now

    def _present(self, node_id: str, entry: Entry, now: float) -> Ignored | None:
        """Take a record in, or return why not."""
        try:
            record = self._sealer.open(entry)
        except KVFerryError as error:
            return Ignored(entry.key, _reason(error), str(error))
        if mismatch := difference(self._settings, record.settings):
            return Ignored(entry.key, "mismatched", describe(record, mismatch))
        known = self._known.get(node_id)
        version = (record.member.incarnation, record.counter)
        newest = self._newest.get(node_id, (0, 0))
        if known is not None and known.record == record:
            known.missing_since = None
        elif version <= newest:
            text = f"{entry.key} is a record that was replaced or withdrawn: somebody put it back"
            return Ignored(entry.key, "replayed", text)
        else:
            self._known[node_id] = _Known(record, now)
            self._remember(node_id, version)
        return None

    def _remember(self, node_id: str, version: tuple[int, int]) -> None:
        self._newest[node_id] = version
        self._newest.move_to_end(node_id)
        while len(self._newest) > _MAX_REMEMBERED:
            self._newest.popitem(last=False)

    def _renew_view(self) -> None:
        others = (k.record.member for k in self._known.values() if k.suspected_at is None)
        members = tuple(sorted((self._own, *others), key=lambda member: member.node_id))
        if members != self._view.members:
            self._view = View(self._view.number + 1, members)


def describe(record: Record, mismatch: tuple[str, str, str]) -> str:
    """Return the sentence about a node whose settings differ from ours."""
    name, here, there = mismatch
    member = record.member
    return (
        f"{name} is {here} here and {there} on node {member.node_id} ({member.endpoint}) of cluster "
        f'"{record.cluster}"; it must be the same on all nodes'
    )


def _reason(error: KVFerryError) -> str:
    if isinstance(error, UnauthenticatedError):
        return "forged"
    return "unknown_format" if isinstance(error, ProtocolError) else "malformed"
