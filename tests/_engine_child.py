"""An engine process for tests: `_engine_child.py JSON`; commands and answers are JSON lines."""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from typing import Any

import numpy as np

from kvferry.transfer import Engine, Region, TransferOptions


def pattern(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def make_region(engine: Engine, wanted: dict[str, Any]) -> tuple[Region, np.ndarray]:
    """Own memory (allocate) or ordinary process memory; filled unless it is sparse."""
    length, name, access = wanted["length"], wanted["name"], wanted.get("access", "rw")
    if wanted.get("allocate"):
        region = engine.allocate(length, name=name, access=access)
        memory = np.frombuffer(region.memory, dtype=np.uint8)
    else:
        memory = np.frombuffer(mmap.mmap(-1, length), dtype=np.uint8)
        region = engine.register(memory, name=name, access=access)
    if not wanted.get("sparse"):
        memory[:] = pattern(length, wanted.get("seed", 0))
    return region, memory


def echo(engine: Engine, stopping: threading.Event) -> None:
    while not stopping.is_set():
        message = engine.next_message(0.1)
        if message is not None:
            engine.send(message.peer, b"echo:" + message.body)


def status() -> dict[str, int]:
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


def answer(engine: Engine, memories: dict[str, np.ndarray], command: dict[str, Any]) -> Any:
    match command["do"]:
        case "counters":
            return engine.counters()
        case "status":
            return status()
        case "peers":
            return len(engine.peers())
        case "bytes":
            memory = memories[command["name"]]
            return memory[command["offset"] : command["offset"] + command["length"]].tobytes().hex()
        case "metadata":
            engine.set_metadata(command["metadata"].encode())
            return None
    raise ValueError(command["do"])


def main() -> None:
    settings = json.loads(sys.argv[1])
    chosen = settings["options"]
    if "transports" in chosen:
        chosen["transports"] = tuple(chosen["transports"])
    stopping = threading.Event()
    with Engine(TransferOptions(**chosen), metadata=b"child") as engine:
        made = {wanted["name"]: make_region(engine, wanted) for wanted in settings["regions"]}
        memories = {name: memory for name, (_region, memory) in made.items()}
        thread = threading.Thread(target=echo, args=(engine, stopping), daemon=True)
        thread.start()
        print(json.dumps({"node_id": engine.node_id, "endpoint": str(engine.endpoint)}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(engine, memories, json.loads(line))), flush=True)
        stopping.set()
        thread.join(5)


if __name__ == "__main__":
    main()
