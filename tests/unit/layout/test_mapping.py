from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

import _kvgrid as kvgrid
from kvferry.errors import GeometryMismatchError, InvalidArgumentError, NotFoundError, OutOfRangeError
from kvferry.layout import KVGeometry, KVGroup, map_blocks

NAMES = {"layers.0": 1, "layers.1": 2}


def opaque(block_size: int = 32, num_blocks: int = 8, block_bytes: int = 1000, layers: int = 2) -> KVGeometry:
    names = tuple(f"layers.{i}" for i in range(layers))
    group = KVGroup(layer_names=names, kv_heads=3, head_dim=5, block_bytes=block_bytes, num_blocks=num_blocks)
    return KVGeometry(model="m", dtype="float32", block_size=block_size, groups=(group,))


def check_pair(ours: KVGeometry, theirs: KVGeometry, tokens: int, first_token: int = 0) -> None:
    rng = np.random.default_rng(7)
    covered = first_token + tokens
    local_blocks = rng.permutation(24)[: -(-covered // ours.block_size)]
    remote_blocks = rng.permutation(24)[: -(-covered // theirs.block_size)]
    local, remote = kvgrid.empty_cache(ours), kvgrid.empty_cache(theirs)
    untouched = kvgrid.empty_cache(ours)
    kvgrid.fill(theirs, remote, remote_blocks)
    pieces = map_blocks(
        ours, theirs, [local_blocks], [remote_blocks], local_regions=NAMES, remote_regions=NAMES,
        first_token=first_token, num_tokens=tokens,
    )  # fmt: skip
    assert pieces.dtype == np.uint64
    assert pieces.flags.c_contiguous
    kvgrid.copy_pieces(pieces, local, remote)
    wanted = np.arange(first_token, covered)
    for layer in range(2):
        got = kvgrid.gather(ours, local[layer], local_blocks)
        np.testing.assert_array_equal(got[wanted], kvgrid.expected(ours, layer, wanted))
        rest = np.delete(np.arange(len(got)), wanted)
        np.testing.assert_array_equal(got[rest], kvgrid.gather(ours, untouched[layer], local_blocks)[rest])


def test_map_blocks_moves_every_element_of_the_grid():
    for ours, theirs in kvgrid.grid():
        check_pair(ours, theirs, 128)


@pytest.mark.parametrize(
    ("ours", "theirs"), list(itertools.product(["KV_OUTER", "KV_INNER", "FUSED"], repeat=2))
)
def test_map_blocks_moves_k_and_v_between_all_places(ours, theirs):
    for layouts in itertools.product(["NHD", "HND"], repeat=2):
        check_pair(
            kvgrid.geometry(layouts[0], 32, 2, "bfloat16", kv_split=ours),
            kvgrid.geometry(layouts[1], 16, 2, "bfloat16", kv_split=theirs),
            96,
        )


@pytest.mark.parametrize(("first", "tokens"), [(0, 1), (5, 1), (16, 16), (17, 77), (0, 127), (63, 65)])
def test_map_blocks_moves_exactly_the_token_range(first, tokens):
    for layout in ("NHD", "HND"):
        check_pair(
            kvgrid.geometry("NHD", 64, 2, "float32"), kvgrid.geometry(layout, 16, 2, "float32"), tokens, first
        )


@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product([16, 32, 64], repeat=2)))
def test_map_blocks_moves_a_transposed_key_between_block_sizes(ours, theirs):
    for dtype in kvgrid.ITEM_BYTES:
        sides = [kvgrid.geometry("HND_KT", n, 3, dtype, kv_split="KV_HEAD") for n in (ours, theirs)]
        check_pair(*sides, 128)
        check_pair(*sides, 77, 17)


def test_map_blocks_moves_head_split_rows_to_and_from_other_layouts():
    for layout, split in itertools.product(["NHD", "HND"], ["KV_OUTER", "KV_INNER", "FUSED"]):
        per_head = kvgrid.geometry("HND", 32, 3, "bfloat16", kv_split="KV_HEAD")
        other = kvgrid.geometry(layout, 16, 3, "bfloat16", kv_split=split)
        check_pair(per_head, other, 96)
        check_pair(other, per_head, 96)


def test_map_blocks_joins_equal_transposed_blocks_into_one_run_each():
    same = kvgrid.geometry("HND_KT", 32, 3, "float32", kv_split="KV_HEAD")
    pieces = map_blocks(same, same, [[3, 9]], [[5, 1]], local_regions=NAMES, remote_regions=NAMES)
    assert pieces[:, 4].tolist() == [same.groups[0].block_bytes] * 4


def test_map_blocks_moves_latent_caches():
    latent = kvgrid.geometry("NHD", 16, 1, "bfloat16", kv_split="LATENT", head_dim=576)
    check_pair(latent, msgspec.structs.replace(latent), 40)


def test_map_blocks_joins_a_block_of_equal_layout_into_one_run():
    for layout in ("NHD", "HND"):
        for split, runs in (("KV_INNER", 1), ("FUSED", 1), ("KV_OUTER", 2)):
            same = kvgrid.geometry(layout, 32, 8, "float32", kv_split=split)
            pieces = map_blocks(same, same, [[3, 9]], [[5, 1]], local_regions=NAMES, remote_regions=NAMES)
            assert len(pieces) == 2 * 2 * runs
            assert pieces[:, 4].sum() == 2 * 2 * same.groups[0].block_bytes


def test_map_blocks_copies_opaque_blocks_whole():
    same = opaque()
    pieces = map_blocks(
        same, same, [[3, 0]], [[5, 7]], local_regions={"layers.0": 4, "layers.1": 9},
        remote_regions={"layers.0": 2, "layers.1": 1}, num_tokens=33,
    )  # fmt: skip
    assert pieces.tolist() == [
        [4, 2, 3000, 5000, 1000], [4, 2, 0, 7000, 1000], [9, 1, 3000, 5000, 1000], [9, 1, 0, 7000, 1000],
    ]  # fmt: skip


def test_map_blocks_honours_where_each_list_begins():
    same = opaque()
    pieces = map_blocks(
        same, same, [[3]], [[5, 7]], local_regions=NAMES, remote_regions=NAMES, local_first_token=32
    )
    assert pieces[:, 3].tolist() == [7000, 7000]


def test_map_blocks_of_nothing_is_empty():
    pieces = map_blocks(opaque(), opaque(), [[]], [[1]], local_regions=NAMES, remote_regions=NAMES)
    assert pieces.shape == (0, 5)
    assert pieces.dtype == np.uint64


def test_map_blocks_refuses_a_token_range_inside_an_opaque_block():
    with pytest.raises(InvalidArgumentError, match="token 5 is not at the start"):
        map_blocks(opaque(), opaque(), [[1]], [[1]], local_regions=NAMES, remote_regions=NAMES, first_token=5)


def test_map_blocks_refuses_a_block_beyond_the_cache():
    with pytest.raises(OutOfRangeError, match=r"remote block id 8 of group 0 is outside 0\.\.7"):
        map_blocks(opaque(), opaque(), [[1]], [[8]], local_regions=NAMES, remote_regions=NAMES)


def test_map_blocks_refuses_tokens_that_a_list_does_not_cover():
    with pytest.raises(OutOfRangeError, match=r"remote blocks hold 0\.\.31"):
        map_blocks(
            opaque(), opaque(), [[1, 2]], [[1]], local_regions=NAMES, remote_regions=NAMES, num_tokens=64
        )


def test_map_blocks_refuses_a_layer_without_region():
    with pytest.raises(NotFoundError, match=r"no remote region for layer 'layers.1'"):
        map_blocks(opaque(), opaque(), [[1]], [[1]], local_regions=NAMES, remote_regions={"layers.0": 1})


def test_map_blocks_refuses_a_wrong_number_of_lists():
    with pytest.raises(InvalidArgumentError, match="1 groups, got 2 local"):
        map_blocks(opaque(), opaque(), [[1], [1]], [[1]], local_regions=NAMES, remote_regions=NAMES)


def test_map_blocks_refuses_incompatible_caches():
    with pytest.raises(GeometryMismatchError, match="block_size: ours 32, theirs 24"):
        map_blocks(opaque(), opaque(24), [[1]], [[1]], local_regions=NAMES, remote_regions=NAMES)


def test_map_blocks_makes_15000_pieces_without_a_python_loop_over_blocks():
    many = opaque(num_blocks=500, layers=30)
    names = {name: i + 1 for i, name in enumerate(many.groups[0].layer_names)}
    blocks = np.random.default_rng(1).permutation(500)
    calls = 0

    def count(frame, event, _argument):
        nonlocal calls
        calls += event == "line" and "kvferry/layout" in frame.f_code.co_filename
        return count

    import sys

    before = sys.gettrace()
    sys.settrace(count)
    try:
        pieces = map_blocks(many, many, [blocks], [blocks[::-1]], local_regions=names, remote_regions=names)
    finally:
        sys.settrace(before)
    assert pieces.shape == (15_000, 5)
    assert calls < 1500  # lines run, for 15,000 pieces
