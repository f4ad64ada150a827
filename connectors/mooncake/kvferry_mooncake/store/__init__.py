"""`mooncake.store` on KVFerry."""

from __future__ import annotations

from kvferry_mooncake.store.client import MooncakeDistributedStore
from kvferry_mooncake.store.memory import BufferHandle, MooncakeHostMemAllocator
from kvferry_mooncake.store.replication import ObjectDataType, ReplicateConfig, SoftPinAction

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicateConfig",
    "SoftPinAction",
]
