from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_sglang.hits import ALL_PAGES, TRAILING_PAGES, PoolPages, boundaries, common, longest

FLAGS = st.lists(st.booleans(), max_size=12)


def ends(present, policy, trailing=1):
    return (np.flatnonzero(boundaries(PoolPages(np.array(present, bool), policy, trailing))) + 1).tolist()


def test_all_pages_are_needed_up_to_the_first_gap():
    assert ends([1, 1, 0, 1], ALL_PAGES) == [1, 2]
    assert ends([0, 1], ALL_PAGES) == []
    assert ends([], ALL_PAGES) == []


def test_trailing_pages_leave_holes():
    assert ends([0, 1, 1, 0, 1], TRAILING_PAGES) == [2, 3, 5]
    assert ends([0, 1, 1, 0, 1], TRAILING_PAGES, 2) == [3]
    # a prefix shorter than the window needs all of it
    assert ends([1, 0, 1, 1], TRAILING_PAGES, 3) == [1]


def test_a_policy_that_is_not_known_restores_nothing():
    assert ends([1, 1], "some_pages") == []


@given(FLAGS, st.integers(1, 5))
def test_trailing_pages_are_what_they_are_defined_to_be(present, trailing):
    wanted = [
        length for length in range(1, len(present) + 1) if all(present[max(0, length - trailing) : length])
    ]
    assert ends(present, TRAILING_PAGES, trailing) == wanted


@given(st.lists(FLAGS, max_size=3), st.integers(0, 6))
def test_what_all_pools_allow(pools, pages):
    pools = [(each + [False] * pages)[: max(pages, len(each))] for each in pools]
    found = common(pages, [np.array(each, bool) for each in pools])
    assert found.tolist() == [all(each[at] for each in pools) for at in range(pages)]


@pytest.mark.parametrize(("allowed", "length"), [([], 0), ([0, 0], 0), ([1, 0, 1, 0], 3)])
def test_longest(allowed, length):
    assert longest(np.array(allowed, bool)) == length
