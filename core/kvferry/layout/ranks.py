"""Which ranks of one engine hold the KV heads that a rank of another engine needs. Pure arithmetic.

With H heads and T tensor-parallel ranks, a rank holds H/T heads in order; with more ranks than heads, T/H
neighbouring ranks hold the same one. Then one of them is chosen to read from, another one for each reader as
far as there are others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kvferry.errors import InvalidArgumentError
from kvferry.layout.geometry import KVGeometry


class Source(NamedTuple):
    """One rank of the other engine that a rank of ours deals with.

    `rank` counts pipeline stages first, then tensor-parallel ranks. `reader` of `readers`: our place among
    all ranks of our engine that deal with it. `reads` False: it holds copies only of what is read elsewhere,
    and is only told that it is not needed.
    """

    rank: int
    reader: int
    readers: int
    reads: bool


def held_heads(total: int, rank: int, size: int) -> range:
    """The heads that a rank holds. Raises InvalidArgumentError if they cannot be spread evenly."""
    if max(total, size) % min(total, size):
        raise InvalidArgumentError(f"{total} KV heads cannot be spread over {size} tensor-parallel ranks")
    first = rank * total // size
    return range(first, first + max(1, total // size))


def read_heads(total: int, reader: tuple[int, int], holder: tuple[int, int]) -> range:
    """The heads that the reading rank takes from the holding one; both are (rank, size)."""
    wanted, held = held_heads(total, *reader), held_heads(total, *holder)
    copies = max(1, holder[1] // total)
    if holder[0] % copies != reader[0] % copies:
        return range(0)
    return range(max(wanted.start, held.start), min(wanted.stop, held.stop))


def sources_of(ours: KVGeometry, tp_size: int, pp_size: int) -> tuple[Source, ...]:
    """Return the ranks that our rank deals with, of an engine with these sizes.

    All its pipeline stages are asked: which layers each holds, only the stage itself knows. Raises
    InvalidArgumentError if our heads cannot be spread over so many ranks.
    """
    totals = tuple(sorted({ours.total_heads_of(index) for index in range(len(ours.groups))}))
    ranks = ours.tp_rank, ours.tp_size, ours.pp_rank, ours.pp_size
    return _sources(totals, ranks, tp_size, pp_size)


@lru_cache(maxsize=256)
def _sources(
    totals: tuple[int, ...], ranks: tuple[int, int, int, int], tp_size: int, pp_size: int
) -> tuple[Source, ...]:
    tp_rank, our_tp_size, pp_rank, our_pp_size = ranks
    found = []
    for holder in range(tp_size):
        among = _readers(totals, our_tp_size, (holder, tp_size))
        reads = bool(among)
        among = among or [holder % our_tp_size]
        if tp_rank in among:
            reader = among.index(tp_rank) * our_pp_size + pp_rank
            found += [
                Source(stage * tp_size + holder, reader, len(among) * our_pp_size, reads)
                for stage in range(pp_size)
            ]
    return tuple(found)


def _readers(totals: Iterable[int], size: int, holder: tuple[int, int]) -> list[int]:
    return [rank for rank in range(size) if any(read_heads(total, (rank, size), holder) for total in totals)]
