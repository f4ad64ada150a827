"""The other process of transfer.py: an engine with its memory, and plain sockets that send the same bytes.

Prints where it listens as one JSON line; ends when its input is closed.
"""

from __future__ import annotations

import json
import socket
import sys
import threading

import numpy as np

from _harness import pin, plain, private_memory
from kvferry.transfer import Engine, TransferOptions


def _serve(listener: socket.socket, address: int) -> None:
    while True:
        connection, _peer = listener.accept()
        thread = threading.Thread(
            target=plain().serve_stream, args=(connection.detach(), address), daemon=True
        )
        thread.start()


def main() -> None:
    length = int(sys.argv[1])
    pin(1)
    with Engine(TransferOptions()) as engine, socket.create_server(("127.0.0.1", 0)) as listener:
        foreign = private_memory(length, huge=False)
        engine.register(foreign, name="foreign", access="rw")
        arena = np.frombuffer(engine.allocate(length, name="arena", access="rw").memory, dtype=np.uint8)
        arena[:] = np.random.default_rng(1).integers(0, 256, length, dtype=np.uint8)
        arguments = (listener, foreign.ctypes.data)
        threading.Thread(target=_serve, args=arguments, daemon=True).start()
        where = {"endpoint": str(engine.endpoint), "plain": listener.getsockname()[1]}
        print(json.dumps(where), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
