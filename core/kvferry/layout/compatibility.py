"""Whether the KV caches of two engines can be mapped onto each other."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry.errors import GeometryMismatchError
from kvferry.layout.geometry import STATE, KVGeometry, KVGroup, strides_of
from kvferry.layout.ranks import held_heads

_Difference = tuple[str, object, object, str]  # field, ours, theirs, what to do

_SAME_MODEL = "start both engines with the same model"
_SAME_DRAFT = "start both engines with the same speculative settings"
_SAME_DTYPE = "start both engines with the same KV cache dtype"
_PLAIN_DTYPES = ("float32", "float16", "bfloat16", "float64")


def check_compatible(ours: KVGeometry, theirs: KVGeometry) -> None:
    """Return if what both ranks hold can be copied from one to the other; the question is symmetric.

    Raises `GeometryMismatchError` with one sentence that names the first differing field, both values, and
    what to do. Equal are required: model, revision (where both state one), draft, dtype, quantisation scales,
    groups with their layers (pipeline stages hold parts of them), head dim and number of heads of the model.
    Sizes of tensor parallelism may differ where heads can be told apart, block sizes of groups without a
    window where tokens can, and NHD/HND and the place of K and V may differ; a transposed K (HND_KT) goes
    with its like only, opaque blocks must be equal in all and hold the same heads, and states need equal
    ranks.
    """
    for field, our_value, their_value, advice in _differences(ours, theirs):
        raise GeometryMismatchError(f"{field}: ours {our_value}, theirs {their_value}; {advice}")


def _differences(ours: KVGeometry, theirs: KVGeometry) -> Iterator[_Difference]:
    if ours.model != theirs.model:
        yield "model", ours.model, theirs.model, _SAME_MODEL
    if ours.revision and theirs.revision and ours.revision != theirs.revision:
        yield "revision", ours.revision, theirs.revision, "start both engines with the same model revision"
    if ours.draft != theirs.draft:
        yield "draft", ours.draft or "none", theirs.draft or "none", _SAME_DRAFT
    if ours.dtype != theirs.dtype:
        yield "dtype", ours.dtype, theirs.dtype, _SAME_DTYPE
    if len(ours.groups) != len(theirs.groups):
        yield "number of KV cache groups", len(ours.groups), len(theirs.groups), _SAME_MODEL
    for index in range(min(len(ours.groups), len(theirs.groups))):
        prefix = f"group {index} " if len(ours.groups) > 1 else ""
        for field, our_value, their_value, advice in _group_differences(ours, theirs, index):
            yield prefix + field, our_value, their_value, advice


def _group_differences(ours: KVGeometry, theirs: KVGeometry, index: int) -> Iterator[_Difference]:
    our_group, their_group = ours.groups[index], theirs.groups[index]
    if ours.pp_size == theirs.pp_size == 1:
        yield from _layer_differences(our_group, their_group)
    if ours.table_of(index) != theirs.table_of(index):
        yield "list of block ids", ours.table_of(index), theirs.table_of(index), _SAME_MODEL
    if not our_group.layer_names or not their_group.layer_names:
        return  # a stage without layers of this group
    for field in ("kind", "window", "head_dim"):
        our_value, their_value = getattr(our_group, field), getattr(their_group, field)
        if our_value != their_value:
            yield field, our_value, their_value, _SAME_MODEL
    if our_group.kind == STATE:
        yield from _state_differences(ours, theirs, index)
        return
    our_heads, their_heads = ours.total_heads_of(index), theirs.total_heads_of(index)
    if our_heads != their_heads:
        yield "kv_heads", our_heads, their_heads, _SAME_MODEL
    yield from _scale_differences(ours, our_group, their_group)
    if "OPAQUE" in (our_group.layout, their_group.layout):
        yield from _opaque_differences(ours, theirs, index)
    else:
        yield from _known_differences(ours, theirs, index)


def _layer_differences(ours: KVGroup, theirs: KVGroup) -> Iterator[_Difference]:
    if len(ours.layer_names) != len(theirs.layer_names):
        advice = f"{_SAME_MODEL} and the same speculative settings"
        yield "number of layers", len(ours.layer_names), len(theirs.layer_names), advice
    for our_name, their_name in zip(ours.layer_names, theirs.layer_names, strict=False):
        if our_name != their_name:
            yield "layer name", our_name, their_name, _SAME_MODEL


def _scale_differences(ours: KVGeometry, our_group: KVGroup, their_group: KVGroup) -> Iterator[_Difference]:
    """Of quantised caches: the numbers mean nothing under other scales than they were written with."""
    if ours.dtype in _PLAIN_DTYPES:
        return
    theirs = {name: their_group.scale_of(index) for index, name in enumerate(their_group.layer_names)}
    for index, name in enumerate(our_group.layer_names):
        our_scale, their_scale = our_group.scale_of(index), theirs.get(name, "")
        if name in theirs and (our_scale != their_scale or not our_scale):
            yield (
                f"quantisation scales of layer {name}",
                our_scale or "unknown",
                their_scale or "unknown",
                "use scales from the model's files, or a KV cache dtype that needs none",
            )


def _known_differences(ours: KVGeometry, theirs: KVGeometry, index: int) -> Iterator[_Difference]:
    our_group, their_group = ours.groups[index], theirs.groups[index]
    our_tokens, their_tokens = ours.tokens_of(index), theirs.tokens_of(index)
    if our_group.window and our_tokens != their_tokens:
        yield "block_size", our_tokens, their_tokens, "blocks of a sliding window must be equal on both sides"
    if our_group.planes != their_group.planes:
        yield "kv_split", our_group.kv_split, their_group.kv_split, _SAME_MODEL
    if (our_group.layout == "HND_KT") != (their_group.layout == "HND_KT"):
        yield "layout", our_group.layout, their_group.layout, "a transposed K cannot be moved in rows"
    our_item, their_item = strides_of(our_group, our_tokens).item, strides_of(their_group, their_tokens).item
    if our_item != their_item:
        yield "bytes per element", our_item, their_item, _SAME_DTYPE


def _opaque_differences(ours: KVGeometry, theirs: KVGeometry, index: int) -> Iterator[_Difference]:
    our_group, their_group = ours.groups[index], theirs.groups[index]
    advice = "opaque blocks can only be copied whole: use the same engine, options and hardware"
    our_tokens, their_tokens = ours.tokens_of(index), theirs.tokens_of(index)
    if our_tokens != their_tokens:
        yield "block_size", our_tokens, their_tokens, f"set the same block size on both sides, since {advice}"
    total = ours.total_heads_of(index)
    our_heads = held_heads(total, ours.tp_rank, ours.tp_size)
    their_heads = held_heads(total, theirs.tp_rank, theirs.tp_size)
    if len(our_heads) != len(their_heads):
        yield "tp_size", ours.tp_size, theirs.tp_size, f"set the same size on both sides, since {advice}"
    for field in ("layout", "kv_split", "opaque_tag", "block_bytes"):
        our_value, their_value = getattr(our_group, field), getattr(their_group, field)
        if our_value != their_value:
            yield field, our_value, their_value, advice


def _state_differences(ours: KVGeometry, theirs: KVGeometry, index: int) -> Iterator[_Difference]:
    advice = "a recurrent state cannot be cut: use equal sizes on both sides"
    shards = max(ours.total_heads_of(index), theirs.total_heads_of(index))
    if shards > 1 and ours.tp_size != theirs.tp_size:
        yield "tp_size", ours.tp_size, theirs.tp_size, advice
    yield from _opaque_differences(ours, theirs, index)
