"""`_many_workers.py COUNT`: that many engines in processes forked at the same instant, each reads all others.

Prints one JSON line: ports, node ids, and for each worker the values it read from worker 0, 1, 2, ...
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from multiprocessing.connection import Connection

import numpy as np

from kvferry.transfer import Engine, TransferOptions

BLOCK = 4096


def read_block(engine: Engine, target: np.ndarray, local: int, endpoint: str, node_id: str) -> int:
    """The value that fills the other's block; -1 if it is not all one value, -2 if the read failed."""
    peer = engine.connect(endpoint, expected=node_id)
    rows = np.array([[local, peer.region("own").id, 0, 0, BLOCK]], dtype=np.uint64)
    transfer = engine.submit(engine.prepare(peer, rows, "read"))
    transfer.wait()
    peer.close()
    if transfer.error is not None:
        return -2
    return int(target[0]) if (target == target[0]).all() else -1


def work(number: int, pipe: Connection) -> None:
    pipe.recv()  # the starting shot
    with Engine(TransferOptions(transports=("tcp",), tcp_streams=1)) as engine:
        own, target = np.full(BLOCK, number, dtype=np.uint8), np.zeros(BLOCK, dtype=np.uint8)
        engine.register(own, name="own", access="r")
        local = engine.register(target, name="target").id
        pipe.send((str(engine.endpoint), engine.node_id))
        everyone = pipe.recv()
        seen = []
        for other, (endpoint, node_id) in enumerate(everyone):
            seen.append(number if other == number else read_block(engine, target, local, endpoint, node_id))
        pipe.send(seen)
        pipe.recv()  # all are done


def main() -> None:
    fork = multiprocessing.get_context("fork")
    pipes, workers = [], []
    for number in range(int(sys.argv[1])):
        ours, theirs = fork.Pipe()
        worker = fork.Process(target=work, args=(number, theirs), daemon=True)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    for pipe in pipes:
        pipe.send("go")
    everyone = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(everyone)
    seen = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("done")
    for worker in workers:
        worker.join(30)
    endpoints, nodes = zip(*everyone, strict=True)
    print(json.dumps({"endpoints": endpoints, "nodes": nodes, "seen": seen}))


if __name__ == "__main__":
    main()
