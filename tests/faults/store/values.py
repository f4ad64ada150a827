"""What the campaign stores: every byte follows from the key and a variant, so that readers can check it.

A key ends in its size: "r3/durable/7/65536".
"""

from __future__ import annotations

import zlib

import numpy as np

VARIANTS = 3  # contents that writers who race put under the same key
_WORD = np.uint64(0x9E3779B97F4A7C15)


def size_of(key: str) -> int:
    """How long the object is."""
    return int(key.rsplit("/", 1)[1])


def content(key: str, variant: int = 0) -> bytes:
    """The bytes under `key`; those of two variants differ in every word."""
    size = size_of(key)
    words = np.arange(size // 8 + 1, dtype=np.uint64) * np.uint64(VARIANTS) + np.uint64(variant)
    words = words * _WORD + np.uint64(zlib.crc32(key.encode()))
    return words.tobytes()[:size]


def variant_of(key: str, data: bytes) -> int | None:
    """Which variant `data` is; None if it is no content of `key`, i.e. wrong bytes."""
    return next((variant for variant in range(VARIANTS) if data == content(key, variant)), None)
