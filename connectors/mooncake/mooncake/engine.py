"""Mooncake's transfer engine on KVFerry."""

from __future__ import annotations

from kvferry_mooncake.engine import TransferEngine, TransferOpcode
from kvferry_mooncake.notices import TransferNotify

Read = TransferOpcode.Read
Write = TransferOpcode.Write

SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]
