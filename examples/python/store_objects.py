"""Puts a chain of KV blocks into the pool and finds it again.

With a node of its own, or with `--attach` that of this machine (`kvferry node --dram 1GiB`).
"""

from __future__ import annotations

import sys

import numpy as np

from kvferry.store import open_embedded, open_store


def main() -> None:
    """Store 64 blocks of 64 KiB, match a longer chain, read what matched."""
    blocks = np.random.default_rng(0).integers(0, 256, (64, 64 << 10), dtype=np.uint8)
    keys = [f"example/{index:03}" for index in range(100)]
    with open_store() if "--attach" in sys.argv else open_embedded() as store:
        stored = store.put_many(keys[:64], list(blocks), chain=True)
        print(f"{sum(result.created for result in stored)} blocks stored")
        matched = store.match_prefix(keys)
        print(f"the first {matched} of {len(keys)} blocks are there")
        room = np.zeros_like(blocks)
        results = store.get_many_into(keys[:matched], list(room))
        print(f"{sum(result.bytes for result in results)} bytes read, equal: {np.array_equal(room, blocks)}")
        with store.view(keys[0]) as view:
            print(f"in place: {view.nbytes} bytes, the first is {view.data[0]}")


if __name__ == "__main__":
    main()
