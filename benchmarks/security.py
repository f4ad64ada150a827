"""What security costs: tcp without a secret, with one (frame tags), and with TLS, in one interleaved run.

    python benchmarks/security.py [--seconds 12] [--json FILE]

Each round times every setting once for each shape, so that noise of the machine hits all alike; ratios of
medians against plain tcp are what to look at. Both ends run on this host over loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from kvferry import _native
from kvferry.errors import KVFerryError
from kvferry.testing.engines import Child, pieces
from kvferry.transfer import Engine, TransferOptions

SECRET = "a secret for this benchmark"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tags": {"cluster_secret": SECRET},
    "tls": {"cluster_secret": SECRET, "tls": True},
}
SHAPES = {"4 KiB x 1": (4 << 10, 1), "64 KiB x 16": (64 << 10, 16), "64 KiB x 512": (64 << 10, 512)}
LENGTH = 64 << 20


class Pair:
    """A reading engine of this process and the plans for its peer in another."""

    def __init__(self, stack: contextlib.ExitStack, security: dict[str, Any]) -> None:
        child = stack.enter_context(Child([{"name": "m", "length": LENGTH}], transports=["tcp"], **security))
        self.engine = stack.enter_context(Engine(TransferOptions(transports=("tcp",), **security)))
        self._memory = np.zeros(LENGTH, dtype=np.uint8)
        here = self.engine.register(self._memory, name="near").id
        self.peer = self.engine.connect(child.endpoint)
        there = self.peer.region("m").id
        self.plans = {
            name: self.engine.prepare(
                self.peer,
                pieces(*((here, there, i * 2 * size, i * 2 * size, size) for i in range(count))),
                "read",
            )
            for name, (size, count) in SHAPES.items()
        }

    def once(self, shape: str) -> float:
        """Seconds of one read of `shape`."""
        start = time.perf_counter()
        transfer = self.engine.submit(self.plans[shape])
        transfer.wait()
        took = time.perf_counter() - start
        if transfer.error is not None:
            raise transfer.error
        return took


def measure(seconds: float) -> dict[str, Any]:
    """Median seconds per setting and shape, and their ratios to plain tcp."""
    with contextlib.ExitStack() as stack:
        pairs = {name: Pair(stack, security) for name, security in SETTINGS.items() if usable(name)}
        took: dict[str, dict[str, list[float]]] = {name: {shape: [] for shape in SHAPES} for name in pairs}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for shape in SHAPES:
                for name, pair in shuffled(pairs):
                    pair.once(shape)  # whoever came before has left the caches to others
                    took[name][shape].extend(pair.once(shape) for _ in range(3))
        notes = {name: pair.peer.transport_note for name, pair in pairs.items()}
    medians = {
        name: {shape: statistics.median(times) for shape, times in shapes.items()}
        for name, shapes in took.items()
    }
    return {
        "rounds": len(took["plain"]["4 KiB x 1"]),
        "median_s": medians,
        "ratio_to_plain": {
            name: {shape: value / medians["plain"][shape] for shape, value in shapes.items()}
            for name, shapes in medians.items()
        },
        "notes": notes,
    }


def shuffled(pairs: dict[str, Pair]) -> list[tuple[str, Pair]]:
    """Return them in another order each time."""
    return random.sample(list(pairs.items()), len(pairs))


def usable(name: str) -> bool:
    """Say whether this host can run a setting; TLS needs its library."""
    if name != "tls":
        return True
    try:
        _native.tls_library()
    except KVFerryError as error:
        print(f"tls is left out: {error}")
        return False
    return True


def main() -> None:
    """Measure, print a table, write the file."""
    parser = argparse.ArgumentParser(description="What frame tags and TLS cost on tcp.")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to measure (default 12)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    result = measure(arguments.seconds)
    for shape, (size, count) in SHAPES.items():
        for name, shapes in result["median_s"].items():
            speed = size * count / shapes[shape] / 1e9
            ratio = result["ratio_to_plain"][name][shape]
            print(f"{shape:>13} {name:>6} {shapes[shape] * 1e6:10.1f} us {speed:7.2f} GB/s  x{ratio:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
