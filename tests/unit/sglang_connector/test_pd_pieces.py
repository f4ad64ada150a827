"""Which bytes of a prefill server's pages go where on a decode server: against a copy made token by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from kvferry_sglang.pd.pieces import Entry, HeadSlice, Pieces, blocks, head_slices, whole_pages

PAGES, PAGE = 12, 4


class Pool(NamedTuple):
    """Layers of pages of tokens of heads, all bytes different enough."""

    layers: list[np.ndarray]

    @classmethod
    def of(cls, layers: int, heads: int, head_bytes: int, seed: int | None) -> Pool:
        shape = (PAGES, PAGE, heads, head_bytes)
        if seed is None:
            return cls([np.zeros(shape, np.uint8) for _ in range(layers)])
        random = np.random.default_rng(seed)
        return cls([random.integers(1, 255, shape, np.uint8) for _ in range(layers)])


def move(pieces: Pieces, source: Pool, target: Pool) -> None:
    """Do with plain copies what a transfer does; an address outside of the pools is an error."""
    for near, far, length in zip(*(column.tolist() for column in pieces), strict=True):
        _span(target, far, length)[:] = _span(source, near, length)


def _span(pool: Pool, address: int, length: int) -> np.ndarray:
    for layer in pool.layers:
        offset = address - layer.ctypes.data
        if 0 <= offset <= layer.nbytes - length:
            return layer.reshape(-1)[offset : offset + length]
    raise AssertionError(f"{length} bytes at {address:#x} are outside of the pool")


def entries(source: Pool, target: Pool) -> list[Entry]:
    return [
        Entry(near.ctypes.data, far.ctypes.data, near[0].nbytes)
        for near, far in zip(source.layers, target.layers, strict=True)
    ]


@pytest.mark.parametrize(
    ("near", "far", "runs"),
    [
        ([3], [7], 1),
        ([1, 2, 3, 4], [5, 6, 7, 8], 1),
        ([1, 2, 3, 4], [8, 7, 6, 5], 4),
        ([1, 2, 9, 10], [0, 1, 2, 3], 2),
        ([0, 2, 4], [1, 3, 5], 3),
        ([], [], 0),
    ],
)
def test_whole_pages_go_in_runs_of_neighbours(near: list[int], far: list[int], runs: int) -> None:
    source, target = Pool.of(3, 2, 8, seed=1), Pool.of(3, 2, 8, seed=None)
    pieces = whole_pages(entries(source, target), np.array(near, np.int32), np.array(far, np.int32))
    assert pieces.lengths.size == 3 * runs
    assert pieces.bytes == 3 * len(near) * source.layers[0][0].nbytes
    move(pieces, source, target)
    for here, there in zip(source.layers, target.layers, strict=True):
        assert (there[far] == here[near]).all()
        others = np.setdiff1d(np.arange(PAGES), far)
        assert not there[others].any()


def test_layers_may_differ_in_size() -> None:
    small, large = Pool.of(1, 1, 8, seed=2), Pool.of(1, 4, 8, seed=3)
    source = Pool([*small.layers, *large.layers])
    target = Pool([np.zeros_like(layer) for layer in source.layers])
    move(whole_pages(entries(source, target), np.array([2, 3]), np.array([0, 1])), source, target)
    for here, there in zip(source.layers, target.layers, strict=True):
        assert (there[:2] == here[2:4]).all()


@pytest.mark.parametrize("far", [[1], [1, 2, 3]])
def test_lists_of_unequal_length_are_refused(far: list[int]) -> None:
    pool = Pool.of(1, 1, 8, seed=1)
    with pytest.raises(ValueError, match="2 pages of the prefill server"):
        whole_pages(entries(pool, pool), np.array([1, 2]), np.array(far))


def test_negative_pages_are_refused() -> None:
    pool = Pool.of(1, 1, 8, seed=1)
    with pytest.raises(ValueError, match="negative"):
        whole_pages(entries(pool, pool), np.array([1, 2]), np.array([-1, 0]))


@pytest.mark.parametrize(
    ("near_heads", "far_heads", "from_head", "to_head", "count"),
    [(4, 2, 0, 0, 2), (4, 2, 2, 0, 2), (4, 1, 3, 0, 1), (2, 4, 0, 2, 2), (1, 4, 0, 3, 1), (2, 2, 0, 0, 2)],
)
def test_heads_go_to_the_rank_that_holds_them(
    near_heads: int, far_heads: int, from_head: int, to_head: int, count: int
) -> None:
    head = 8
    source, target = Pool.of(2, near_heads, head, seed=4), Pool.of(2, far_heads, head, seed=None)
    near, far = np.array([1, 2, 9], np.int32), np.array([4, 3, 0], np.int32)
    part = HeadSlice(near_heads * head, far_heads * head, from_head * head, to_head * head, count * head)
    pairs = [(a.ctypes.data, b.ctypes.data) for a, b in zip(source.layers, target.layers, strict=True)]
    pieces = head_slices(pairs, near, far, PAGE, part)
    assert pieces.lengths.size == 2 * 3 * PAGE
    move(pieces, source, target)
    for here, there in zip(source.layers, target.layers, strict=True):
        moved = there[far][:, :, to_head : to_head + count]
        assert (moved == here[near][:, :, from_head : from_head + count]).all()
        assert there.astype(np.int64).sum() == moved.astype(np.int64).sum(), "something else was written"


def test_a_list_of_blocks_is_taken_as_it_is() -> None:
    high = (1 << 63) + 5
    pieces = blocks([(1, high, 3), (high, 2, 4)])
    assert pieces.source.tolist() == [1, high]
    assert pieces.target.tolist() == [high, 2]
    assert pieces.bytes == 7
    assert blocks([]).bytes == 0
