"""Where a prompt can be taken up again whose pages several pools hold, each by a rule of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ALL_PAGES = "all_pages"
TRAILING_PAGES = "trailing_pages"


class PoolPages(NamedTuple):
    """What one pool has of a prompt's pages. `policy`: which of them are needed to go on after a prefix:
    `ALL_PAGES`, or with `TRAILING_PAGES` the last `trailing` ones of the prefix.
    """

    present: np.ndarray  # bool [pages]
    policy: str = ALL_PAGES
    trailing: int = 1


def boundaries(pages: PoolPages) -> np.ndarray:
    """Return for each prefix of 1, 2, ... pages whether the pool has what it needs: bool [pages]."""
    present = pages.present
    if pages.policy == ALL_PAGES:
        return np.logical_and.accumulate(present) if len(present) else present
    if pages.policy != TRAILING_PAGES:
        return np.zeros(len(present), np.bool_)
    have = np.concatenate([[0], np.cumsum(present)])
    ends = np.arange(1, len(present) + 1)
    starts = np.maximum(0, ends - max(1, pages.trailing))
    complete: np.ndarray = have[ends] - have[starts] == ends - starts
    return complete


def longest(allowed: np.ndarray) -> int:
    """Return the length of the longest prefix that is allowed; 0 if none is."""
    found = np.flatnonzero(allowed)
    return int(found[-1]) + 1 if len(found) else 0


def common(pages: int, pools: Sequence[np.ndarray]) -> np.ndarray:
    """Return which prefixes all pools allow, of those that the KV pool has `pages` of."""
    allowed = np.ones(pages, np.bool_)
    for each in pools:
        allowed &= each[:pages]
    return allowed
