"""Whatever a block's bytes depend on is in its name (field report 4.3)."""

from __future__ import annotations

import itertools

import pytest

from _pool import BLOCK, hashes, identity, keys
from kvferry.layout import KVGeometry, KVGroup
from kvferry.pool import GroupShape, PoolKeys, identity_of, names_of

GEOMETRY = KVGeometry(
    model="m",
    revision="r",
    dtype="bfloat16",
    block_size=16,
    tp_size=2,
    groups=(KVGroup(("a", "b"), 2, 8, 2 * 16 * 2 * 8 * 2, 100, layout="HND", kv_split="KV_HEAD"),),
)
HASHES = hashes(range(8))


def other(**changes: object) -> KVGeometry:
    group = {name: changes.pop(name) for name in list(changes) if name in KVGroup.__struct_fields__}
    values = {name: getattr(GEOMETRY, name) for name in GEOMETRY.__struct_fields__}
    (old,) = GEOMETRY.groups
    new = KVGroup(**{**{name: getattr(old, name) for name in old.__struct_fields__}, **group})
    return KVGeometry(**{**values, "groups": (new,), **changes})


def names(geometry: KVGeometry, *, rank: int = 0, secret: str = "", **options: str) -> tuple[bytes, ...]:
    made = PoolKeys(
        identity_of(geometry, **{"hashing": "sha256", **options}), [GroupShape(BLOCK)], secret=secret
    )
    return tuple(row.tobytes() for row in names_of(made.of_blocks(0, HASHES), [rank]))


DIFFERENT = {
    "as it is": (GEOMETRY, {}),
    "model": (other(model="n"), {}),
    "revision": (other(revision="s"), {}),
    "draft": (other(draft="eagle3 head"), {}),
    "dtype": (other(dtype="float16"), {}),
    "quantized": (other(dtype="bfloat16/fp8"), {}),
    "NHD": (other(layout="NHD", kv_split="KV_INNER"), {}),
    "K transposed": (other(layout="HND_KT"), {}),
    "opaque": (other(layout="OPAQUE", kv_split="FUSED", opaque_tag="AVX2"), {}),
    "opaque, other kernel": (other(layout="OPAQUE", kv_split="FUSED", opaque_tag="AVX512"), {}),
    "ranks": (other(tp_size=4), {}),
    "rank": (GEOMETRY, {"rank": 1}),
    "pipeline stage": (other(pp_size=2), {}),
    "layers": (other(layer_names=("a", "c")), {}),
    "heads": (other(kv_heads=4, block_bytes=2 * 16 * 4 * 8 * 2), {}),
    "block": (other(block_size=32, block_bytes=2 * 32 * 2 * 8 * 2), {}),
    "hash": (GEOMETRY, {"hashing": "xxhash"}),
    "namespace": (GEOMETRY, {"namespace": "x"}),
    "namespace that looks like a hash": (GEOMETRY, {"namespace": "sha256"}),
    "tenant": (GEOMETRY, {"tenant": "x"}),
    "secret": (GEOMETRY, {"secret": "x"}),
}


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(DIFFERENT, 2)))
def test_identities_that_must_differ_do(one: str, two: str) -> None:
    first, second = (names(geometry, **options) for geometry, options in (DIFFERENT[one], DIFFERENT[two]))
    assert not set(first) & set(second)


def test_the_size_of_the_cache_is_not_in_the_name() -> None:
    assert names(other(num_blocks=7)) == names(GEOMETRY)


def test_the_rank_of_the_worker_is_only_in_the_name_of_its_part() -> None:
    assert names(other(tp_rank=1)) == names(GEOMETRY)
    assert names(GEOMETRY, rank=1) != names(GEOMETRY)


def test_groups_do_not_meet() -> None:
    two = keys(GroupShape(BLOCK), GroupShape(BLOCK, window_tokens=8))
    assert not set(two.of_blocks(0, HASHES)) & set(two.of_blocks(1, HASHES))
    assert not set(two.of_blocks(0, HASHES)) & set(keys().of_blocks(0, HASHES))


def test_blocks_of_several_hashes_are_named_by_the_last() -> None:
    fine, coarse = keys(GroupShape(BLOCK)), keys(GroupShape(2 * BLOCK, hashes_per_block=2))
    ends = hashes(range(40))
    assert len(coarse.of_blocks(0, ends)) == 5
    assert coarse.of_blocks(0, ends[:3]) == coarse.of_blocks(0, ends)[:1]
    assert coarse.of_blocks(0, ends, first=3) == coarse.of_blocks(0, ends)[3:]
    assert fine.of_blocks(0, ends, first=10) == []


def test_names_of_one_block_follow_one_another() -> None:
    made = keys().of_blocks(0, HASHES)
    rows = names_of(made, [0, 1, 258])
    assert rows.shape == (6, 18)
    assert [row.tobytes() for row in rows[:3]] == [made[0] + rank for rank in (b"\0\0", b"\1\0", b"\2\1")]
    assert rows[3].tobytes() == made[1] + b"\0\0"


def test_the_tag_is_the_identitys() -> None:
    assert keys().tag == keys().tag != keys(model="other").tag
    assert PoolKeys(identity(), [GroupShape(BLOCK)]).tag == keys().tag
