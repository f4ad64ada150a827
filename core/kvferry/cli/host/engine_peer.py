"""The two processes of the engine probe: `owner` registers a buffer, `reader` reads it by each transport.

The reader is told endpoint and node id, and prints one line: for each transport its name and `ok` or the
reason, separated by tabs.
"""

from __future__ import annotations

import sys

import numpy as np

from kvferry.config import TransferOptions
from kvferry.errors import KVFerryError
from kvferry.transfer import Engine

SIZE_BYTES = 1 << 20
TRANSPORTS = ("shm", "tcp")
_TIMEOUT_S = 5.0


def pattern() -> np.ndarray:
    """Return the bytes that are moved."""
    return (np.arange(SIZE_BYTES, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8)


def own() -> None:
    """Offer the buffer until standard input ends."""
    with Engine(TransferOptions()) as engine:
        engine.register(pattern(), name="probe", access="r")
        sys.stdout.write(f"{engine.endpoint} {engine.node_id}\n")
        sys.stdout.flush()
        sys.stdin.read()


def read_by(transport: str, endpoint: str, node_id: str) -> str:
    """Read the buffer by one transport; return `ok` or the reason it failed."""
    options = TransferOptions(transports=(transport,), allow_fallback=False)  # type: ignore[arg-type]
    target = np.zeros(SIZE_BYTES, dtype=np.uint8)
    try:
        with Engine(options) as engine:
            local = engine.register(target, name="target", access="rw")
            peer = engine.connect(endpoint, expected=node_id, timeout_s=_TIMEOUT_S)
            pieces = np.array([[local.id, peer.region("probe").id, 0, 0, SIZE_BYTES]], dtype=np.uint64)
            transfer = engine.submit(engine.prepare(peer, pieces, op="read"), timeout_s=_TIMEOUT_S)
            transfer.wait(_TIMEOUT_S)
            transfer.raise_if_failed()
            used = transfer.transport
    except KVFerryError as error:
        return " ".join(str(error).split())
    if used != transport:
        return f"moved by {used}"
    return "ok" if bool((target == pattern()).all()) else "other bytes arrived"


def main() -> None:
    """Play the part that the command line names."""
    if sys.argv[1] == "owner":
        own()
        return
    endpoint, node_id = sys.stdin.readline().split()
    results = [f"{transport}\t{read_by(transport, endpoint, node_id)}" for transport in TRANSPORTS]
    sys.stdout.write("\t".join(results) + "\n")


if __name__ == "__main__":
    main()
