"""Mooncake's transfer engine over tcp, without a metadata service: one batch call per operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.transfer_bench.cases import BlockSet, Case


class Mooncake:
    """The lists of addresses are made once per case."""

    def __init__(self, memory: np.ndarray) -> None:
        from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

        self._memory, self._engine = memory, TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("Mooncake: initialize failed")
        if self._engine.register_memory(memory.ctypes.data, len(memory)) != 0:
            raise RuntimeError("Mooncake: register_memory failed")
        self._target, self._address = "", 0
        self._arguments: list[tuple[Any, ...]] = []

    def serve(self) -> bytes:
        return (
            self._memory.ctypes.data.to_bytes(8, "little")
            + f"127.0.0.1:{self._engine.get_rpc_port()}".encode()
        )

    def connect(self, about: bytes) -> None:
        self._address, self._target = int.from_bytes(about[:8], "little"), about[8:].decode()

    def prepare(self, case: Case, sets: list[BlockSet]) -> None:
        near, lengths = self._memory.ctypes.data, [case.size] * case.count
        self._arguments = [
            (
                [near + int(b) * case.size for b in blocks.here],
                [self._address + int(b) * case.size for b in blocks.there],
                lengths,
            )
            for blocks in sets
        ]

    def run(self, op: str, number: int) -> None:
        engine = self._engine
        call = engine.batch_transfer_sync_read if op == "read" else engine.batch_transfer_sync_write
        if call(self._target, *self._arguments[number]) != 0:
            raise RuntimeError(f"Mooncake: {op} failed")
