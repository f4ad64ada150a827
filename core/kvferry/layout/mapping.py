"""From block ids to the byte ranges that move them, all layers at once, without a Python loop over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvferry.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from kvferry.layout.compatibility import check_compatible
from kvferry.layout.geometry import KVGeometry, KVGroup, Plane, Strides, strides_of

Pieces = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int64]
_BlockIds = Sequence[int] | npt.NDArray[np.integer]
_Planes = tuple[Plane, ...]


class _Side(NamedTuple):
    """One side of one group: where its blocks lie and which token of the sequence they begin with."""

    who: str
    blocks: _Ints
    block_size: int
    first_token: int  # position of the first token of blocks[0]
    strides: Strides
    regions: _Ints  # region id of each layer

    @property
    def end_token(self) -> int:
        return self.first_token + len(self.blocks) * self.block_size


def map_blocks(
    ours: KVGeometry,
    theirs: KVGeometry,
    local_blocks: Sequence[_BlockIds],
    remote_blocks: Sequence[_BlockIds],
    *,
    local_regions: Mapping[str, int],
    remote_regions: Mapping[str, int],
    local_first_token: int = 0,
    remote_first_token: int = 0,
    first_token: int | None = None,
    num_tokens: int | None = None,
) -> Pieces:
    """Return the pieces that move a token range between local and remote blocks, for `Engine.prepare`.

    `local_blocks[g]` and `remote_blocks[g]` are the block ids of group `g` in token order; the first one
    begins at position `local_first_token` / `remote_first_token` of the sequence. `local_regions` and
    `remote_regions` give the region id of every layer by its name. The range is [first_token, first_token +
    num_tokens); by default all tokens that both sides' lists cover. Opaque blocks move whole, so their range
    must begin at a block's start, and its last block is copied entirely.

    Result: C-contiguous uint64 [n, 5]: local region, remote region, local offset, remote offset, length
    (bytes). Pure; thread-safe. Raises `GeometryMismatchError` (pair cannot be mapped), `InvalidArgumentError`
    (lists do not fit the groups, or the range is not block-aligned for opaque blocks), `OutOfRangeError` (a
    block id beyond the cache, or tokens that a list does not cover), `NotFoundError` (a layer without a
    region).
    """
    check_compatible(ours, theirs)
    if len(local_blocks) != len(ours.groups) or len(remote_blocks) != len(ours.groups):
        raise InvalidArgumentError(
            f"one list of block ids per group is needed: {len(ours.groups)} groups, "
            f"got {len(local_blocks)} local and {len(remote_blocks)} remote lists"
        )
    parts = []
    for index in range(len(ours.groups)):
        local = _side(
            "local",
            ours,
            index,
            blocks=local_blocks[index],
            first_token=local_first_token,
            regions=local_regions,
        )
        remote = _side(
            "remote",
            theirs,
            index,
            blocks=remote_blocks[index],
            first_token=remote_first_token,
            regions=remote_regions,
        )
        begin, end = _token_range(local, remote, first_token, num_tokens)
        if end > begin:
            parts.append(_map_group(ours.groups[index], local, remote, begin, end))
    if not parts:
        return np.empty((0, 5), dtype=np.uint64)
    return np.ascontiguousarray(np.concatenate(parts))


def _side(
    who: str,
    geometry: KVGeometry,
    index: int,
    *,
    blocks: _BlockIds,
    first_token: int,
    regions: Mapping[str, int],
) -> _Side:
    group = geometry.groups[index]
    ids = np.asarray(blocks, dtype=np.int64).reshape(-1)
    if ids.size and (ids.min() < 0 or ids.max() >= group.num_blocks):
        wrong = int(ids[(ids < 0) | (ids >= group.num_blocks)][0])
        raise OutOfRangeError(f"{who} block id {wrong} of group {index} is outside 0..{group.num_blocks - 1}")
    if first_token < 0:
        raise InvalidArgumentError(f"{who}_first_token is {first_token}; it must not be negative")
    missing = [name for name in group.layer_names if name not in regions]
    if missing:
        raise NotFoundError(
            f"no {who} region for layer {missing[0]!r} ({len(missing)} layers of group {index} missing)"
        )
    region_ids = np.fromiter((regions[name] for name in group.layer_names), dtype=np.int64)
    return _Side(
        who, ids, geometry.block_size, first_token, strides_of(group, geometry.block_size), region_ids
    )


def _token_range(
    local: _Side, remote: _Side, first_token: int | None, num_tokens: int | None
) -> tuple[int, int]:
    begin = max(local.first_token, remote.first_token) if first_token is None else first_token
    end = min(local.end_token, remote.end_token) if num_tokens is None else begin + num_tokens
    for side in (local, remote):
        if end > begin and not (side.first_token <= begin and end <= side.end_token):
            raise OutOfRangeError(
                f"tokens {begin}..{end - 1} are wanted, "
                f"the {side.who} blocks hold {side.first_token}..{side.end_token - 1}"
            )
    return begin, end


def _map_group(group: KVGroup, local: _Side, remote: _Side, begin: int, end: int) -> Pieces:
    if group.layout == "OPAQUE":
        for side in (local, remote):
            if (begin - side.first_token) % side.block_size:
                raise InvalidArgumentError(
                    f"opaque blocks move whole: token {begin} is not at the start of a {side.who} block of "
                    f"{side.block_size} tokens that begin at {side.first_token}"
                )
        end = begin + -(-(end - begin) // local.block_size) * local.block_size
    parts = []
    starts, lengths = _segments(local, remote, begin, end)
    for length in np.unique(lengths):
        at = starts[lengths == length]
        for ours, theirs in _plane_pairs(group, local, remote, int(length)):
            inner_local, inner_remote, run = _inner_runs(group, ours, theirs, int(length), local.strides.item)
            local_offsets = (_token_offsets(local, ours[0], at)[:, None] + inner_local).reshape(-1)
            remote_offsets = (_token_offsets(remote, theirs[0], at)[:, None] + inner_remote).reshape(-1)
            parts.append(_per_layer(local, remote, local_offsets, remote_offsets, run))
    return np.concatenate(parts)


def _plane_pairs(group: KVGroup, local: _Side, remote: _Side, tokens: int) -> list[tuple[_Planes, _Planes]]:
    """Planes that can be walked together: all of them when they have equal steps, else one by one."""
    ours, theirs = local.strides.planes, remote.strides.planes
    whole = tokens == local.block_size == remote.block_size
    if whole and ours == theirs and group.kv_split != "KV_OUTER" and group.layout != "OPAQUE":
        block = (Plane(0, 0, 0, 0),)  # equal blocks, whole: one run
        return [(block, block)]
    if all(plane[1:] == planes[0][1:] for planes in (ours, theirs) for plane in planes):
        return [(ours, theirs)]
    return [((our_plane,), (their_plane,)) for our_plane, their_plane in zip(ours, theirs, strict=True)]


def _segments(local: _Side, remote: _Side, begin: int, end: int) -> tuple[_Ints, _Ints]:
    """Cut [begin, end) at each side's block boundaries: starts and lengths in tokens."""
    cuts = [np.array([begin, end], dtype=np.int64)]
    for side in (local, remote):
        first = begin + (side.first_token - begin) % side.block_size
        cuts.append(np.arange(first, end, side.block_size, dtype=np.int64))
    edges = np.unique(np.concatenate(cuts))
    return edges[:-1], np.diff(edges)


