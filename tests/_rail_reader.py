"""Reads a peer's region over and over, until standard input ends: `_rail_reader.py JSON`.

JSON: options, endpoint, region, length. A line on standard output per read: error ("" if all bytes came and
were right), rails (name, bytes, set aside, recoveries), switches.
"""

from __future__ import annotations

import json
import sys
import threading

import numpy as np

from kvferry.testing.engines import move, pattern, pieces
from kvferry.transfer import Engine, TransferOptions


def main() -> None:
    settings = json.loads(sys.argv[1])
    length, block = settings["length"], 65536
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    with Engine(TransferOptions(**settings["options"])) as engine:
        near, right = np.zeros(length, dtype=np.uint8), pattern(length)
        here = engine.register(near, name="near")
        peer = engine.connect(settings["endpoint"])
        there = peer.region(settings["region"]).id
        rows = pieces(*((here.id, there, at, at, block) for at in range(0, length, block)))
        while not stopping.is_set():
            near[:] = 0
            transfer = move(engine, peer, rows)
            error = str(transfer.error or "")
            if not error and not np.array_equal(near, right):
                error = "wrong bytes"
            stats = peer.stats()
            rails = [(r.name, r.bytes, r.set_aside, r.recoveries) for r in stats.rails]
            print(json.dumps({"error": error, "rails": rails, "switches": stats.rail_switches}), flush=True)


if __name__ == "__main__":
    main()
