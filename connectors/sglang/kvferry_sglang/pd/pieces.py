"""From page numbers to pieces of memory: which bytes of the prefill server go where on the decode server.

Everything here is numpy on addresses; a request of many layers and pages becomes one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[Any]
Addresses = npt.NDArray[np.uint64]


class Pieces(NamedTuple):
    """Source addresses, destination addresses and lengths in bytes: uint64 [n] each."""

    source: Addresses
    target: Addresses
    lengths: Addresses

    @property
    def bytes(self) -> int:
        """How much they move."""
        return int(self.lengths.sum())


class Entry(NamedTuple):
    """A buffer of pages on both sides, e.g. the K of a layer: where each begins, and the bytes of a page."""

    source: int
    target: int
    page_bytes: int


class HeadSlice(NamedTuple):
    """Which bytes of each token move where the two sides split the heads differently; all in bytes."""

    source_token: int  # of a token's whole entry in the source buffer
    target_token: int
    source_offset: int  # of the heads that move, within the token's entry
    target_offset: int
    length: int


def blocks(triples: Sequence[tuple[int, int, int]]) -> Pieces:
    """Return the pieces of a list of (source, target, length)."""
    table = np.array(triples, np.uint64).reshape(-1, 3)
    return Pieces(table[:, 0], table[:, 1], table[:, 2])


def whole_pages(entries: Sequence[Entry], source_pages: Indices, target_pages: Indices) -> Pieces:
    """Return the pieces by which page `source_pages[i]` of each entry becomes its page `target_pages[i]`.

    Neighbouring pages are one piece. Raises `ValueError` if the two lists differ in length.
    """
    source, target, count = _runs(source_pages, target_pages)
    table = np.array(entries, np.uint64).reshape(-1, 3)
    begin, end, size = (table[:, column, None] for column in range(3))
    return Pieces((begin + source * size).ravel(), (end + target * size).ravel(), (count * size).ravel())


def _runs(source: Indices, target: Indices) -> tuple[Addresses, Addresses, Addresses]:
    """Return where runs of neighbouring pages begin on either side, and how many pages each has."""
    source, target = _pairs(source, target)
    if not source.size:
        return source.astype(np.uint64), target.astype(np.uint64), source.astype(np.uint64)
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    first = np.concatenate(([0], breaks))
    count = np.diff(np.append(first, source.size))
    return source[first].astype(np.uint64), target[first].astype(np.uint64), count.astype(np.uint64)


def _pairs(source: Indices, target: Indices) -> tuple[Indices, Indices]:
    source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
    if source.shape != target.shape:
        raise ValueError(f"{source.size} pages of the prefill server, but {target.size} of the decode server")
    if source.size and min(int(source.min()), int(target.min())) < 0:
        raise ValueError("page numbers must not be negative")
    return source, target


def head_slices(
    pairs: Sequence[tuple[int, int]],
    source_pages: Indices,
    target_pages: Indices,
    page_size: int,
    part: HeadSlice,
) -> Pieces:
    """Return the pieces by which some heads of every token of these pages move, for servers of unequal
    tensor parallelism.

    `pairs`: where each buffer begins, on both sides. `page_size`: tokens of a page. One piece for each token
    and buffer, in such an order that pieces that touch on both sides follow each other: a plan merges them.
    """
    source, target = _pairs(source_pages, target_pages)
    tokens = np.arange(page_size, dtype=np.int64)

    def within(pages: Indices, token_bytes: int, offset: int) -> Addresses:
        return (((pages[:, None] * page_size + tokens) * token_bytes) + offset).ravel().astype(np.uint64)

    begin, end = np.array(pairs, np.uint64).reshape(-1, 2).T
    near = begin[:, None] + within(source, part.source_token, part.source_offset)
    far = end[:, None] + within(target, part.target_token, part.target_offset)
    return Pieces(near.ravel(), far.ravel(), np.full(near.size, part.length, np.uint64))
