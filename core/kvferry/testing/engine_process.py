"""An engine in a process of its own: `python -m kvferry.testing.engine_process JSON`.

Commands on standard input and answers on standard output are JSON lines; it ends when its input does.
`kvferry.testing.engines.Child` is the other end.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvferry.errors import KVFerryError
from kvferry.testing.engines import Bytes, pattern, sparse
from kvferry.transfer import Engine, Region, TransferOptions


class _Held(NamedTuple):
    region: Region
    memory: Bytes
    allocated: bool


Regions = dict[str, _Held]


def _make_region(engine: Engine, wanted: dict[str, Any]) -> _Held:
    """Own memory (allocate) or ordinary process memory; filled unless it is sparse."""
    length, name, access = wanted["length"], wanted["name"], wanted.get("access", "rw")
    if wanted.get("allocate"):
        region = engine.allocate(length, name=name, access=access)
        memory = np.frombuffer(region.memory, dtype=np.uint8)
    else:
        memory = (
            sparse(length)
            if wanted.get("sparse")
            else np.frombuffer(mmap.mmap(-1, max(length, 1)), dtype=np.uint8, count=length)
        )
        region = engine.register(memory, name=name, access=access)
    if not wanted.get("sparse"):
        memory[:] = pattern(length, wanted.get("seed", 0))
    return _Held(region, memory, bool(wanted.get("allocate")))


def _status() -> dict[str, int]:
    """What must not grow: descriptors, threads, resident KiB, mappings."""
    with open("/proc/self/status") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    with open("/proc/self/maps") as lines:
        maps = sum(1 for _ in lines)
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "rss_kib": int(fields["VmRSS"].split()[0]),
        "maps": maps,
    }


class _Commands:
    """What the other end may ask for; each public method is a command."""

    def __init__(self, engine: Engine, regions: Regions) -> None:
        self._engine = engine
        self._regions = regions
        self._left: tuple[str, Bytes | None] = ("", None)  # the last memory that was unregistered

    def _memory(self, name: str) -> Bytes:
        left, memory = self._left
        return memory if memory is not None and name == left else self._regions[name].memory

    def counters(self) -> dict[str, int]:
        return self._engine.counters()

    def status(self) -> dict[str, int]:
        return _status()

    def peers(self) -> int:
        return len(self._engine.peers())

    def metadata(self, metadata: str) -> None:
        self._engine.set_metadata(metadata.encode())

    def register(self, **wanted: Any) -> dict[str, int]:
        held = self._regions[wanted["name"]] = _make_region(self._engine, wanted)
        return {"id": held.region.id, "generation": held.region.generation}

    def unregister(self, name: str, timeout_s: float = 10.0) -> None:
        held = self._regions.pop(name)
        held.region.unregister(timeout_s)
        self._left = (name, None if held.allocated else held.memory)

    def bytes(self, name: str, offset: int, length: int) -> str:
        return self._memory(name)[offset : offset + length].tobytes().hex()

    def digest(self, name: str, offset: int, length: int) -> str:
        return hashlib.sha256(self._memory(name)[offset : offset + length].data).hexdigest()

    def clear(self, name: str, length: int) -> None:
        self._memory(name)[:length] = 0

    def put(self, name: str, offset: int, data: str) -> None:
        raw = np.frombuffer(bytes.fromhex(data), dtype=np.uint8)
        self._memory(name)[offset : offset + len(raw)] = raw


def _echo(engine: Engine, stopping: threading.Event) -> None:
    while not stopping.is_set():
        message = engine.next_message(0.1)
        if message is not None:
            try:
                engine.send(message.peer, b"echo:" + message.body)
            except KVFerryError:
                continue  # the peer left before its answer


def _serve(commands: _Commands) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        command: Callable[..., Any] = getattr(commands, request.pop("do"))
        print(json.dumps(command(**request)), flush=True)  # noqa: T201 (the protocol)


def main() -> None:
    """Run one engine with the options and regions that the first argument names."""
    settings = json.loads(sys.argv[1])
    chosen = settings["options"]
    if "transports" in chosen:
        chosen["transports"] = tuple(chosen["transports"])
    stopping = threading.Event()
    with Engine(TransferOptions(**chosen), metadata=b"child") as engine:
        regions: Regions = {w["name"]: _make_region(engine, w) for w in settings["regions"]}
        thread = threading.Thread(target=_echo, args=(engine, stopping), daemon=True)
        thread.start()
        hello = {"node_id": engine.node_id, "endpoint": str(engine.endpoint)}
        print(json.dumps(hello), flush=True)  # noqa: T201
        _serve(_Commands(engine, regions))
        stopping.set()
        thread.join(5)


if __name__ == "__main__":
    main()
