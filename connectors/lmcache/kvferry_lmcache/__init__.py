"""KVFerry as the shared storage behind LMCache, by LMCache's configuration alone.

Translation only. `Adapter` is for LMCache inside an engine (`remote_storage_plugins`), `L2Adapter` for the
LMCache server (`--l2-adapter`, type `plugin`). Importing this loads neither LMCache nor torch; naming one of
the two does.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Adapter", "L2Adapter"]


def __getattr__(name: str) -> Any:
    if name not in ("Adapter", "L2Adapter"):  # LMCache asks for more names than there are
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvferry_lmcache import _support

    _support.check_installed()
    if name == "Adapter":
        from kvferry_lmcache.remote import Adapter

        return Adapter
    from kvferry_lmcache.l2 import L2Adapter

    return L2Adapter
