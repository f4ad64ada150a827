"""As much of LMDeploy's modules as our backend touches, for tests without LMDeploy and torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


class Registry:
    """As mmengine's, as far as LMDeploy uses it."""

    def __init__(self) -> None:
        self.module_dict: dict[str, type] = {"DLSlime": object, "Mooncake": object}

    def register_module(self, *, name: str, module: type) -> None:
        assert name not in self.module_dict
        self.module_dict[name] = module


class MigrationBackendImpl:
    pass


@dataclass
class Init:
    """DistServeInitRequest."""

    remote_engine_id: str
    remote_engine_config: Any = None


@dataclass
class Register:
    """DistServeRegisterMRMessage."""

    mr_key: int
    addr: int
    length: int
    offset: int = 0
    remote_engine_id: str = ""

    @staticmethod
    def of(key: int, pool: np.ndarray) -> Register:
        return Register(key, int(pool.ctypes.data), pool.nbytes)


@dataclass
class Endpoint:
    """DistServeKVTransferEndpointInfo."""

    endpoint_info: str


@dataclass
class Piece:
    """AssignmentInstruct."""

    mr_key: int
    target_offset: int
    source_offset: int
    length: int


@dataclass
class Assignment:
    """MigrationAssignment."""

    remote_engine_id: str
    batch: list[Piece]


_DISAGG = "lmdeploy.pytorch.disagg"


def _modules() -> dict[str, dict[str, Any]]:
    return {
        "torch": {"cuda": types.SimpleNamespace(is_available=lambda: False)},
        "lmdeploy": {},
        "lmdeploy.pytorch": {},
        _DISAGG: {},
        f"{_DISAGG}.backend": {},
        f"{_DISAGG}.backend.backend": {"MIGRATION_BACKENDS": Registry()},
        f"{_DISAGG}.backend.base": {"MigrationBackendImpl": MigrationBackendImpl},
        f"{_DISAGG}.conn": {},
        f"{_DISAGG}.conn.protocol": {
            "DistServeInitRequest": Init,
            "DistServeKVTransferEndpointInfo": Endpoint,
            "MigrationProtocol": object,
        },
        f"{_DISAGG}.messages": {
            "DistServeRegisterMRMessage": Register,
            "MigrationAssignment": Assignment,
        },
    }


@contextmanager
def installed() -> Iterator[None]:
    """Have `import lmdeploy...` and `import torch` find these, and our backend import them anew."""
    modules = _modules()
    kept = {name: sys.modules.pop(name, None) for name in (*modules, "kvferry_lmdeploy.backend")}
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
