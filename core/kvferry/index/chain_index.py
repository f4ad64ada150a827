"""The prefix index: which instance holds which block, asked for whole chains of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvferry import _native
from kvferry.index._arrays import keys_array


class ChainIndex:
    """Who holds which block. `keys` are what `KeySpace` returns, a sequence of `bytes`, or a buffer of rows.

    Instances are numbers from 0 to `max_instances` - 1 (at most 1,024), given out by the caller.
    `count_repeats`: a block that an instance stored twice must be removed twice, as engines report that keep
    several copies of it. `max_blocks`: further blocks are refused; 0 for no limit.

    `closed` in the searches: nobody holds a block without the ones before it. Then a few looks are enough;
    where it is not true, the answer may be too long or too short.

    Thread-safe, for many readers and writers, one of which works at a time; everything releases the
    interpreter lock. Long changes become visible step by step. Unknown instances raise
    `InvalidArgumentError`.
    """

    def __init__(self, max_instances: int = 64, *, count_repeats: bool = True, max_blocks: int = 0) -> None:
        self._native = _native.ChainIndex(max_instances, count_repeats, max_blocks)

    def stored(self, instance: int, keys: Any, *, parent: bytes | None = None) -> _native.Stored:
        """Note that `instance` now holds the blocks; `parent` is the one before them, None at a beginning."""
        return self._native.stored(instance, parent, keys_array(keys))

    def removed(self, instance: int, keys: Any) -> int:
        """Note that `instance` holds the blocks once less. Return how many of them it held."""
        return self._native.removed(instance, keys_array(keys))

    def cleared(self, instance: int) -> int:
        """Note that `instance` holds nothing any more, or is gone. Return how many blocks it held."""
        return self._native.cleared(instance)

    def match_prefix(self, keys: Any, *, closed: bool = False) -> int:
        """Return how many of the first keys are held, each by whomever."""
        return self._native.match_prefix(keys_array(keys), closed)

    def match(self, keys: Any, *, closed: bool = False) -> npt.NDArray[np.uint32]:
        """Return, for each instance, how many of the first keys it holds."""
        lengths = np.empty(self._native.max_instances, np.uint32)
        self._native.match(keys_array(keys), lengths, closed)
        return lengths

    def references(self, instance: int, keys: Any) -> npt.NDArray[np.uint32]:
        """Return how often `instance` holds each of the blocks: times stored less times removed."""
        buffer = keys_array(keys)
        counts = np.empty(memoryview(buffer).nbytes // 16, np.uint32)
        self._native.references(instance, buffer, counts)
        return counts

    def holders(self, key: bytes) -> list[int]:
        """Return the instances that hold a block."""
        return self._native.holders(key)

    def stats(self) -> _native.IndexStats:
        """Return numbers of blocks, by instance too, and the memory they take."""
        return self._native.stats()

    @property
    def max_instances(self) -> int:
        """How many instances there can be."""
        return self._native.max_instances
