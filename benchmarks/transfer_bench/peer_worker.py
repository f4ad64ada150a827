"""One process of a peer's pair: `python -m benchmarks.transfer_bench.peer_worker KIND ROLE LENGTH`.

Runs in the peers' own environment (numpy, and the peer's package), so it imports nothing of KVFerry. Speaks
JSON lines; what the peer's library prints goes to stderr. Leaves by `os._exit`, since some libraries crash
when the interpreter ends.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import BlockSet, Case, block_sets
from benchmarks.transfer_bench.packages import package_of
from benchmarks.transfer_bench.timing import run_burst

PACKAGES = {
    "nixl": "nixl-cu12",
    "nixl-noprog": "nixl-cu12",
    "gloo": "torch",
    "mooncake": "mooncake-transfer-engine-non-cuda",
}
VISIBLE_S = 2.0  # a finished write may become visible to the target a little later


class Adapter(Protocol):
    """What a peer's module offers, as `Peer(memory)`."""

    def serve(self) -> bytes:
        """Target: be ready for `connect`; what the initiator has to know."""

    def connect(self, about: bytes) -> None:
        """Initiator: connect to the target."""

    def prepare(self, case: Case, sets: list[BlockSet]) -> None:
        """Both: make what can be made once per case."""

    def run(self, op: str, number: int) -> None:
        """Initiator: one operation, to its end."""


class Worker:
    """Answers the benchmark's requests."""

    def __init__(self, adapter: Adapter, memory: np.ndarray) -> None:
        self._adapter, self._memory = adapter, memory
        self._case = Case(1, 0)
        self._sets: list[BlockSet] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return getattr(self, f"_{request.pop('do')}")(**request)

    def _connect(self, about: str) -> dict[str, Any]:
        self._adapter.connect(base64.b64decode(about))
        return {}

    def _serve(self) -> dict[str, Any]:
        return {"about": base64.b64encode(self._adapter.serve()).decode()}

    def _prepare(self, size: int, count: int) -> dict[str, Any]:
        self._case = Case(size, count)
        self._sets = block_sets(self._case, len(self._memory))
        self._adapter.prepare(self._case, self._sets)
        return {}

    def _burst(self, op: str, seconds: float, pids: list[int], expected_s: float) -> dict[str, Any]:
        burst = run_burst(lambda number: self._adapter.run(op, number), seconds, pids, expected_s)
        return {"took_s": burst.took_s, "cpu_s": burst.cpu_s}

    def _fill(self, where: str, salt: int) -> dict[str, Any]:
        reference.fill(self._memory, getattr(self._sets[0], where), self._case.size, salt)
        return {}

    def _run(self, op: str) -> dict[str, Any]:
        self._adapter.run(op, 0)
        return {}

    def _check(self, where: str, content: str, salt: int) -> dict[str, Any]:
        at, of = getattr(self._sets[0], where), getattr(self._sets[0], content)
        until = time.monotonic() + VISIBLE_S
        while True:
            wrong = reference.first_wrong(self._memory, at, of, self._case.size, salt)
            if wrong == -1 or time.monotonic() > until:
                return {"wrong": wrong}
            time.sleep(0.01)


def _adapter(kind: str) -> Callable[[np.ndarray], Adapter]:
    from benchmarks.transfer_bench import peer_gloo, peer_mooncake, peer_nixl

    makers: dict[str, Callable[[np.ndarray], Adapter]] = {
        "nixl": peer_nixl.Nixl,
        "nixl-noprog": lambda memory: peer_nixl.Nixl(memory, progress_thread=False),
        "gloo": peer_gloo.Gloo,
        "mooncake": peer_mooncake.Mooncake,
    }
    return makers[kind]


def main() -> None:
    kind, _role, length = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        memory = reference.private_memory(int(length))
        worker = Worker(_adapter(kind)(memory), memory)
        tell({"package": package_of(PACKAGES[kind])})
        for line in sys.stdin:
            tell(worker.answer(json.loads(line)))
    except Exception as error:  # noqa: BLE001  (told to the benchmark, which reports it)
        tell({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)


if __name__ == "__main__":
    main()
