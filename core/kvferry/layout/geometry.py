"""The description of one engine rank's KV cache, and its encoding.

Vocabulary: a *group* is a set of layers that share block ids (engines with hybrid attention have several).
Each layer lies in a memory region, in which its block `b` starts at `offset + b * stride`; layers may lie
side by side in one region. Inside a block lie K and V rows of `head_dim` elements, one for each (token,
head); some CPU kernels keep K transposed.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from kvferry.errors import InvalidArgumentError, ProtocolError

MAX_ENCODED_BYTES = 64 * 1024  # what a peer's metadata may be at most
STATE = "state"  # the kind of a group that holds recurrent states

Layout = Literal["NHD", "HND", "HND_KT", "OPAQUE"]
KVSplit = Literal["KV_OUTER", "KV_INNER", "KV_HEAD", "FUSED", "LATENT"]

_Name = Annotated[str, Meta(max_length=255)]
_Positive = Annotated[int, Meta(ge=1, le=2**40)]
_Size = Annotated[int, Meta(ge=0, le=2**40)]
_Rank = Annotated[int, Meta(ge=0, le=2**20)]


class KVGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layers of one rank that share block ids and look the same, and what one of their blocks looks like.

    `layout` is the order inside a block: "NHD" token-major, "HND" head-major, "HND_KT" head-major with K
    stored [head_dim, token] (vLLM's CPU attention), "OPAQUE" known to the engine alone (then only whole,
    equal blocks may be copied). `kv_split` says where K and V lie: "KV_OUTER" all blocks' K before all
    blocks' V; "KV_INNER" K before V in each block; "KV_HEAD" K before V in each (block, head), with "HND"
    and "HND_KT" only; "FUSED" each (token, head) row is K followed by V; "LATENT" one plane only (MLA). With
    "OPAQUE" the split must be "FUSED" or "LATENT": a block is one run of `block_bytes`. `block_bytes` is the
    size of one block of one layer, K and V together, without what lies between it and the next. `opaque_tag`
    names what wrote an opaque block (for example kernel and instruction set): both sides must have the same.

    `kv_heads` are this rank's; `total_kv_heads` the whole model's, spread over the tensor-parallel ranks in
    order, or held by several ranks each when there are more ranks than heads; 0 stands for `kv_heads` times
    ranks. `kind` "state" means a recurrent state: opaque, one block stands for all tokens before its end.
    `window` is how many trailing tokens a sliding-window group needs, 0 all; `null_block` is the id that
    stands for "no block" in its lists, -1 if the engine has none.

    The rest is where blocks lie. `block_size` in tokens, 0 for the geometry's; `block_stride` bytes from one
    block to the next, 0 for `block_bytes`; `head_stride` bytes from head to head of "HND" blocks, 0 when they
    are packed; `regions` the region's name and `offsets` the first block's byte offset of each layer, empty
    when each layer is a region of its own name. `table` is the index of the list of block ids that it uses,
    -1 for its own index. `scales` are the quantisation scales of the layers, or one text for all; empty is
    unknown, which only caches without quantisation may be.
    """

    layer_names: Annotated[tuple[_Name, ...], Meta(max_length=4096)]
    kv_heads: _Positive
    head_dim: _Positive
    block_bytes: _Positive
    num_blocks: _Positive
    layout: Layout = "OPAQUE"
    kv_split: KVSplit = "FUSED"
    kind: _Name = "full"
    opaque_tag: _Name = ""
    total_kv_heads: _Size = 0
    window: _Size = 0
    null_block: Annotated[int, Meta(ge=-1, le=2**40)] = -1
    block_size: _Size = 0
    block_stride: _Size = 0
    head_stride: _Size = 0
    regions: Annotated[tuple[_Name, ...], Meta(max_length=4096)] = ()
    offsets: Annotated[tuple[_Size, ...], Meta(max_length=4096)] = ()
    table: Annotated[int, Meta(ge=-1, le=63)] = -1
    scales: Annotated[tuple[_Name, ...], Meta(max_length=4096)] = ()

    @property
    def planes(self) -> int:
        """2 when K and V are told apart, 1 for a latent cache."""
        return 1 if self.kv_split == "LATENT" else 2

    @property
    def region_names(self) -> tuple[str, ...]:
        """The region that each layer lies in."""
        return self.regions or self.layer_names

    def scale_of(self, layer: int) -> str:
        """The quantisation scales of a layer by its index; empty if unknown."""
        return (self.scales[layer] if len(self.scales) > 1 else self.scales[0]) if self.scales else ""


class KVGeometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine rank's KV cache. Immutable; sizes in bytes unless named otherwise.

    Raises `InvalidArgumentError` when a group contradicts itself (its `block_bytes` does not follow from its
    other fields, its heads cannot be spread over the ranks), when a layer name appears twice, or when a rank
    is outside its size.
    """

    model: _Name
    dtype: _Name
    block_size: _Positive  # tokens, of the groups that do not say otherwise
    groups: Annotated[tuple[KVGroup, ...], Meta(min_length=1, max_length=64)]
    revision: _Name = ""
    draft: _Name = ""  # what guesses ahead, if it has layers in the cache
    tp_rank: _Rank = 0
    tp_size: _Positive = 1
    pp_rank: _Rank = 0
    pp_size: _Positive = 1

    def __post_init__(self) -> None:
        if self.tp_rank >= self.tp_size or self.pp_rank >= self.pp_size:
            raise InvalidArgumentError(
                f"rank outside its size: tp {self.tp_rank} of {self.tp_size}, "
                f"pp {self.pp_rank} of {self.pp_size}"
            )
        names = [name for group in self.groups for name in group.layer_names]
        if len(set(names)) != len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise InvalidArgumentError(f"layer {twice!r} is listed twice in the KV geometry")
        if not names and self.pp_size == 1:
            raise InvalidArgumentError("the KV geometry has no layers")
        for index, group in enumerate(self.groups):
            check_group(group, self.tp_size, self.tokens_of(index))

    def tokens_of(self, group: int) -> int:
        """How many tokens a block of a group holds."""
        return self.groups[group].block_size or self.block_size

    def table_of(self, group: int) -> int:
        """Which list of block ids a group uses."""
        table = self.groups[group].table
        return group if table < 0 else table

    def total_heads_of(self, group: int) -> int:
        """How many KV heads all ranks together hold of a group, copies not counted."""
        return self.groups[group].total_kv_heads or self.groups[group].kv_heads * self.tp_size

    @property
    def tables(self) -> int:
        """How many lists of block ids a request has."""
        return 1 + max(self.table_of(index) for index in range(len(self.groups)))

    def describe_table(self, table: int) -> str:
        """Return what the bytes of a block are, all layers that use a list of block ids together, whatever
        place they have in memory."""
        groups = [
            msgspec.structs.replace(
                group, num_blocks=1, regions=(), offsets=(), block_stride=0, head_stride=0
            )
            for index, group in enumerate(self.groups)
            if self.table_of(index) == table
        ]
        stages = f", stage {self.pp_rank} of {self.pp_size}" if self.pp_size > 1 else ""
        return f"{groups!r} of {self.block_size} tokens{stages}"

    def encode(self) -> bytes:
        """Return the msgpack form that peers exchange. `InvalidArgumentError` above `MAX_ENCODED_BYTES`."""
        encoded = msgspec.msgpack.encode(self)
        if len(encoded) > MAX_ENCODED_BYTES:
            raise InvalidArgumentError(
                f"KV geometry takes {len(encoded)} bytes encoded, a peer accepts {MAX_ENCODED_BYTES}"
            )
        return encoded

    @staticmethod
    def decode(data: bytes) -> KVGeometry:
        """Return the geometry that a peer sent. `ProtocolError` if too long, malformed or inconsistent."""
        if len(data) > MAX_ENCODED_BYTES:
            raise ProtocolError(f"KV geometry of {len(data)} bytes is longer than {MAX_ENCODED_BYTES}")
        try:
            return msgspec.msgpack.decode(data, type=KVGeometry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the peer's metadata is not a KV geometry: {error}") from error


class Plane(NamedTuple):
    """Where K or V (or the one latent plane) lies: byte offset of its first element and byte steps."""

    base: int
    head: int
    token: int
    dim: int


class Strides(NamedTuple):
    """Byte distances inside one layer. `item` is the smallest unit that is never cut; `packed`: a block is
    one run of memory."""

    block: int
    item: int
    planes: tuple[Plane, ...]
    packed: bool = True


def check_group(group: KVGroup, tp_size: int, tokens: int) -> None:
    """Raise `InvalidArgumentError` if a group contradicts itself."""
    for field, values in (("regions", group.regions), ("offsets", group.offsets)):
        if values and len(values) != len(group.layer_names):
            raise InvalidArgumentError(f"{len(values)} {field} for {len(group.layer_names)} layers")
    if len(group.scales) > 1 and len(group.scales) != len(group.layer_names):
        raise InvalidArgumentError(f"{len(group.scales)} scales for {len(group.layer_names)} layers")
    if group.kind == STATE and group.layout != "OPAQUE":
        raise InvalidArgumentError(
            f"a state is copied whole, so its layout must be OPAQUE, not {group.layout}"
        )
    total = group.total_kv_heads
    held = total // tp_size if total >= tp_size else 1
    if total and (max(total, tp_size) % min(total, tp_size) or group.kv_heads != held):
        raise InvalidArgumentError(
            f"{total} KV heads over {tp_size} tensor-parallel ranks do not give a rank {group.kv_heads}"
        )
    strides_of(group, tokens)


def strides_of(group: KVGroup, block_size: int) -> Strides:
    """Return the byte strides of a group's layers, whose blocks hold `block_size` tokens.

    An opaque block counts as one item of `block_bytes`. Raises `InvalidArgumentError` when `block_bytes` is
    not a whole number of bytes per element times the block's shape, or layout, split and strides contradict.
    """
    _check_split(group)
    stride = group.block_stride or group.block_bytes
    if group.layout == "OPAQUE":
        return Strides(stride, group.block_bytes, (Plane(0, 0, 0, 0),))
    elements = group.planes * block_size * group.kv_heads * group.head_dim
    item, rest = divmod(group.block_bytes, elements)
    if rest or item == 0:
        raise InvalidArgumentError(
            f"block_bytes {group.block_bytes} is no multiple of {elements} elements ({group.planes} planes x "
            f"{block_size} tokens x {group.kv_heads} heads x {group.head_dim}); "
            "use OPAQUE if blocks are padded"
        )
    per_head = group.block_bytes // group.kv_heads
    return Strides(
        group.block_bytes // group.planes if group.kv_split == "KV_OUTER" else stride,
        item,
        _planes(group, block_size, item),
        packed=group.head_stride in (0, per_head) and group.kv_split != "KV_OUTER",
    )


def _check_split(group: KVGroup) -> None:
    layout, split = group.layout, group.kv_split
    if layout == "OPAQUE" and split not in ("FUSED", "LATENT"):
        raise InvalidArgumentError(
            f"an OPAQUE block is one run, so kv_split must be FUSED or LATENT, not {split}"
        )
    if split == "KV_HEAD" and layout == "NHD":
        raise InvalidArgumentError("kv_split KV_HEAD needs a head-major layout (HND or HND_KT), not NHD")
    if layout == "HND_KT" and split != "KV_HEAD":
        raise InvalidArgumentError(f"layout HND_KT needs kv_split KV_HEAD, not {split}")
    if group.block_stride and split == "KV_OUTER":
        raise InvalidArgumentError("kv_split KV_OUTER has no block_stride: K and V blocks lie apart")
    if group.head_stride and (layout not in ("HND", "HND_KT") or split in ("KV_INNER", "KV_OUTER")):
        raise InvalidArgumentError(f"layout {layout} with kv_split {split} has no head_stride")


def _planes(group: KVGroup, block_size: int, item: int) -> tuple[Plane, ...]:
    row = group.head_dim * item
    if group.kv_split == "KV_HEAD":
        area = block_size * row  # K or V of one (block, head)
        head = group.head_stride or 2 * area
        key = (item, block_size * item) if group.layout == "HND_KT" else (row, item)
        return Plane(0, head, *key), Plane(area, head, row, item)
    step = 2 * row if group.kv_split == "FUSED" else row  # from one (token, head) to the next inner one
    if group.layout == "NHD":
        head, token = step, group.kv_heads * step
    else:
        head, token = group.head_stride or block_size * step, step
    plane_bytes = group.kv_heads * block_size * row
    value = {"KV_OUTER": group.num_blocks * plane_bytes, "KV_INNER": plane_bytes, "FUSED": row}
    bases = (0,) if group.kv_split == "LATENT" else (0, value[group.kv_split])
    return tuple(Plane(base, head, token, item) for base in bases)
