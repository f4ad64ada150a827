"""How an object is to be kept, in Mooncake's words, and what KVFerry makes of it."""

from __future__ import annotations

import enum


class SoftPinAction(enum.IntEnum):
    """Whether a put makes an object harder to evict."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(enum.IntEnum):
    """What an object is said to be."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


_DEFAULTS: dict[str, object] = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_soft_pin": False,  # of older versions
    "with_hard_pin": False,
    "preferred_segment": "",
    "prefer_alloc_in_same_node": False,
    "data_type": ObjectDataType.UNKNOWN,
    "group_ids": None,
    "session_ids": None,  # of newer versions
}
_LISTS = ("preferred_segments", "preferred_nof_segments")
_MAX_REPLICAS = 16


class ReplicateConfig:
    """Options of a put. `replica_num` above 1 is how many nodes hold the object; all else has no effect.

    Names that are not Mooncake's raise AttributeError.
    """

    __slots__ = (*_DEFAULTS, *_LISTS)

    def __init__(self) -> None:
        for name, value in _DEFAULTS.items():
            setattr(self, name, value)
        for name in _LISTS:
            setattr(self, name, [])

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {getattr(self, name)!r}" for name in self.__slots__)
        return f"ReplicateConfig: {{ {shown} }}"


def replicas_of(config: ReplicateConfig | None) -> int:
    """Return what `Store.put` takes: 0, as the cluster has it, unless more than one is asked for."""
    wanted = 1 if config is None else int(getattr(config, "replica_num", 1))
    return min(wanted, _MAX_REPLICAS) if wanted > 1 else 0
