"""Whether the KV caches of two engines can be mapped onto each other."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry.errors import GeometryMismatchError
from kvferry.layout.geometry import KVGeometry, KVGroup, strides_of

_Difference = tuple[str, object, object, str]  # field, ours, theirs, what to do


def check_compatible(ours: KVGeometry, theirs: KVGeometry) -> None:
    """Return if blocks of `theirs` can be mapped onto `ours` and back; the question is symmetric.

    Raises `GeometryMismatchError` with one sentence that names the first differing field, both values, and
    what to do. Equal are required: model, revision (where both state one), dtype, ranks and sizes of tensor
    and pipeline parallelism, groups with their layers, heads and head dim. Block sizes may differ where one
    divides the other, and NHD/HND and the place of K and V may differ; a transposed K (HND_KT) goes with its
    like only, and opaque blocks must be equal in all.
    """
    for field, our_value, their_value, advice in _differences(ours, theirs):
        raise GeometryMismatchError(f"{field}: ours {our_value}, theirs {their_value}; {advice}")


def _differences(ours: KVGeometry, theirs: KVGeometry) -> Iterator[_Difference]:
    same_model = "start both engines with the same model"
    if ours.model != theirs.model:
        yield "model", ours.model, theirs.model, same_model
    if ours.revision and theirs.revision and ours.revision != theirs.revision:
        yield "revision", ours.revision, theirs.revision, "start both engines with the same model revision"
    if ours.dtype != theirs.dtype:
        yield "dtype", ours.dtype, theirs.dtype, "start both engines with the same KV cache dtype"
    for field in ("tp_size", "tp_rank", "pp_size", "pp_rank"):
        our_value, their_value = getattr(ours, field), getattr(theirs, field)
        if our_value != their_value:
            yield field, our_value, their_value, "use equal parallel sizes and connect rank to equal rank"
    if len(ours.groups) != len(theirs.groups):
        yield "number of KV cache groups", len(ours.groups), len(theirs.groups), same_model
    for index, (our_group, their_group) in enumerate(zip(ours.groups, theirs.groups, strict=False)):
        prefix = f"group {index} " if len(ours.groups) > 1 else ""
        for field, our_value, their_value, advice in _group_differences(ours, our_group, theirs, their_group):
            yield prefix + field, our_value, their_value, advice


def _group_differences(
    ours: KVGeometry, our_group: KVGroup, theirs: KVGeometry, their_group: KVGroup
) -> Iterator[_Difference]:
    same_model = "start both engines with the same model"
    if len(our_group.layer_names) != len(their_group.layer_names):
        yield "number of layers", len(our_group.layer_names), len(their_group.layer_names), same_model
    for our_name, their_name in zip(our_group.layer_names, their_group.layer_names, strict=False):
        if our_name != their_name:
            yield "layer name", our_name, their_name, same_model
    for field in ("kind", "kv_heads", "head_dim"):
        our_value, their_value = getattr(our_group, field), getattr(their_group, field)
        if our_value != their_value:
            yield field, our_value, their_value, same_model
    larger, smaller = max(ours.block_size, theirs.block_size), min(ours.block_size, theirs.block_size)
    if larger % smaller:
        yield (
            "block_size",
            ours.block_size,
            theirs.block_size,
            "choose block sizes of which one divides the other",
        )
    if "OPAQUE" in (our_group.layout, their_group.layout):
        yield from _opaque_differences(ours, our_group, theirs, their_group)
        return
    if our_group.planes != their_group.planes:
        yield "kv_split", our_group.kv_split, their_group.kv_split, same_model
    if (our_group.layout == "HND_KT") != (their_group.layout == "HND_KT"):
        yield "layout", our_group.layout, their_group.layout, "a transposed K cannot be moved in rows"
    our_item = strides_of(our_group, ours.block_size).item
    their_item = strides_of(their_group, theirs.block_size).item
    if our_item != their_item:
        yield "bytes per element", our_item, their_item, "start both engines with the same KV cache dtype"


def _opaque_differences(
    ours: KVGeometry, our_group: KVGroup, theirs: KVGeometry, their_group: KVGroup
) -> Iterator[_Difference]:
    advice = "opaque blocks can only be copied whole: use the same engine, options and hardware"
    if ours.block_size != theirs.block_size:
        yield (
            "block_size",
            ours.block_size,
            theirs.block_size,
            f"set the same block size on both sides, since {advice}",
        )
    for field in ("layout", "kv_split", "opaque_tag", "block_bytes"):
        our_value, their_value = getattr(our_group, field), getattr(their_group, field)
        if our_value != their_value:
            yield field, our_value, their_value, advice
