"""What mooncake.engine answers, case by case: run by any `mooncake`, to compare ours with the real one.

    python tests/_mooncake_engine_cases.py     # prints {"case": answer}

Uses nothing but that module, numpy and the standard library. Addresses, ports and batch numbers are answered
as whether they are there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 1 << 20
NOWHERE = "127.0.0.1:1"


def answer(call: Callable[[], Any]) -> Any:
    """Return what a call answers, or the name of the exception."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (the name is the answer)
        return type(error).__name__


def eventually(call: Callable[[], Any]) -> Any:
    """Return the first answer that says something, or the last one after 20 s."""
    end = time.monotonic() + 20
    while not (found := call()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


class Pair:
    """Two engines in this process, each with 1 MiB registered."""

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine

        self.near, self.far = TransferEngine(), TransferEngine()
        for engine in (self.near, self.far):
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.near_bytes = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
        self.far_bytes = np.zeros(SIZE, np.uint8)
        self.source, self.target = self.near_bytes.ctypes.data, self.far_bytes.ctypes.data
        assert self.near.register_memory(self.source, SIZE) == 0
        assert self.far.register_memory(self.target, SIZE) == 0
        self.session = f"127.0.0.1:{self.far.get_rpc_port()}"


def transfers(pair: Pair) -> dict[str, Any]:
    """Answers of transfers that are waited for."""
    near, session, source, target = pair.near, pair.session, pair.source, pair.target
    found = {
        "write": answer(lambda: near.transfer_sync_write(session, source, target, 100)),
        "write moved the bytes": bool((pair.far_bytes[:100] == pair.near_bytes[:100]).all()),
        "read": answer(lambda: near.transfer_sync_read(session, source + 5000, target, 100)),
        "read moved the bytes": bool((pair.near_bytes[5000:5100] == pair.far_bytes[:100]).all()),
        "write of nothing": answer(lambda: near.transfer_sync_write(session, source, target, 0)),
        "batch": answer(
            lambda: near.batch_transfer_sync_write(
                session, [source, source + 200], [target + 1000, target + 5000], [100, 50]
            )
        ),
        "batch moved the bytes": bool((pair.far_bytes[5000:5050] == pair.near_bytes[200:250]).all()),
        "batch read": answer(
            lambda: near.batch_transfer_sync_read(session, [source + 6000], [target + 1000], [100])
        ),
        "batch from arrays": answer(
            lambda: near.batch_transfer_sync_write(
                session, np.array([source]), np.array([target]), np.array([7])
            )
        ),
        "empty batch": answer(lambda: near.batch_transfer_sync_write(session, [], [], [])),
        "uneven batch": answer(
            lambda: near.batch_transfer_sync_write(session, [source], [target, target], [1])
        ),
        "write to nowhere": answer(lambda: near.transfer_sync_write(NOWHERE, source, target, 100)),
        "write to no session": answer(lambda: near.transfer_sync_write("nonsense", source, target, 100)),
        "write by host name": answer(
            lambda: near.transfer_sync_write(session.replace("127.0.0.1", "localhost"), source, target, 100)
        ),
        "negative address": answer(lambda: near.transfer_sync_write(session, -1, target, 100)),
    }
    unregistered = np.ones(4096, np.uint8)
    found["write from unregistered memory"] = answer(
        lambda: near.transfer_sync_write(session, unregistered.ctypes.data, target, 100)
    )
    return found


def wrong_targets(pair: Pair) -> dict[str, Any]:
    """Answers to addresses that the session did not register. Last: Mooncake drops the connection."""
    near, session, source, target = pair.near, pair.session, pair.source, pair.target
    return {
        "write to a wrong address": answer(
            lambda: near.transfer_sync_write(session, source, target + (1 << 34), 100)
        ),
        "write past the end": answer(
            lambda: near.transfer_sync_write(session, source, target + SIZE - 50, 100)
        ),
        "write to address 0": answer(lambda: near.transfer_sync_write(session, source, 0, 100)),
        "batch with a wrong address": answer(
            lambda: near.batch_transfer_sync_write(session, [source, source], [target + 9000, 1], [8, 8])
        ),
        "nothing else was written": int(np.count_nonzero(pair.far_bytes[10000:])),
    }


def asynchronous(pair: Pair) -> dict[str, Any]:
    """Answers of transfers that are asked after, and of messages."""
    near, session, source, target = pair.near, pair.session, pair.source, pair.target
    from mooncake.engine import TransferNotify, TransferOpcode

    batch = near.batch_transfer_async_write(session, [source], [target + 7000], [100])
    single = near.transfer_submit_write(session, source, target + 8000, 100)
    wrong = near.batch_transfer_async_read(session, [source], [4], [100])
    return {
        "async": batch > 0,
        "async status": answer(lambda: near.get_batch_transfer_status([batch])),
        "async moved the bytes": bool((pair.far_bytes[7000:7100] == pair.near_bytes[:100]).all()),
        "submit": single > 0,
        "check": answer(lambda: eventually(lambda: near.transfer_check_status(single))),
        "async from a wrong address": wrong > 0,
        "its status": answer(lambda: near.get_batch_transfer_status([wrong])),
        "async of uneven lists": answer(lambda: near.batch_transfer_async_write(session, [source], [], [1])),
        "async to nowhere": answer(
            lambda: near.batch_transfer_async_write(NOWHERE, [source], [target], [100])
        ),
        "submit to nowhere": answer(lambda: near.transfer_submit_write(NOWHERE, source, target, 100)),
        "write with a message": answer(
            lambda: near.transfer_sync(
                session, source, target, 100, TransferOpcode.Write, TransferNotify("name", "message")
            )
        ),
        "messages": answer(
            lambda: eventually(lambda: [(each.name, each.msg) for each in pair.far.get_notifies()])
        ),
        "messages once more": answer(lambda: len(pair.far.get_notifies())),
        "opcodes": [int(TransferOpcode.Read.value), int(TransferOpcode.Write.value)],
    }


def memory(pair: Pair) -> dict[str, Any]:
    """Answers about memory and sessions."""
    near, session = pair.near, pair.session
    spare = np.zeros(SIZE, np.uint8)
    base = spare.ctypes.data
    managed = near.allocate_managed_buffer(1000)
    return {
        "register again": answer(lambda: near.register_memory(pair.source, SIZE)),
        "register a part": answer(lambda: near.register_memory(pair.source + 4096, 4096)),
        "register nothing": answer(lambda: near.register_memory(base, 0)),
        "register by keyword": answer(
            lambda: near.register_memory(buffer_addr=base, capacity=4096, location="cpu:0")
        ),
        "unregister": answer(lambda: near.unregister_memory(base)),
        "unregister again": answer(lambda: near.unregister_memory(base)),
        "unregister a part": answer(lambda: near.unregister_memory(pair.source + 4096)),
        "batch register": answer(lambda: near.batch_register_memory([base, base + 65536], [4096, 4096])),
        "batch unregister": answer(lambda: near.batch_unregister_memory([base, base + 65536])),
        "batch register with an overlap": answer(
            lambda: near.batch_register_memory([base, pair.source], [4096, 4096])
        ),
        "nothing of that stays": answer(lambda: near.unregister_memory(base)),
        "batch unregister unknown": answer(lambda: near.batch_unregister_memory([base])),
        "managed": managed != 0,
        "managed bytes": answer(lambda: near.write_bytes_to_buffer(managed, b"a\0b", 3)),
        "managed bytes back": answer(lambda: list(near.read_bytes_from_buffer(managed, 3))),
        "managed write": answer(lambda: near.transfer_sync_write(session, managed, pair.target, 3)),
        "managed write moved": pair.far_bytes[:3].tolist(),
        "free managed": answer(lambda: near.free_managed_buffer(managed, 1000)),
        "first buffer": answer(lambda: near.get_first_buffer_address(session) == pair.target),
        "first buffer of nowhere": answer(lambda: near.get_first_buffer_address(NOWHERE)),
        "probe": answer(lambda: near.send_probe(session)),
        "probe nowhere": answer(lambda: near.send_probe(NOWHERE)),
    }


def starting() -> dict[str, Any]:
    """Answers to ways of initializing."""
    from mooncake.engine import TransferEngine

    def initialize(*arguments: str) -> Any:
        return answer(lambda: TransferEngine().initialize(*arguments))

    return {
        "initialize by name": initialize("localhost", "P2PHANDSHAKE", "rdma", ""),
        "initialize with a port": initialize("127.0.0.1:12345", "P2PHANDSHAKE", "tcp", ""),
        "initialize with any protocol": initialize("127.0.0.1", "P2PHANDSHAKE", "foo", ""),
        "initialize with xgmi": initialize("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""),
        "initialize with a missing metadata server": initialize("127.0.0.1", "http://127.0.0.1:1", "tcp", ""),
    }


def run() -> dict[str, Any]:
    """Run all cases."""
    pair = Pair()
    found = transfers(pair)
    found |= memory(pair)
    found |= starting()
    found |= asynchronous(pair)
    return found | wrong_targets(pair)


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
