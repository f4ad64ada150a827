"""The OpenAI-compatible front: sends each request to a prefill and a decode server, and relays the answer."""

from __future__ import annotations

from kvferry.router.server import RouterServer, run

__all__ = ["RouterServer", "run"]
