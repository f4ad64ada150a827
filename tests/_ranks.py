"""Whole engines for tests of the mapping between ranks: every element of their caches says where it belongs.

Memory is laid out here by numpy's reshape and transpose, without the package's own arithmetic of strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvferry.layout import KVGeometry, KVGroup, map_blocks, sources_of

HEAD_DIM = 4
NUM_BLOCKS = 24
UNTOUCHED = 0xEE
CARRIER = {"float32": np.uint32, "bfloat16": np.uint16, "fp8_e4m3": np.uint8}
# Orders of [layer, block, head, token, content], as vLLM names its layouts, and other engines' forms.
VLLM_ORDERS = ("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC")
FORMS = (*VLLM_ORDERS, "INNER_NHD", "INNER_HND", "OUTER_NHD", "OUTER_HND", "PER_HEAD")


class Shape(NamedTuple):
    """What a group of a model is, whatever engine runs it. `heads` 0: a state of 24 numbers per head."""

    name: str
    layers: int
    heads: int
    kind: str = "full"  # full, window, latent, state
    window: int = 0
    table: int = -1


class Setup(NamedTuple):
    """How an engine runs a model."""

    tp: int = 1
    cuts: tuple[int, ...] = (0,)  # first layer of each pipeline stage, as a share of 4
    block_size: int = 16
    form: str = "LBNHC"
    dtype: str = "float32"

    @property
    def pp(self) -> int:
        return len(self.cuts)


class Rank:
    """One rank: its geometry, its memory by region name, and views of it by layer name."""

    def __init__(self, shapes: tuple[Shape, ...], setup: Setup, tp_rank: int, pp_rank: int) -> None:
        self.setup, self.tp_rank, self.pp_rank = setup, tp_rank, pp_rank
        self.memory: dict[str, np.ndarray] = {}
        self.views: dict[str, np.ndarray | list[np.ndarray]] = {}
        self.geometry = KVGeometry(
            model="grid",
            dtype=setup.dtype,
            block_size=setup.block_size,
            groups=tuple(self._group(shape) for shape in shapes),
            tp_rank=tp_rank,
            tp_size=setup.tp,
            pp_rank=pp_rank,
            pp_size=setup.pp,
        )

    def heads(self, shape: Shape) -> range:
        """The model's heads that this rank holds."""
        total = max(1, shape.heads)
        each = max(1, total // self.setup.tp)
        first = self.tp_rank * each if total >= self.setup.tp else self.tp_rank // (self.setup.tp // total)
        return range(first, first + each)

    def names(self, shape: Shape) -> list[str]:
        edges = [share * shape.layers // 4 for share in (*self.setup.cuts, 4)]
        return [f"{shape.name}.{i}" for i in range(edges[self.pp_rank], edges[self.pp_rank + 1])]

    def _group(self, shape: Shape) -> KVGroup:
        names, heads = self.names(shape), len(self.heads(shape))
        form = {"state": "STATE", "latent": "LATENT"}.get(shape.kind, self.setup.form)
        tokens = 64 if shape.kind == "state" else self.setup.block_size
        sizes = {"L": max(1, len(names)), "B": NUM_BLOCKS, "H": heads, "N": tokens, "D": HEAD_DIM}
        planes = 1 if shape.kind in ("state", "latent") else 2
        item = np.dtype(CARRIER[self.setup.dtype]).itemsize
        block = 24 * item if shape.kind == "state" else planes * heads * tokens * HEAD_DIM * item
        where = self._lay_out(shape.name, names, form, sizes, item, block)
        return KVGroup(
            layer_names=tuple(names),
            kv_heads=heads,
            head_dim=HEAD_DIM,
            block_bytes=block,
            num_blocks=NUM_BLOCKS,
            kind="state" if shape.kind == "state" else "attention",
            total_kv_heads=self.setup.tp if shape.kind == "state" else shape.heads,
            window=shape.window,
            null_block=0,
            block_size=tokens if shape.kind == "state" else 0,
            table=shape.table,
            scales=("0.5/0.25",) if self.setup.dtype == "fp8_e4m3" else (),
            **where,
        )

    def _lay_out(self, name: str, names: list[str], form: str, sizes: dict, item: int, block: int) -> dict:
        """Allocate the layers; what of it the geometry must say."""
        each = NUM_BLOCKS * block
        flat = np.full(sizes["L"] * each, UNTOUCHED, dtype=np.uint8)
        views, how = _views(flat.view(CARRIER[self.setup.dtype]), form, sizes)
        self.views.update(zip(names, views, strict=False))
        if form[0] == "B":  # layers side by side: one region
            self.memory[name] = flat
            step = how.pop("layer_step") * item
            how["regions"] = (name,) * len(names)
            how["offsets"] = tuple(step * i for i in range(len(names)))
        else:
            how.pop("layer_step", None)
            for index, layer in enumerate(names):
                self.memory[layer] = flat[index * each : (index + 1) * each]
        for field in ("block_stride", "head_stride"):
            if field in how:
                how[field] *= item
        return how


def _views(items: np.ndarray, form: str, sizes: dict[str, int]) -> tuple[list, dict]:
    """Each layer as [block, plane, token, head, dim], or as a list of planes where they are stored apart."""
    layers, blocks, heads, tokens, dim = (sizes[axis] for axis in "LBHND")
    if form in VLLM_ORDERS:
        return _vllm_views(items, form, sizes)
    if form == "STATE":
        return list(items.reshape(layers, blocks, 1, 1, 1, -1)), {"layout": "OPAQUE"}
    if form == "LATENT":
        view = items.reshape(layers, blocks, 1, tokens, heads, dim)
        return list(view), {"layout": "NHD", "kv_split": "LATENT"}
    if form in ("KT", "PER_HEAD"):
        pair = items.reshape(layers, blocks, heads, 2, tokens * dim)
        value = pair.reshape(layers, blocks, heads, 2, tokens, dim)
        key = value[:, :, :, 0]
        if form == "KT":
            key = pair.reshape(layers, blocks, heads, 2, dim, tokens)[:, :, :, 0].swapaxes(-1, -2)
        planes = (key.transpose(0, 1, 3, 2, 4), value[:, :, :, 1].transpose(0, 1, 3, 2, 4))
        how = {"layout": "HND_KT" if form == "KT" else "HND", "kv_split": "KV_HEAD"}
        return [list(both) for both in zip(*planes, strict=True)], how
    place, layout = form.split("_")
    inner = {"NHD": (tokens, heads, dim), "HND": (heads, tokens, dim)}[layout]
    outer = {"OUTER": (2, blocks), "INNER": (blocks, 2)}[place]
    order = {"OUTER": [0, 2, 1], "INNER": [0, 1, 2]}[place] + {"NHD": [3, 4, 5], "HND": [4, 3, 5]}[layout]
    view = items.reshape(layers, *outer, *inner).transpose(order)
    return list(view), {"layout": layout, "kv_split": f"KV_{place}"}


def _vllm_views(items: np.ndarray, form: str, sizes: dict[str, int]) -> tuple[list, dict]:
    named = {**sizes, "C": 2 * sizes["D"]}
    array = items.reshape([named[axis] for axis in form])
    array = array.transpose([form.index(axis) for axis in "LBNHC"])
    steps = [step // items.itemsize for step in array.strides]
    how = {"layout": "NHD" if form.index("N") < form.index("H") else "HND", "kv_split": "FUSED"}
    how |= {"layer_step": steps[0], "block_stride": steps[1]}
    if how["layout"] == "HND":
        how["head_stride"] = steps[3]
    return list(_split(array, sizes["D"]).transpose(0, 1, 4, 2, 3, 5)), how


def _split(array: np.ndarray, dim: int) -> np.ndarray:
    """The last axis, which is contiguous, as [2, dim], without a copy."""
    shape, strides = (*array.shape[:4], 2, dim), (*array.strides[:4], dim * array.itemsize, array.itemsize)
    return np.lib.stride_tricks.as_strided(array, shape, strides)


class Engine:
    """All ranks of one engine."""

    def __init__(self, shapes: tuple[Shape, ...], setup: Setup) -> None:
        self.shapes, self.setup = shapes, setup
        self.ranks = [Rank(shapes, setup, tp, pp) for pp in range(setup.pp) for tp in range(setup.tp)]

    def cells(
        self, blocks: list[np.ndarray], num_tokens: int
    ) -> Iterator[tuple[Rank, str, tuple, np.ndarray]]:
        """Each rank's layers, with the index of each token's numbers in them and what they should be.

        Of window groups only the blocks that are not null, of states the last one.
        """
        for rank in self.ranks:
            for group, shape in enumerate(self.shapes):
                ids = blocks[rank.geometry.table_of(group)]
                size = rank.geometry.tokens_of(group)
                last = (num_tokens - 1) // size * size if shape.kind == "state" else 0
                at = np.arange(last, last + 1 if shape.kind == "state" else num_tokens)
                at = at[ids[at // size] != 0]
                for name in rank.names(shape):
                    where = (ids[at // size], np.zeros_like(at) if shape.kind == "state" else at % size)
                    yield rank, name, where, _expected(rank, shape, name, at)

    def write(self, blocks: list[np.ndarray], num_tokens: int) -> None:
        """Do the engine's work: write the numbers of all tokens."""
        for rank, name, (block, inside), values in self.cells(blocks, num_tokens):
            view = rank.views[name]
            for plane in range(values.shape[1]):
                part = view[plane] if isinstance(view, list) else view[:, plane]
                part[block, inside] = values[:, plane]

    def read(self, rank: Rank, name: str, where: tuple) -> np.ndarray:
        view = rank.views[name]
        planes = view if isinstance(view, list) else [view[:, plane] for plane in range(view.shape[1])]
        return np.stack([plane[where] for plane in planes], axis=1)


def _expected(rank: Rank, shape: Shape, name: str, tokens: np.ndarray) -> np.ndarray:
    """[token, plane, head, dim] that encode (layer, plane, token, head, dim), made injective by mixing."""
    carrier = CARRIER[rank.setup.dtype]
    planes, dims = (1, 24) if shape.kind == "state" else (1 if shape.kind == "latent" else 2, HEAD_DIM)
    heads = [rank.tp_rank] if shape.kind == "state" else list(rank.heads(shape))
    axes = np.ix_(tokens, np.arange(planes), np.array(heads), np.arange(dims))
    t, p, h, d = (axis.astype(np.uint64) for axis in axes)
    layer = sum(name.encode()) % 251
    code = (((layer * np.uint64(1031) + t) * 2 + p) * 64 + h) * 32 + d
    return ((code * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)).astype(carrier)


def transfer(ours: Engine, theirs: Engine, blocks: tuple[list, list], first: int, num_tokens: int) -> int:
    """What all ranks of `ours` do to load tokens [first, num_tokens); returns the number of pieces."""
    near, far = blocks
    count = 0
    for rank in ours.ranks:
        cut = [ids.copy() for ids in near]
        for group in range(len(ours.shapes)):
            table, size = rank.geometry.table_of(group), rank.geometry.tokens_of(group)
            cut[table] = near[table][first // size :]
        local = {name: i for i, name in enumerate(rank.memory)}
        for source in sources_of(rank.geometry, theirs.setup.tp, theirs.setup.pp):
            other = theirs.ranks[source.rank]
            remote = {name: i for i, name in enumerate(other.memory)}
            pieces = map_blocks(
                rank.geometry,
                other.geometry,
                cut,
                far,
                local_regions=local,
                remote_regions=remote,
                local_first_token=first,
                first_token=first,
                num_tokens=num_tokens - first,
            )
            assert source.reads or not len(pieces)
            _copy(pieces, list(rank.memory.values()), list(other.memory.values()))
            count += len(pieces)
    return count


def _copy(pieces: np.ndarray, near: list[np.ndarray], far: list[np.ndarray]) -> None:
    for here, there, to, origin, length in pieces.tolist():
        target = near[here][to : to + length]
        assert (target == UNTOUCHED).all() or length < 4, "an element is copied twice"
        target[:] = far[there][origin : origin + length]
