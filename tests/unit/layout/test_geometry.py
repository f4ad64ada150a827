from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

import _kvgrid as kvgrid
from kvferry.errors import GeometryMismatchError, InvalidArgumentError, ProtocolError
from kvferry.layout import MAX_ENCODED_BYTES, KVGeometry, KVGroup, check_compatible

PLAIN = kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=32)


def with_group(
    geometry: KVGeometry = PLAIN, *, tp_size: int = 1, tp_rank: int = 0, **changes: object
) -> KVGeometry:
    groups = (replace(geometry.groups[0], **changes),)
    return replace(geometry, groups=groups, tp_size=tp_size, tp_rank=tp_rank)


OPAQUE = with_group(layout="OPAQUE", kv_split="FUSED", opaque_tag="cpu/avx2")
FP8 = kvgrid.geometry("NHD", 32, 8, "fp8_e4m3", layers=32)
STATE = {"layout": "OPAQUE", "kv_split": "FUSED", "kind": "state", "kv_heads": 1}


def test_encode_decode_round_trip():
    assert KVGeometry.decode(PLAIN.encode()) == PLAIN


def test_encode_refuses_more_than_a_peer_accepts():
    names = tuple(f"{i:0>200}" for i in range(1000))
    with pytest.raises(InvalidArgumentError, match="bytes encoded"):
        with_group(layer_names=names).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        b"\x91" * 10_000 + b"\x01",
        b"\xc0" * (MAX_ENCODED_BYTES + 1),
        msgspec.msgpack.encode({"model": "m"}),
        PLAIN.encode()[:-1],
        msgspec.msgpack.encode({**msgspec.to_builtins(PLAIN), "extra": 1}),
        msgspec.msgpack.encode({**msgspec.to_builtins(PLAIN), "block_size": 2**63}),
        msgspec.msgpack.encode({**msgspec.to_builtins(PLAIN), "block_size": "32"}),
        msgspec.msgpack.encode({**msgspec.to_builtins(PLAIN), "block_size": 31}),
        msgspec.msgpack.encode({**msgspec.to_builtins(PLAIN), "tp_rank": 1}),
    ],
)
def test_decode_refuses_what_no_peer_may_send(data):
    with pytest.raises(ProtocolError):
        KVGeometry.decode(data)


def test_geometry_refuses_a_layer_listed_twice():
    with pytest.raises(InvalidArgumentError, match="'a' is listed twice"):
        with_group(layer_names=("a", "b", "a"))


def test_geometry_refuses_padded_blocks_of_known_layout():
    with pytest.raises(InvalidArgumentError, match="use OPAQUE"):
        with_group(block_bytes=PLAIN.groups[0].block_bytes + 64)


def test_geometry_refuses_split_opaque_blocks():
    with pytest.raises(InvalidArgumentError, match="FUSED or LATENT"):
        with_group(layout="OPAQUE", kv_split="KV_OUTER")


@pytest.mark.parametrize(
    ("layout", "split"), [("NHD", "KV_HEAD"), ("HND_KT", "KV_INNER"), ("HND_KT", "FUSED")]
)
def test_geometry_refuses_a_split_that_the_layout_cannot_have(layout, split):
    with pytest.raises(InvalidArgumentError, match="KV_HEAD"):
        with_group(layout=layout, kv_split=split)


