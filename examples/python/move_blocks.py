"""Two engines in one process: one offers blocks, the other reads some of them.

Run: python examples/python/move_blocks.py
"""

from __future__ import annotations

import numpy as np

from kvferry.transfer import TransferEngine

BLOCK_BYTES = 64 << 10
BLOCKS = 256


def main() -> None:
    """Read every 16th block."""
    offered = np.repeat(np.arange(BLOCKS, dtype=np.uint8), BLOCK_BYTES).reshape(BLOCKS, BLOCK_BYTES)
    wanted = np.zeros((BLOCKS // 16, BLOCK_BYTES), np.uint8)
    with TransferEngine() as owner, TransferEngine() as reader:
        owner.register_memory(offered, name="blocks", access="r")
        reader.register_memory(wanted)
        blocks = reader.remote(str(owner.endpoint), "blocks")
        moves = [(blocks.at(16 * i * BLOCK_BYTES), wanted[i], BLOCK_BYTES) for i in range(len(wanted))]
        transfers = reader.batch_transfer(moves)
        reader.wait(transfers)
    right = "all right" if (wanted == offered[::16]).all() else "WRONG"
    print(f"{len(wanted)} blocks, {wanted.nbytes} bytes by {transfers[0].transport}, {right}")


if __name__ == "__main__":
    main()
