"""Case 1.1: both ends start healthy, then every request fails because their KV shapes cannot match."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

import _kvgrid as kvgrid
from kvferry.errors import GeometryMismatchError
from kvferry.layout import KVGeometry, check_compatible
from kvferry.transfer import Engine

OURS = kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=32)


def opaque(block_size: int, tp_size: int = 1) -> KVGeometry:
    plain = kvgrid.geometry("NHD", block_size, 8 // tp_size, "bfloat16", layers=32)
    group = replace(plain.groups[0], layout="OPAQUE", kv_split="FUSED", opaque_tag="cpu/avx2")
    return replace(plain, groups=(group,), tp_size=tp_size)


@pytest.mark.parametrize(
    ("theirs", "field", "values"),
    [
        (opaque(24), "block_size", "ours 32, theirs 24"),
        (opaque(32, tp_size=2), "tp_size", "ours 1, theirs 2"),
    ],
)
def test_blocks_that_only_the_engine_can_read_must_be_equal(theirs, field, values):
    with pytest.raises(GeometryMismatchError) as caught:
        check_compatible(opaque(32), theirs)
    assert f"{field}: {values}; " in str(caught.value)


def test_block_sizes_and_ranks_that_can_be_mapped_are_not_refused():
    check_compatible(OURS, kvgrid.geometry("HND", 24, 8, "bfloat16", layers=32))
    check_compatible(OURS, replace(kvgrid.geometry("NHD", 32, 4, "bfloat16", layers=32), tp_size=2))


@pytest.mark.parametrize(
    ("theirs", "field", "values"),
    [
        (kvgrid.geometry("NHD", 32, 8, "fp8_e4m3", layers=32), "dtype", "ours bfloat16, theirs fp8_e4m3"),
        (kvgrid.geometry("NHD", 32, 4, "bfloat16", layers=32), "kv_heads", "ours 8, theirs 4"),
        (kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=31), "number of layers", "ours 32, theirs 31"),
        (replace(OURS, tp_size=2), "kv_heads", "ours 8, theirs 16"),
        (opaque(32), "layout", "ours NHD, theirs OPAQUE"),
    ],
)
def test_first_contact_names_field_and_both_values(theirs, field, values):
    with Engine(metadata=theirs.encode()) as producer, Engine(metadata=OURS.encode()) as consumer:
        started = time.monotonic()
        peer = consumer.connect(producer.endpoint)
        with pytest.raises(GeometryMismatchError) as caught:
            check_compatible(OURS, KVGeometry.decode(peer.metadata))
        assert time.monotonic() - started < 29.0
        assert f"{field}: {values}; " in str(caught.value)
        assert peer.alive, "an incompatible peer is no reason to fail anything else"
