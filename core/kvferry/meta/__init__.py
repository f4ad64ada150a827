"""Who belongs to a cluster: a small metadata store with leases, and membership on top of it.

Loaded by node processes. The client of etcd is loaded only when a store of that kind is opened.
"""

from __future__ import annotations

from kvferry.meta.membership import Membership
from kvferry.meta.open import open_store
from kvferry.meta.records import Member
from kvferry.meta.store import CREATE_ONLY, Batch, Entry, Event, Lease, MetaStore, Watch
from kvferry.meta.view import View

__all__ = [
    "CREATE_ONLY",
    "Batch",
    "Entry",
    "Event",
    "Lease",
    "Member",
    "Membership",
    "MetaStore",
    "View",
    "Watch",
    "open_store",
]
