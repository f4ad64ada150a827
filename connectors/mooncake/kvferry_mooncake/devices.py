"""Whose memory an address belongs to."""

from __future__ import annotations

import sys
from typing import Any

from kvferry.errors import KVFerryError
from kvferry.transfer import SessionEngine
from kvferry_mooncake.codes import logger


def register(engine: SessionEngine, address: int, length: int, location: str) -> None:
    """Register memory of the device that `location` names, or that torch would have it on."""
    for device in _devices(location):
        try:
            return engine.add(address, length, device=device)
        except KVFerryError as error:
            logger.debug("%#x is no memory of %s: %s", address, device, error)
    return engine.add(address, length)


def _devices(location: str) -> list[str]:
    """Return the accelerators whose memory it may be; their drivers know."""
    named = location.split(":", 1)[0]
    if named in ("cuda", "npu"):
        return [named]
    torch: Any = sys.modules.get("torch")
    if named == "cpu" or torch is None:
        return []
    modules = ((name, getattr(torch, name, None)) for name in ("cuda", "npu"))
    return [name for name, module in modules if module is not None and module.is_initialized()]
