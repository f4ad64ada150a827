"""The other process: an engine with its memory, and the raw references' memory and streams.

Speaks JSON lines on stdin and stdout; ends when its input is closed. Run as a module by sides.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

import numpy as np
from benchmarks.transfer_bench import reference
from benchmarks.transfer_bench.cases import Case, block_sets

from kvferry.transfer import Engine, TransferOptions

MAX_BLOCKS = 1 << 20


def _serve(listener: socket.socket, address: int) -> None:
    while True:
        connection, _peer = listener.accept()

        def answer(fd: int = connection.detach()) -> None:
            reference.library().serve_stream(fd, address, MAX_BLOCKS)
            os.close(fd)

        threading.Thread(target=answer, daemon=True).start()


def answer(request: dict[str, Any], memory: dict[str, np.ndarray], length: int) -> dict[str, Any]:
    """Fill the target's blocks of a case's set, or check that they hold what the initiator's blocks held."""
    case = Case(request["size"], request["count"])
    blocks = block_sets(case, length)[request["set"]]
    array, salt = memory[request["memory"]], request["salt"]
    if request["do"] == "fill":
        reference.fill(array, blocks.there, case.size, salt)
        return {"wrong": -1}
    return {"wrong": reference.first_wrong(array, blocks.there, blocks.here, case.size, salt)}


def main() -> None:
    length = int(sys.argv[1])
    with Engine(TransferOptions()) as engine, socket.create_server(("127.0.0.1", 0)) as listener:
        foreign = reference.private_memory(length)
        engine.register(foreign, name="foreign", access="rw")
        arena = np.frombuffer(engine.allocate(length, name="arena", access="rw").memory, dtype=np.uint8)
        arena[:] = 0
        shared, fd = reference.shared_memory(length)
        memory = {"foreign": foreign, "arena": arena, "shared": shared}
        threading.Thread(target=_serve, args=(listener, foreign.ctypes.data), daemon=True).start()
        where = {
            "endpoint": str(engine.endpoint),
            "port": listener.getsockname()[1],
            "fd": fd,
            "foreign": foreign.ctypes.data,
        }
        print(json.dumps(where), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), memory, length)), flush=True)


if __name__ == "__main__":
    main()
