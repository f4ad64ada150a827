"""From block ids to the byte ranges that move them, all layers at once, without a Python loop over blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvferry.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from kvferry.layout.compatibility import check_compatible
from kvferry.layout.geometry import STATE, KVGeometry, KVGroup, Plane, Strides, strides_of
from kvferry.layout.ranks import held_heads, read_heads

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
    null_block: int
    strides: Strides
    regions: _Ints  # region id of each layer
    offsets: _Ints  # where each layer's block 0 begins in its region

    @property
    def end_token(self) -> int:
        return self.first_token + len(self.blocks) * self.block_size


class _Group(NamedTuple):
    """What both sides of a group have in common."""

    group: KVGroup  # ours
    heads: int  # how many are moved
    local_head: int  # the first of them, counted in our rank
    remote_head: int
    all_heads: bool  # neither side has more of them


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
    pad: bool = False,
) -> Pieces:
    """Return the pieces that move a token range between local and remote blocks, for `Engine.prepare`.

    `local_blocks[t]` and `remote_blocks[t]` are the ids of block list `t` (see `KVGroup.table`) in token
    order; the first one is the block that holds position `local_first_token` / `remote_first_token` of the
    sequence. `local_regions` and `remote_regions` give region ids by name. The range is [first_token,
    first_token + num_tokens); by default all tokens that both sides' lists cover. Opaque blocks move whole,
    so their range must begin at a block's start, and its last block is copied entirely; `pad` does so with
    all blocks where both lists have the tokens, since whole blocks are fewer runs.

    Moved are the layers and heads that both ranks hold, less heads that our rank reads from another copy (see
    `layout.ranks`). Local null blocks get nothing. Of a state group one block moves: the one that holds the
    range's last token.

    Result: C-contiguous uint64 [n, 5]: local region, remote region, local offset, remote offset, length
    (bytes). Pure; thread-safe. Raises `GeometryMismatchError` (pair cannot be mapped), `InvalidArgumentError`
    (lists do not fit the groups, or the range is not block-aligned for opaque blocks), `OutOfRangeError` (a
    block id beyond the cache, or tokens that a list does not cover or has a null block for), `NotFoundError`
    (a layer without a region).
    """
    check_compatible(ours, theirs)
    if len(local_blocks) != ours.tables or len(remote_blocks) != ours.tables:
        raise InvalidArgumentError(
            f"one list of block ids per group is needed: {ours.tables} groups, "
            f"got {len(local_blocks)} local and {len(remote_blocks)} remote lists"
        )
    parts = []
    for index in range(len(ours.groups)):
        common = _common(ours, theirs, index)
        layers = _shared_layers(ours.groups[index], theirs.groups[index])
        if common is None or not len(layers):
            continue
        table = ours.table_of(index)
        local = _side(
            "local",
            ours,
            index,
            layers[:, 0],
            blocks=local_blocks[table],
            first_token=local_first_token,
            regions=local_regions,
        )
        remote = _side(
            "remote",
            theirs,
            index,
            layers[:, 1],
            blocks=remote_blocks[table],
            first_token=remote_first_token,
            regions=remote_regions,
        )
        begin, end = _token_range(local, remote, first_token, num_tokens)
        if end > begin:
            parts.append(_map_group(common, local, remote, begin, end, pad=pad))
    if not parts:
        return np.empty((0, 5), dtype=np.uint64)
    return np.ascontiguousarray(np.concatenate(parts))


def _common(ours: KVGeometry, theirs: KVGeometry, index: int) -> _Group | None:
    total = ours.total_heads_of(index)
    heads = read_heads(total, (ours.tp_rank, ours.tp_size), (theirs.tp_rank, theirs.tp_size))
    if not heads:
        return None
    local = held_heads(total, ours.tp_rank, ours.tp_size).start
    remote = held_heads(total, theirs.tp_rank, theirs.tp_size).start
    group, other = ours.groups[index], theirs.groups[index]
    all_heads = len(heads) == group.kv_heads == other.kv_heads
    return _Group(group, len(heads), heads.start - local, heads.start - remote, all_heads)


def _shared_layers(ours: KVGroup, theirs: KVGroup) -> _Ints:
    """Indices [n, 2] of the layers that both hold, in our order."""
    if ours.layer_names == theirs.layer_names:
        return np.repeat(np.arange(len(ours.layer_names), dtype=np.int64)[:, None], 2, axis=1)
    where = {name: index for index, name in enumerate(theirs.layer_names)}
    pairs = [(index, where[name]) for index, name in enumerate(ours.layer_names) if name in where]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _side(
    who: str,
    geometry: KVGeometry,
    index: int,
    layers: _Ints,
    *,
    blocks: _BlockIds,
    first_token: int,
    regions: Mapping[str, int],
) -> _Side:
    group, tokens = geometry.groups[index], geometry.tokens_of(index)
    ids = np.asarray(blocks, dtype=np.int64).reshape(-1)
    if ids.size and (ids.min() < 0 or ids.max() >= group.num_blocks):
        wrong = int(ids[(ids < 0) | (ids >= group.num_blocks)][0])
        raise OutOfRangeError(f"{who} block id {wrong} of group {index} is outside 0..{group.num_blocks - 1}")
    if first_token < 0:
        raise InvalidArgumentError(f"{who}_first_token is {first_token}; it must not be negative")
    names = group.region_names
    missing = [group.layer_names[layer] for layer in layers if names[layer] not in regions]
    if missing:
        raise NotFoundError(
            f"no {who} region for layer {missing[0]!r} ({len(missing)} layers of group {index} missing)"
        )
    region_ids = np.fromiter((regions[names[layer]] for layer in layers), dtype=np.int64)
    offsets = np.array(group.offsets or [0] * len(names), dtype=np.int64)[layers]
    return _Side(
        who,
        ids,
        tokens,
        first_token - first_token % tokens,
        group.null_block,
        strides_of(group, tokens),
        region_ids,
        offsets,
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


def _map_group(common: _Group, local: _Side, remote: _Side, begin: int, end: int, *, pad: bool) -> Pieces:
    group = common.group
    if group.kind == STATE:
        begin = end - 1 - (end - 1 - local.first_token) % local.block_size
    elif group.layout == "OPAQUE":
        _check_aligned(local, remote, begin)
    if pad or group.layout == "OPAQUE":
        whole = end + (local.first_token - end) % local.block_size
        end = max(end, min(whole, remote.end_token))
    starts, lengths = _without_nulls(local, remote, *_segments(local, remote, begin, end))
    parts = [np.empty((0, 5), dtype=np.uint64)]
    for length in np.unique(lengths):
        at = starts[lengths == length]
        for ours, theirs in _plane_pairs(common, local, remote, int(length)):
            inner_local, inner_remote, run = _inner_runs(
                common, ours, theirs, int(length), local.strides.item
            )
            local_offsets = (_token_offsets(local, ours[0], at)[:, None] + inner_local).reshape(-1)
            remote_offsets = (_token_offsets(remote, theirs[0], at)[:, None] + inner_remote).reshape(-1)
            parts.append(_per_layer(local, remote, local_offsets, remote_offsets, run))
    return np.concatenate(parts)


def _check_aligned(local: _Side, remote: _Side, begin: int) -> None:
    for side in (local, remote):
        if (begin - side.first_token) % side.block_size:
            raise InvalidArgumentError(
                f"opaque blocks move whole: token {begin} is not at the start of a {side.who} block of "
                f"{side.block_size} tokens that begin at {side.first_token}"
            )


def _plane_pairs(common: _Group, local: _Side, remote: _Side, tokens: int) -> list[tuple[_Planes, _Planes]]:
    """Planes that can be walked together: all of them when they have equal steps, else one by one."""
    ours, theirs = local.strides.planes, remote.strides.planes
    whole = tokens == local.block_size == remote.block_size
    packed = local.strides.packed and remote.strides.packed and common.group.layout != "OPAQUE"
    if whole and packed and ours == theirs and (common.all_heads or common.group.kv_split == "KV_HEAD"):
        here, there = common.local_head * ours[0].head, common.remote_head * ours[0].head
        return [
            ((Plane(here, 0, 0, 0),), (Plane(there, 0, 0, 0),))
        ]  # equal blocks, or heads of them: one run
    ours = tuple(plane._replace(base=plane.base + common.local_head * plane.head) for plane in ours)
    theirs = tuple(plane._replace(base=plane.base + common.remote_head * plane.head) for plane in theirs)
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


def _without_nulls(local: _Side, remote: _Side, starts: _Ints, lengths: _Ints) -> tuple[_Ints, _Ints]:
    """Leave out what has no local block; the rest must have a remote one."""
    wanted = _block_ids(local, starts) != local.null_block
    starts, lengths = starts[wanted], lengths[wanted]
    gone = starts[_block_ids(remote, starts) == remote.null_block]
    if len(gone):
        raise OutOfRangeError(
            f"the {remote.who} side no longer has the block of token {int(gone[0])} "
            f"({len(gone)} of {len(starts)} parts are gone)"
        )
    return starts, lengths


def _block_ids(side: _Side, tokens: _Ints) -> _Ints:
    ids: _Ints = side.blocks[(tokens - side.first_token) // side.block_size]
    return ids


def _token_offsets(side: _Side, plane: Plane, tokens: _Ints) -> _Ints:
    """Byte offset, from a layer's block 0, of the first moved head, dim 0 of each token in `plane`."""
    inside = (tokens - side.first_token) % side.block_size
    offsets: _Ints = _block_ids(side, tokens) * side.strides.block + plane.base + inside * plane.token
    return offsets


def _inner_runs(
    common: _Group, local: _Planes, remote: _Planes, tokens: int, item: int
) -> tuple[_Ints, _Ints, int]:
    """Offsets, relative to a segment's first element, of the runs that are contiguous on both sides, and
    their length in bytes."""
    ours, theirs = local[0], remote[0]
    if ours.dim == 0:  # a block without inner steps: opaque, or equal heads of it
        zero = np.zeros(1, dtype=np.int64)
        return zero, zero, common.group.block_bytes * common.heads // common.group.kv_heads
    axes = [
        (common.heads, ours.head, theirs.head),
        (tokens, ours.token, theirs.token),
        (common.group.head_dim, ours.dim, theirs.dim),
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
    pieces[:, :, 2] = local.offsets[:, None] + local_offsets
    pieces[:, :, 3] = remote.offsets[:, None] + remote_offsets
    pieces[:, :, 4] = run
    return pieces.reshape(-1, 5)
