"""Members of a cluster for tests."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from kvferry.meta import Member, Membership, MetaStore
from kvferry.testing.waiting import PATIENCE_S, wait_until

SECRET = "a secret of the cluster"
LEASE_S = 1.0
LONG_LEASE_S = 2.5  # where a slow machine must not make anybody seem dead
PREFIX = "kvferry/default/members/"


def member(**fields: Any) -> Member:
    node_id = secrets.token_hex(16)
    return Member(**{"node_id": node_id, "endpoint": "127.0.0.1:7000", "host_id": "host", **fields})


class Members:
    """Makes memberships, each with a client of its own, and ends them."""

    def __init__(self, open_store: Callable[[], MetaStore], lease_s: float = LEASE_S) -> None:
        self._open_store = open_store
        self._lease_s = lease_s
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def store(self) -> MetaStore:
        return self._stack.enter_context(contextlib.closing(self._open_store()))

    def make(self, who: Member | None = None, *, secret: str = SECRET, **options: Any) -> Membership:
        options = {"cluster": "default", "lease_s": self._lease_s, **options}
        membership = Membership(self.store(), secret=secret, member=who or member(), **options)
        return self._stack.enter_context(membership)

    def join(self, count: int) -> list[Membership]:
        """Return so many that see each other."""
        found = [self.make() for _ in range(count)]
        for membership in found:
            membership.join()
        see(found, count)
        return found


def node_ids(membership: Membership) -> set[str]:
    return {found.node_id for found in membership.members().members}


def see(memberships: list[Membership], count: int) -> None:
    """Wait until each of them sees so many members."""
    for membership in memberships:
        wait_until(lambda m=membership: len(m.members().members) == count, PATIENCE_S, f"{count} members")


def records(store: MetaStore) -> dict[str, bytes]:
    return {entry.key.removeprefix(PREFIX): entry.value for entry in store.list(PREFIX)}
