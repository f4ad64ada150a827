"""How an encoder's output lies in the store: a header of fixed size, then the elements, row by row.

    4 bytes "KVFE", u8 version (1), u8 dtype (its place in DTYPES), u8 dimensions (1 to 4), u8 0,
    4 x u64 shape (unused ones 0), u64 length of the elements in bytes; all little-endian.

The store checks the bytes themselves by their digest; this says what they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvferry.errors import InvalidArgumentError, ProtocolError

# name -> bytes of an element. The order is part of the format: only ever append.
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1}

_MAGIC = b"KVFE"
_VERSION = 1
_MAX_DIMENSIONS = 4
_FORMAT = struct.Struct("<4sBBBB4QQ")
HEADER_BYTES = _FORMAT.size


class EncodedTensor(NamedTuple):
    """One encoder output in host memory. `data`: its elements as bytes, `shape[0]` rows of them."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def pack(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the header of a tensor. Raises `InvalidArgumentError` for what the format cannot hold."""
    if dtype not in DTYPES:
        raise InvalidArgumentError(
            f"encoder outputs of type {dtype} cannot be stored, only {', '.join(DTYPES)}"
        )
    if not 1 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 1:
        raise InvalidArgumentError(f"an encoder output of shape {tuple(shape)} cannot be stored")
    padded = (*shape, *[0] * (_MAX_DIMENSIONS - len(shape)))
    length_bytes = math.prod(shape) * DTYPES[dtype]
    return _FORMAT.pack(_MAGIC, _VERSION, list(DTYPES).index(dtype), len(shape), 0, *padded, length_bytes)


def unpack(stored: npt.NDArray[np.uint8], *, rows: int | None = None) -> EncodedTensor:
    """Return the tensor that `stored` holds, without a copy.

    `rows`: how many there must be. Raises `ProtocolError` if it is anything but such a tensor.
    """
    if stored.nbytes < HEADER_BYTES:
        raise ProtocolError(f"an encoder output of {stored.nbytes} bytes has no header")
    magic, version, code, dimensions, zero, *numbers = _FORMAT.unpack(stored[:HEADER_BYTES].tobytes())
    if magic != _MAGIC or version != _VERSION or zero != 0:
        raise ProtocolError("this is no encoder output, or of another version")
    if code >= len(DTYPES) or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ProtocolError(f"an encoder output of type {code} with {dimensions} dimensions is not known")
    shape, unused, length_bytes = tuple(numbers[:dimensions]), numbers[dimensions:-1], numbers[-1]
    dtype = list(DTYPES)[code]
    if any(unused) or length_bytes != math.prod(shape) * DTYPES[dtype]:
        raise ProtocolError(f"an encoder output of shape {shape} and {length_bytes} bytes contradicts itself")
    if length_bytes != stored.nbytes - HEADER_BYTES or length_bytes == 0:
        raise ProtocolError(
            f"an encoder output says that it has {length_bytes} bytes and has {stored.nbytes - HEADER_BYTES}"
        )
    if rows is not None and shape[0] != rows:
        raise ProtocolError(f"an encoder output has {shape[0]} rows, {rows} are wanted")
    return EncodedTensor(dtype, shape, stored[HEADER_BYTES:])
