"""NIXL with its UCX backend: transfer handles are prepared per case, and posted for each operation."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
from benchmarks.transfer_bench.cases import BlockSet, Case

POLL_S = 0.001  # how often a target looks for notifications where nothing else needs it to


class Nixl:
    """`progress_thread=False`: the target polls for notifications; over tcp that also moves the data."""

    def __init__(self, memory: np.ndarray, *, progress_thread: bool = True) -> None:
        import nixl_cu12 as nixl  # type: ignore[import-not-found]

        self._memory, self._polling = memory, not progress_thread
        config = nixl.nixl_agent_config(enable_prog_thread=progress_thread)
        self._agent = nixl.nixl_agent(f"bench-{os.getpid()}", config)
        whole = [(memory.ctypes.data, len(memory), 0, "")]
        self._registered = self._agent.register_memory(whole, "DRAM")
        self._target = self._address = ""
        self._handles: dict[str, list[Any]] = {}

    def serve(self) -> bytes:
        if self._polling:
            threading.Thread(target=self._poll, daemon=True).start()
        return self._memory.ctypes.data.to_bytes(8, "little") + self._agent.get_agent_metadata()

    def _poll(self) -> None:
        pause_s = 0.0 if os.environ.get("UCX_TLS") == "tcp" else POLL_S
        while True:
            self._agent.get_new_notifs()
            if pause_s:
                time.sleep(pause_s)

    def connect(self, about: bytes) -> None:
        self._address = int.from_bytes(about[:8], "little")
        name = self._agent.add_remote_agent(about[8:])
        self._target = name.decode() if isinstance(name, bytes) else name

    def prepare(self, case: Case, sets: list[BlockSet]) -> None:
        if not self._target:
            return
        for handles in self._handles.values():
            for handle in handles:
                self._agent.release_xfer_handle(handle)
        near = self._prepared("NIXL_INIT_AGENT", self._memory.ctypes.data, case)
        far = self._prepared(self._target, self._address, case)
        self._handles = {
            op: [
                self._agent.make_prepped_xfer(
                    op.upper(), near, blocks.here.astype(np.int32), far, blocks.there.astype(np.int32)
                )
                for blocks in sets
            ]
            for op in ("read", "write")
        }

    def _prepared(self, agent: str, address: int, case: Case) -> Any:
        places = len(self._memory) // case.size
        rows = np.zeros((places, 3), dtype=np.uint64)
        rows[:, 0] = address + np.arange(places, dtype=np.uint64) * case.size
        rows[:, 1] = case.size
        return self._agent.prep_xfer_dlist(agent, self._agent.get_xfer_descs(rows, "DRAM"))

    def run(self, op: str, number: int) -> None:
        handle = self._handles[op][number]
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL: transfer state {state}")