def _token_offsets(side: _Side, plane: Plane, tokens: _Ints) -> _Ints:
    """Byte offset, within a layer's region, of head 0, dim 0 of each token in `plane`."""
    block, inside = np.divmod(tokens - side.first_token, side.block_size)
    offsets: _Ints = side.blocks[block] * side.strides.block + plane.base + inside * plane.token
    return offsets


def _inner_runs(
    group: KVGroup, local: _Planes, remote: _Planes, tokens: int, item: int
) -> tuple[_Ints, _Ints, int]:
    """Offsets, relative to a segment's first element, of the runs that are contiguous on both sides, and
    their length in bytes."""
    ours, theirs = local[0], remote[0]
    if ours.dim == 0:  # a block without inner steps: opaque, or equal and whole
        zero = np.zeros(1, dtype=np.int64)
        return zero, zero, group.block_bytes
    axes = [
        (group.kv_heads, ours.head, theirs.head),
        (tokens, ours.token, theirs.token),
        (group.head_dim, ours.dim, theirs.dim),
    ]
    if len(local) > 1:
        axes.insert(0, (len(local), local[1].base - ours.base, remote[1].base - theirs.base))
    axes = [axis for axis in axes if axis[0] > 1]
    run = item
    while True:  # an axis whose step is the present run on both sides makes the run longer
        joined = next((axis for axis in axes if axis[1] == run and axis[2] == run), None)
        if joined is None:
            break
        axes.remove(joined)
        run *= joined[0]
    local_offsets = remote_offsets = np.zeros(1, dtype=np.int64)
    for count, local_step, remote_step in axes:
        index = np.arange(count, dtype=np.int64)
        local_offsets = (local_offsets[:, None] + index * local_step).reshape(-1)
        remote_offsets = (remote_offsets[:, None] + index * remote_step).reshape(-1)
    return local_offsets, remote_offsets, run


def _per_layer(local: _Side, remote: _Side, local_offsets: _Ints, remote_offsets: _Ints, run: int) -> Pieces:
    layers, count = len(local.regions), len(local_offsets)
    pieces = np.empty((layers, count, 5), dtype=np.uint64)
    pieces[:, :, 0] = local.regions[:, None]
    pieces[:, :, 1] = remote.regions[:, None]
    pieces[:, :, 2] = local_offsets
    pieces[:, :, 3] = remote_offsets
    pieces[:, :, 4] = run
    return pieces.reshape(-1, 5)
