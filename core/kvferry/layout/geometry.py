"""The description of one engine rank's KV cache, and its encoding.

Vocabulary: a *group* is a set of layers that share block ids (engines with hybrid attention have several).
Each layer of a group is one memory region, in which block `b` starts at `b * stride`. Inside a block lie K
and V rows of `head_dim` elements, one for each (token, head); some CPU kernels keep K transposed.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from kvferry.errors import InvalidArgumentError, ProtocolError

MAX_ENCODED_BYTES = 64 * 1024  # what a peer's metadata may be at most

Layout = Literal["NHD", "HND", "HND_KT", "OPAQUE"]
KVSplit = Literal["KV_OUTER", "KV_INNER", "KV_HEAD", "FUSED", "LATENT"]

_Name = Annotated[str, Meta(max_length=255)]
_Positive = Annotated[int, Meta(ge=1, le=2**40)]
_Rank = Annotated[int, Meta(ge=0, le=2**20)]


class KVGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layers that share block ids, and what one block of each of them looks like.

    `layout` is the order inside a block: "NHD" token-major, "HND" head-major, "HND_KT" head-major with K
    stored [head_dim, token] (vLLM's CPU attention), "OPAQUE" known to the engine alone (then only whole,
    equal blocks may be copied). `kv_split` says where K and V lie: "KV_OUTER" all blocks' K before all
    blocks' V; "KV_INNER" K before V in each block; "KV_HEAD" K before V in each (block, head), with "HND"
    and "HND_KT" only; "FUSED" each (token, head) row is K followed by V; "LATENT" one plane only (MLA). With
    "OPAQUE" the split must be "FUSED" or "LATENT": a block is one run of `block_bytes`. `block_bytes` is the
    size of one block of one layer, K and V together. `opaque_tag` names what wrote an opaque block (for
    example kernel and instruction set): both sides must have the same.
    """

    layer_names: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=4096)]
    kv_heads: _Positive
    head_dim: _Positive
    block_bytes: _Positive
    num_blocks: _Positive
    layout: Layout = "OPAQUE"
    kv_split: KVSplit = "FUSED"
    kind: _Name = "full"
    opaque_tag: _Name = ""

    @property
    def planes(self) -> int:
        """2 when K and V are told apart, 1 for a latent cache."""
        return 1 if self.kv_split == "LATENT" else 2


class KVGeometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine rank's KV cache. Immutable; sizes in bytes unless named otherwise.

    Raises `InvalidArgumentError` when a group's `block_bytes` does not follow from its other fields, when a
    layer name appears twice, or when a rank is outside its size.
    """

    model: _Name
    dtype: _Name
    block_size: _Positive  # tokens
    groups: Annotated[tuple[KVGroup, ...], Meta(min_length=1, max_length=64)]
    revision: _Name = ""
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
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgumentError(f"layer {twice!r} is listed twice in the KV geometry")
        for group in self.groups:
            strides_of(group, self.block_size)

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
    """Byte distances inside one layer's region. `item` is the smallest unit that is never cut."""

    block: int
    item: int
    planes: tuple[Plane, ...]


def strides_of(group: KVGroup, block_size: int) -> Strides:
    """Return the byte strides of a group's layers.

    An opaque block counts as one item of `block_bytes`. Raises `InvalidArgumentError` when `block_bytes` is
    not a whole number of bytes per element times the block's shape, or layout and split contradict.
    """
    if group.layout == "OPAQUE":
        if group.kv_split not in ("FUSED", "LATENT"):
            raise InvalidArgumentError(
                f"an OPAQUE block is one run, so kv_split must be FUSED or LATENT, not {group.kv_split}"
            )
        return Strides(group.block_bytes, group.block_bytes, (Plane(0, 0, 0, 0),))
    if group.kv_split == "KV_HEAD" and group.layout == "NHD":
        raise InvalidArgumentError("kv_split KV_HEAD needs a head-major layout (HND or HND_KT), not NHD")
    if group.kv_split != "KV_HEAD" and group.layout == "HND_KT":
        raise InvalidArgumentError(f"layout HND_KT needs kv_split KV_HEAD, not {group.kv_split}")
    elements = group.planes * block_size * group.kv_heads * group.head_dim
    item, rest = divmod(group.block_bytes, elements)
    if rest or item == 0:
        raise InvalidArgumentError(
            f"block_bytes {group.block_bytes} is no multiple of {elements} elements ({group.planes} planes x "
            f"{block_size} tokens x {group.kv_heads} heads x {group.head_dim}); "
            "use OPAQUE if blocks are padded"
        )
    return Strides(
        group.block_bytes // group.planes if group.kv_split == "KV_OUTER" else group.block_bytes,
        item,
        _planes(group, block_size, item),
    )


def _planes(group: KVGroup, block_size: int, item: int) -> tuple[Plane, ...]:
    row = group.head_dim * item
    if group.kv_split == "KV_HEAD":
        area = block_size * row  # K or V of one (block, head)
        key = (item, block_size * item) if group.layout == "HND_KT" else (row, item)
        return Plane(0, 2 * area, *key), Plane(area, 2 * area, row, item)
    step = 2 * row if group.kv_split == "FUSED" else row  # from one (token, head) to the next inner one
    head, token = (step, group.kv_heads * step) if group.layout == "NHD" else (block_size * step, step)
    plane_bytes = group.kv_heads * block_size * row
    value = {"KV_OUTER": group.num_blocks * plane_bytes, "KV_INNER": plane_bytes, "FUSED": row}
    bases = (0,) if group.kv_split == "LATENT" else (0, value[group.kv_split])
    return tuple(Plane(base, head, token, item) for base in bases)
