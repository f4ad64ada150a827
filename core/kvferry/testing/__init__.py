"""Stand-ins for tests of code that uses KVFerry: no sockets, no native code."""

from __future__ import annotations

from kvferry.testing.fake_engine import FakeEngine, FakeNetwork, FakePeer, FakeTransfer

__all__ = ["FakeEngine", "FakeNetwork", "FakePeer", "FakeTransfer"]
