"""The transfer engine: registered memory, peers, one-sided reads and writes, control messages.

A typed face over the native engine. Everything is thread-safe unless its documentation says otherwise.
Errors are those of `kvferry.errors`; no other exception leaves here except for wrong argument types.
"""

from __future__ import annotations

from kvferry._native import (
    BlockList,
    Endpoint,
    Message,
    PeerStats,
    Plan,
    RegionInfo,
    Topology,
    TransferStages,
    TransportStats,
)
from kvferry.config import TransferOptions
from kvferry.transfer._buffers import Memory, memory_of, view_of
from kvferry.transfer._options import native_options
from kvferry.transfer._topology import topology
from kvferry.transfer.addressed import AddressedEngine, Span
from kvferry.transfer.convenience import Remote, TransferEngine
from kvferry.transfer.engine import Access, Engine
from kvferry.transfer.handle import Transfer, may_still_land
from kvferry.transfer.metrics import TransferMetrics
from kvferry.transfer.peer import Peer
from kvferry.transfer.region import Region
from kvferry.transfer.sessions import SessionEngine, resolve_session

__all__ = [
    "Access",
    "AddressedEngine",
    "BlockList",
    "Endpoint",
    "Engine",
    "Memory",
    "Message",
    "Peer",
    "PeerStats",
    "Plan",
    "Region",
    "RegionInfo",
    "Remote",
    "SessionEngine",
    "Span",
    "Topology",
    "Transfer",
    "TransferEngine",
    "TransferMetrics",
    "TransferOptions",
    "TransferStages",
    "TransportStats",
    "may_still_land",
    "memory_of",
    "native_options",
    "resolve_session",
    "topology",
    "view_of",
]
