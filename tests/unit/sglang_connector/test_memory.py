from __future__ import annotations

import numpy as np
import pytest

from _sglang import PAGE, HostPool, slots
from kvferry.errors import OutOfRangeError
from kvferry_sglang.memory import PageMemory

LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]


def places(runs):
    return runs.addresses.tolist(), runs.lengths.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_lie_where_the_pool_says(layout):
    pool = HostPool(layout)
    wanted = slots([5, 0, 7])
    runs = PageMemory(pool).runs(wanted, 3)
    assert places(runs) == tuple(pool.get_page_buffer_meta(wanted))
    assert runs.counts.tolist() == [len(runs.lengths) // 3] * 3


def test_a_pool_that_is_not_linear_is_asked_each_time():
    class Scattered(HostPool):
        def get_page_buffer_meta(self, indices):
            places, sizes = super().get_page_buffer_meta(indices)
            swapped = {0: 1, 1: 0}  # the first two pages have changed places
            first = np.asarray(indices)[:: self.page_size] // self.page_size
            moved = [swapped.get(int(page), int(page)) - int(page) for page in first]
            return [
                place + step * sizes[0] for place, step in zip(places, np.repeat(moved, 2), strict=True)
            ], sizes

    pool = Scattered()
    wanted = slots([1, 0, 3])
    assert places(PageMemory(pool).runs(wanted, 3)) == tuple(pool.get_page_buffer_meta(wanted))


@pytest.mark.parametrize("pages", [1, 2])
def test_pools_of_few_pages(pages):
    pool = HostPool(pages=pages)
    assert places(PageMemory(pool).runs(slots([0]), 1)) == tuple(pool.get_page_buffer_meta(slots([0])))


def test_parts_of_a_page_are_values_of_their_own():
    pool = HostPool("page_head", heads=4)
    memory = PageMemory(pool, parts=2)
    runs = memory.runs(slots([3, 4]), 2)
    assert places(runs) == tuple(pool.get_split_heads_page_buffer_meta(slots([3, 4]), 2))
    assert runs.counts.tolist() == [2] * 4
    assert memory.page_bytes == 2 * pool.head_num * 8 * PAGE * pool.layer_num


@pytest.mark.parametrize(
    ("wanted", "pages", "words"),
    [
        (slots([0, 1]), 1, "8 slots are not 1 pages"),
        (slots([8]), 1, "leave the pool"),
        (-slots([1]), 1, "leave the pool"),
        (np.zeros(0, np.int64), 1, "0 slots"),
    ],
)
def test_slots_that_are_not_the_pools(wanted, pages, words):
    with pytest.raises(OutOfRangeError, match=words):
        PageMemory(HostPool()).runs(wanted, pages)


def test_pieces_outside_the_memory_are_refused():
    pool = HostPool(pages=2)
    memory = PageMemory(pool)
    pool.get_page_buffer_meta = lambda _indices: (
        [pool.kv_buffer.data_ptr() + pool.kv_buffer.nbytes - 4],
        [8],
    )
    with pytest.raises(OutOfRangeError, match="outside"):
        memory.runs(slots([0]), 1)


def test_what_tells_pools_apart():
    pools = [HostPool(layout) for layout in LAYOUTS]
    pools += [HostPool(page=8), HostPool(heads=4), HostPool(dtype="f2")]
    assert len({PageMemory(pool).describe() for pool in pools}) == len(pools)
    assert PageMemory(HostPool(pages=3)).describe() == PageMemory(HostPool(pages=9)).describe()


def test_parts_are_those_of_a_wider_engine():
    narrow, wide = HostPool("page_head", heads=4), HostPool("page_head", heads=2)
    assert PageMemory(narrow, parts=2).describe() == PageMemory(wide).describe()