MISMATCHES = [
    (PLAIN, replace(PLAIN, model="other"), "model: ours grid, theirs other"),
    (replace(PLAIN, revision="a"), replace(PLAIN, revision="b"), "revision: ours a, theirs b"),
    (PLAIN, replace(PLAIN, dtype="fp8_e4m3"), "dtype: ours bfloat16, theirs fp8_e4m3"),
    (PLAIN, replace(PLAIN, tp_size=2), "kv_heads: ours 8, theirs 16"),
    (PLAIN, kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=31), "number of layers: ours 32, theirs 31"),
    (PLAIN, with_group(layer_names=tuple(f"x.{i}" for i in range(32))),
     "layer name: ours layers.0, theirs x.0"),
    (PLAIN, with_group(kind="sliding_window"), "kind: ours full, theirs sliding_window"),
    (kvgrid.geometry("NHD", 32, 4, "bfloat16", layers=32), PLAIN, "kv_heads: ours 4, theirs 8"),
    (PLAIN, kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=32, head_dim=8), "head_dim: ours 4, theirs 8"),
    (with_group(window=64), with_group(window=64, block_size=16, block_bytes=2048),
     "block_size: ours 32, theirs 16"),
    (with_group(window=64), with_group(window=32), "window: ours 64, theirs 32"),
    (OPAQUE, with_group(OPAQUE, kv_heads=4, tp_size=2), "tp_size: ours 1, theirs 2"),
    (with_group(**STATE, tp_size=2), with_group(**STATE, tp_size=4), "tp_size: ours 2, theirs 4"),
    (FP8, with_group(FP8, scales=()), "quantisation scales of layer layers.0: ours 1.0, theirs unknown"),
    (FP8, with_group(FP8, scales=("1.0",) * 31 + ("0.5",)),
     "quantisation scales of layer layers.31: ours 1.0, theirs 0.5"),
    (with_group(FP8, scales=()), with_group(FP8, scales=()),
     "quantisation scales of layer layers.0: ours unknown, theirs unknown"),
    (PLAIN, kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=32, kv_split="LATENT"),
     "kv_split: ours KV_INNER, theirs LATENT"),
    (PLAIN, OPAQUE, "layout: ours NHD, theirs OPAQUE"),
    (OPAQUE, PLAIN, "layout: ours OPAQUE, theirs NHD"),
    (OPAQUE, replace(OPAQUE, block_size=64), "block_size: ours 32, theirs 64"),
    (OPAQUE, with_group(OPAQUE, opaque_tag="cpu/avx512"), "opaque_tag: ours cpu/avx2, theirs cpu/avx512"),
    (OPAQUE, with_group(OPAQUE, block_bytes=77), "block_bytes: ours 4096, theirs 77"),
    (PLAIN, kvgrid.geometry("HND_KT", 32, 8, "bfloat16", layers=32, kv_split="KV_HEAD"),
     "layout: ours NHD, theirs HND_KT"),
    (PLAIN, with_group(block_bytes=2048), "bytes per element: ours 2, theirs 1"),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "sentence"), MISMATCHES)
def test_check_compatible_names_field_and_both_values(ours, theirs, sentence):
    with pytest.raises(GeometryMismatchError) as caught:
        check_compatible(ours, theirs)
    message = str(caught.value)
    assert message.startswith(sentence + "; ")
    assert "\n" not in message


def test_check_compatible_names_the_group_when_there_are_several():
    second = KVGroup(
        layer_names=("w",), kv_heads=1, head_dim=4, block_bytes=512, num_blocks=4, kind="sliding"
    )
    ours = replace(PLAIN, groups=(*PLAIN.groups, second))
    theirs = replace(PLAIN, groups=(*PLAIN.groups, replace(second, kv_heads=2)))
    with pytest.raises(GeometryMismatchError, match=r"^group 1 kv_heads: ours 1, theirs 2"):
        check_compatible(ours, theirs)
    with pytest.raises(GeometryMismatchError, match=r"^number of KV cache groups: ours 2, theirs 1"):
        check_compatible(ours, PLAIN)


@pytest.mark.parametrize(
    "theirs",
    [
        PLAIN,
        OPAQUE,
        replace(PLAIN, revision="only one side knows"),
        with_group(num_blocks=999),
        kvgrid.geometry("HND", 64, 8, "bfloat16", layers=32),
        kvgrid.geometry("NHD", 16, 8, "bfloat16", layers=32, kv_split="KV_OUTER"),
        kvgrid.geometry("HND", 24, 8, "bfloat16", layers=32),
        replace(kvgrid.geometry("NHD", 32, 4, "bfloat16", layers=32), tp_size=2, tp_rank=1),
        with_group(total_kv_heads=8, kv_heads=1, block_bytes=512, tp_size=16, tp_rank=9),
        replace(kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=12), pp_size=3, pp_rank=2),
    ],
)
def test_check_compatible_accepts_what_can_be_mapped(theirs):
    ours = OPAQUE if theirs is OPAQUE else PLAIN
    check_compatible(ours, theirs)
    check_compatible(theirs, ours)
