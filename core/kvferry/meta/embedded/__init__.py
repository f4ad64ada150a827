"""The metadata store of one machine: a directory of the user's own, shared by the processes on it."""

from __future__ import annotations

from kvferry.meta.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
