"""gloo, as in torch.distributed: a request, then one send and receive per block, all under way at once."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.transfer_bench.cases import BlockSet, Case, block_sets

TARGET, INITIATOR = 0, 1
OPS = ("read", "write")


class Gloo:
    """The target answers requests in a thread of its own; the request names the case and the block set."""

    def __init__(self, memory: np.ndarray) -> None:
        import torch
        import torch.distributed

        self._torch, self._memory = torch, torch.from_numpy(memory)
        self._case = Case(1, 0)
        self._blocks: list[list[Any]] = []
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def _start(self, store: Path, rank: int) -> None:
        self._dist = self._torch.distributed
        self._dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    def serve(self) -> bytes:
        store = Path(tempfile.mkdtemp(prefix="gloo-")) / "store"
        threading.Thread(target=self._answer, args=(store,), daemon=True).start()
        return bytes(store)

    def _answer(self, store: Path) -> None:
        self._start(store, TARGET)
        request = self._torch.zeros(4, dtype=self._torch.int64)
        while True:
            self._dist.recv(request, INITIATOR)
            size, count, number, op = request.tolist()
            if Case(size, count) != self._case:
                case = Case(size, count)
                self._slice(case, [one.there for one in block_sets(case, len(self._memory))])
            self._move(self._blocks[number], INITIATOR, sending=OPS[op] == "read")
            if OPS[op] == "write":
                self._dist.send(request, INITIATOR)

    def connect(self, about: bytes) -> None:
        self._start(Path(os.fsdecode(about)), INITIATOR)

    def prepare(self, case: Case, sets: list[BlockSet]) -> None:
        if hasattr(self, "_dist") and self._dist.get_rank() == INITIATOR:
            self._slice(case, [one.here for one in sets])

    def _slice(self, case: Case, sets: list[np.ndarray]) -> None:
        self._case = case
        self._blocks = [
            [self._memory[int(b) * case.size : (int(b) + 1) * case.size] for b in numbers] for numbers in sets
        ]

    def _move(self, blocks: list[Any], other: int, *, sending: bool) -> None:
        start = self._dist.isend if sending else self._dist.irecv
        for work in [start(block, other) for block in blocks]:
            work.wait()

    def run(self, op: str, number: int) -> None:
        request = self._torch.tensor([self._case.size, self._case.count, number, OPS.index(op)])
        self._dist.send(request, TARGET)
        self._move(self._blocks[number], TARGET, sending=op == "write")
        if op == "write":
            self._dist.recv(request, TARGET)
