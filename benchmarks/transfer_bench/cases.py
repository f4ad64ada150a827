"""What is moved: COUNT scattered blocks of SIZE bytes per operation, four sets of block numbers in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KIB, MIB = 1 << 10, 1 << 20
SETS = 4


@dataclass(frozen=True)
class Case:
    """`count` blocks of `size` bytes per operation."""

    size: int
    count: int

    @property
    def bytes(self) -> int:
        return self.size * self.count

    @property
    def name(self) -> str:
        unit, letter = (MIB, "M") if self.size >= MIB else (KIB, "K")
        return f"{self.size // unit}{letter}x{self.count}"


CASES = tuple(
    Case(size, count)
    for size, counts in (
        (4 * KIB, (1, 128, 1024)),
        (64 * KIB, (1, 128, 1024)),
        (MIB, (1, 16, 128)),
        (16 * MIB, (8,)),
        (256 * MIB, (1,)),
    )
    for count in counts
)
QUICK_CASES = (Case(4 * KIB, 1), Case(4 * KIB, 1024), Case(64 * KIB, 128), Case(64 * KIB, 1024))


@dataclass(frozen=True)
class BlockSet:
    """Block numbers of one operation, uint32, on the initiator's and on the target's side."""

    here: np.ndarray
    there: np.ndarray


def block_sets(case: Case, length: int) -> list[BlockSet]:
    """The same sets in every process: scattered, disjoint within an operation on either side."""
    places = length // case.size
    rng = np.random.default_rng([case.size, case.count])

    def scattered() -> np.ndarray:
        return np.ascontiguousarray(rng.permutation(places)[: case.count], dtype=np.uint32)

    return [BlockSet(scattered(), scattered()) for _ in range(SETS)]
