from __future__ import annotations

import itertools

import numpy as np
import pytest

from _ranks import FORMS, NUM_BLOCKS, VLLM_ORDERS, Engine, Setup, Shape, transfer
from kvferry.errors import GeometryMismatchError, InvalidArgumentError, OutOfRangeError
from kvferry.layout import check_compatible, sources_of
from kvferry.layout.ranks import read_heads

TOKENS = 96
TP = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 4), (8, 2), (2, 8)]
PP = [
    ((0,), (0,)),
    ((0, 2), (0,)),
    ((0,), (0, 2)),
    ((0, 2), (0, 1)),
    ((0, 1, 2, 3), (0, 2)),
    ((0, 3), (0, 3)),
]
SIZES = [(16, 16), (16, 32), (32, 16), (24, 16), (48, 32), (96, 16)]
FULL = Shape("full", 4, 4)
MODELS = {
    "one head": (Shape("full", 4, 1),),
    "two heads": (Shape("full", 4, 2),),
    "eight heads": (Shape("full", 4, 8),),
    "latent": (Shape("mla", 4, 1, "latent"),),
    "latent beside heads": (FULL, Shape("index", 2, 1, "latent", table=0)),
    "draft layers": (FULL, Shape("draft", 1, 2)),
}


def lists(engine: Engine, seed: int, window_from: int = 0) -> list[np.ndarray]:
    """Block ids of each list, shuffled, never the null block 0; of window groups only the trailing ones."""
    rng = np.random.default_rng(seed)
    geometry = engine.ranks[0].geometry
    found = []
    for table in range(geometry.tables):
        group = next(i for i in range(len(engine.shapes)) if geometry.table_of(i) == table)
        size = geometry.tokens_of(group)
        ids = rng.permutation(np.arange(1, NUM_BLOCKS))[: -(-TOKENS // size)]
        if engine.shapes[group].kind in ("window", "state"):
            ids[: window_from // size] = 0
        found.append(ids)
    return found


def check(
    shapes: tuple[Shape, ...], ours: Setup, theirs: Setup, *, first: int = 0, tokens: int = TOKENS
) -> None:
    near, far = Engine(shapes, ours), Engine(shapes, theirs)
    blocks = lists(near, 1, TOKENS - 40), lists(far, 2, TOKENS - 48)
    far.write(blocks[1], tokens)
    assert transfer(near, far, blocks, first, tokens)
    written = 0
    for rank, name, where, values in near.cells(blocks[0], tokens):
        got = near.read(rank, name, where)
        here = (
            len(values)
            if "state" in name
            else int(np.sum(_positions(rank, name, blocks[0], tokens) >= first))
        )
        np.testing.assert_array_equal(got[len(values) - here :], values[len(values) - here :], err_msg=name)
        untouched = got[: len(values) - here].view(np.uint8)
        assert (untouched == 0xEE).all(), name
        written += got[len(values) - here :].nbytes
    changed = sum(int((flat != 0xEE).sum()) for rank in near.ranks for flat in rank.memory.values())
    assert changed <= written, "nothing beyond the tokens is written"


def _positions(rank, name: str, blocks: list[np.ndarray], tokens: int) -> np.ndarray:
    group = next(i for i, one in enumerate(rank.geometry.groups) if name in one.layer_names)
    size = rank.geometry.tokens_of(group)
    ids = blocks[rank.geometry.table_of(group)]
    at = np.arange(tokens)
    return at[ids[at // size] != 0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("ours", "theirs"), TP)
def test_every_element_arrives_between_all_sizes_of_parallelism(model, ours, theirs):
    for index, (near_cuts, far_cuts) in enumerate(PP):
        near_size, far_size = SIZES[index]
        check(
            MODELS[model],
            Setup(ours, near_cuts, near_size, FORMS[index]),
            Setup(theirs, far_cuts, far_size, FORMS[-1 - index]),
        )


@pytest.mark.parametrize("ours", FORMS)
def test_every_element_arrives_between_all_forms(ours):
    for index, theirs in enumerate(FORMS):
        near_size, far_size = SIZES[index % len(SIZES)]
        near_tp, far_tp = TP[index % 7]
        check((FULL,), Setup(near_tp, (0,), near_size, ours), Setup(far_tp, (0,), far_size, theirs))


@pytest.mark.parametrize(("ours", "theirs"), TP)
def test_every_element_arrives_with_a_transposed_key(ours, theirs):
    for (near_size, far_size), dtype in itertools.product(SIZES, ("float32", "bfloat16", "fp8_e4m3")):
        check(
            MODELS["eight heads"],
            Setup(ours, (0,), near_size, "KT", dtype),
            Setup(theirs, (0,), far_size, "KT", dtype),
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3"])
@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product(VLLM_ORDERS, repeat=2)))
def test_every_element_arrives_in_narrow_types(dtype, ours, theirs):
    check((FULL,), Setup(2, (0, 2), 16, ours, dtype), Setup(4, (0,), 32, theirs, dtype))


@pytest.mark.parametrize(("ours", "theirs"), TP)
def test_only_the_blocks_of_a_sliding_window_are_moved(ours, theirs):
    shapes = (FULL, Shape("slide", 4, 4, "window", window=32))
    for form in ("LBNHC", "BLHNC", "KT"):
        check(shapes, Setup(ours, (0,), 16, form), Setup(theirs, (0,), 16, form))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_states_are_moved_whole_between_equal_ranks(tp):
    shapes = (FULL, Shape("state", 4, 0, "state"))
    check(shapes, Setup(tp, (0, 2), 16), Setup(tp, (0,), 32))
    check(shapes, Setup(tp), Setup(tp), first=32, tokens=64)


@pytest.mark.parametrize(("first", "tokens"), [(0, 1), (16, 17), (16, 96), (17, 80), (48, 49)])
def test_exactly_the_token_range_is_moved(first, tokens):
    for form in FORMS:
        check((FULL,), Setup(2, (0,), 16, form), Setup(1, (0,), 48, "LBHNC"), first=first, tokens=tokens)


def test_groups_that_share_memory_keep_to_their_own_blocks():
    """vLLM overlays the layers of hybrid groups: one region, told apart by block ids only."""
    shapes = (Shape("full", 2, 2), Shape("slide", 2, 2, "window", window=96))
    near, far = Engine(shapes, Setup(2, form="BLHNC")), Engine(shapes, Setup(1, form="BLHNC"))
    for engine in (near, far):
        for rank in engine.ranks:
            rank.views["slide.0"], rank.views["slide.1"] = rank.views["full.0"], rank.views["full.1"]
            rank.memory["slide"] = rank.memory["full"]
    blocks = [], []
    for ids, order in zip(blocks, (1, -1), strict=True):
        every = np.arange(1, 13)[::order]
        ids.extend([every[:6], every[6:]])
    far.write(blocks[1], TOKENS)
    transfer(near, far, blocks, 0, TOKENS)
    for rank, name, where, values in near.cells(blocks[0], TOKENS):
        np.testing.assert_array_equal(near.read(rank, name, where), values)


def test_a_block_that_the_other_side_gave_up_is_named():
    shapes = (FULL, Shape("slide", 4, 4, "window", window=32))
    near, far = Engine(shapes, Setup()), Engine(shapes, Setup())
    with pytest.raises(OutOfRangeError, match="remote side no longer has the block of token 32"):
        transfer(near, far, (lists(near, 1, 32), lists(far, 2, 64)), 0, TOKENS)


@pytest.mark.parametrize(
    ("shapes", "ours", "theirs", "sentence"),
    [
        ((Shape("s", 4, 0, "state"),), Setup(1), Setup(2), "tp_size: ours 1, theirs 2"),
        ((Shape("w", 4, 4, "window", 32),), Setup(), Setup(block_size=32), "block_size: ours 16, theirs 32"),
        ((FULL,), Setup(form="KT"), Setup(), "layout: ours HND_KT, theirs NHD"),
        ((FULL,), Setup(), Setup(dtype="bfloat16"), "dtype: ours float32, theirs bfloat16"),
    ],
)
def test_pairs_that_cannot_be_mapped_are_refused(shapes, ours, theirs, sentence):
    near, far = Engine(shapes, ours).ranks[0].geometry, Engine(shapes, theirs).ranks[0].geometry
    with pytest.raises(GeometryMismatchError) as caught:
        check_compatible(near, far)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product([1, 2, 4, 8, 16], repeat=2)))
@pytest.mark.parametrize("total", [1, 2, 8])
def test_each_head_is_read_once_and_each_holder_knows_its_readers(total, ours, theirs):
    for reader in range(ours):
        parts = [read_heads(total, (reader, ours), (holder, theirs)) for holder in range(theirs)]
        wanted = max(1, total // ours)
        assert sorted(head for part in parts for head in part) == list(
            range(reader * total // ours, reader * total // ours + wanted)
        )
    geometries = [
        Engine((Shape("full", 4, total),), Setup(ours, (0, 2))).ranks[i].geometry for i in range(2 * ours)
    ]
    told: dict[int, list[tuple[int, int]]] = {}
    for geometry in geometries:
        for source in sources_of(geometry, theirs, 3):
            told.setdefault(source.rank, []).append((source.reader, source.readers))
    assert sorted(told) == list(range(3 * theirs))
    for readers in told.values():
        assert sorted(readers) == [(i, len(readers)) for i in range(len(readers))]


def test_copies_of_a_head_are_read_by_different_ranks():
    """Four ranks hold one latent cache each: four readers read from one each."""
    for reader in range(4):
        geometry = Engine((Shape("mla", 2, 1, "latent"),), Setup(4)).ranks[reader].geometry
        assert [source.rank for source in sources_of(geometry, 4, 1) if source.reads] == [reader]


def test_heads_that_cannot_be_spread_are_refused():
    geometry = Engine((Shape("full", 2, 8),), Setup(2)).ranks[0].geometry
    with pytest.raises(InvalidArgumentError, match="8 KV heads cannot be spread over 3"):
        sources_of(geometry, 3, 1)
