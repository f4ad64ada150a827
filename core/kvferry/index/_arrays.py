"""What callers pass as tokens and keys, as the arrays that the native code reads in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvferry.errors import InvalidArgumentError

KEY_BYTES = 16
Keys = npt.NDArray[np.uint8]
_INT32 = np.iinfo(np.int32)


def tokens_array(tokens: Any) -> npt.NDArray[np.int32]:
    """Return `tokens` as a dense int32 array; without a copy if they are one, or a buffer or tensor like it.

    A list takes 2 ms for each 100,000 tokens: keep tokens in arrays. Raises `InvalidArgumentError` for what
    is not one-dimensional, not of integers, or beyond 32 bits.
    """
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InvalidArgumentError(f"tokens must have one dimension, not {array.ndim}")
    if array.dtype != np.int32:
        array = _narrowed(array)
    return np.ascontiguousarray(array)


def _narrowed(array: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"tokens must be integers, not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < _INT32.min or high > _INT32.max:
        raise InvalidArgumentError(f"token {low if low < _INT32.min else high} does not fit into 32 bits")
    return array.astype(np.int32)


def keys_array(keys: Any) -> Any:
    """Return `keys` as a buffer of rows of 16 bytes: an array as it is, a sequence of `bytes` joined."""
    if isinstance(keys, Sequence) and not isinstance(keys, bytes | bytearray | memoryview):
        for key in keys:
            if len(key) != KEY_BYTES:
                raise InvalidArgumentError(f"a block key has {KEY_BYTES} bytes, not {len(key)}")
        return b"".join(keys)
    return keys


def new_keys(count: int) -> Keys:
    """Return room for `count` keys."""
    return np.empty((count, KEY_BYTES), np.uint8)
