"""Reads those layers of a prompt that its producer has announced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvferry.handoff.early import LOCAL_REGION, EarlyPulls, Pieces
from kvferry.handoff.peers import KnownPeer
from kvferry.layout import KVGeometry, map_blocks
from kvferry.layout.geometry import STATE

if TYPE_CHECKING:
    from kvferry.transfer import Engine

MAX_IN_FLIGHT = 4  # early transfers of one stream; what is announced meanwhile goes together in the next one


class Announced(NamedTuple):
    """Where a prompt is being computed, how far, and where it is wanted."""

    local_block_ids: Sequence[Sequence[int]]  # by group
    blocks: list[int]  # the producer's
    ends: Mapping[int, int]  # complete tokens, by layer
    end_token: int  # of the prompt


class EarlyReader:
    """For one rank of a decode engine. Belongs to one thread."""

    def __init__(
        self,
        engine: Engine,
        geometry: KVGeometry,
        local_regions: Mapping[str, int],
        transfer_timeout_s: float,
    ) -> None:
        self._engine = engine
        self._geometry = geometry
        self._local_regions = local_regions
        self._timeout_s = transfer_timeout_s
        self._regions = _layer_regions(geometry, local_regions)

    def read(self, known: KnownPeer, early: EarlyPulls, announced: Announced) -> int | None:
        """Start to read what is announced and not read yet; returns how many transfers that took.

        None: it has to wait for others. Raises what `map_blocks`, `Engine.prepare` and `submit` raise.
        """
        if not self._fits(known.cache):
            return 0  # all of it is read at the end
        due = self._due(early, announced)
        if not due:
            return 0
        if early.has_void_in_flight() or early.in_flight() >= MAX_IN_FLIGHT:
            return None
        for (begin, end), layers in due.items():
            pieces = map_blocks(
                self._geometry,
                known.cache,
                announced.local_block_ids,
                (announced.blocks,),
                local_regions=self._local_regions,
                remote_regions=known.regions,
                local_first_token=early.first_token,
                first_token=begin,
                num_tokens=end - begin,
            )
            regions = [self._regions[layer] for layer in layers]
            plan = self._engine.prepare(known.peer, _of_regions(pieces, regions), op="read")
            transfer = self._engine.submit(plan, timeout_s=self._timeout_s)
            early.add(transfer, dict.fromkeys(regions, end))
        return len(due)

    def _fits(self, theirs: KVGeometry) -> bool:
        """Whether blocks and layers are the same on both sides, so that announcements mean ours."""
        ours = self._geometry

        def shape(cache: KVGeometry) -> tuple[object, ...]:
            group = cache.groups[0]
            return cache.tp_size, cache.tp_rank, cache.pp_size, cache.tokens_of(0), group.layer_names

        return bool(self._regions) and len(theirs.groups) == 1 and shape(ours) == shape(theirs)

    def _due(self, early: EarlyPulls, announced: Announced) -> dict[tuple[int, int], list[int]]:
        """The layers to read next, by token range: whole blocks, and the last one at the prompt's end."""
        size, total = self._geometry.tokens_of(0), announced.end_token
        listed = len(announced.blocks) * size
        due: dict[tuple[int, int], list[int]] = {}
        for layer, complete in announced.ends.items():
            if layer >= len(self._regions):
                continue
            end = -(-total // size) * size if complete >= total else complete // size * size
            end = min(end, listed)
            begin = early.filled_to(self._regions[layer])
            if end > begin:
                due.setdefault((begin, end), []).append(layer)
        return due


def _layer_regions(geometry: KVGeometry, regions: Mapping[str, int]) -> list[int]:
    """The region id of each layer, if layers can be read one by one: in regions of their own that begin with
    block 0, with one list of blocks of all tokens. Else none: then nothing is read early."""
    group = geometry.groups[0]
    found = [regions[name] for name in group.region_names]
    plain = (
        len(geometry.groups) == 1
        and group.kind != STATE
        and group.window == 0
        and group.kv_split != "KV_OUTER"
        and not any(group.offsets)
        and len(set(found)) == len(found)
    )
    return found if plain else []


def _of_regions(pieces: Pieces, regions: Collection[int]) -> Pieces:
    """The pieces that go into these local regions."""
    return pieces[np.isin(pieces[:, LOCAL_REGION], np.fromiter(regions, dtype=np.uint64))]
