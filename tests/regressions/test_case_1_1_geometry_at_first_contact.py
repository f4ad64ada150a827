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


@pytest.mark.parametrize(
    ("theirs", "field", "values"),
    [
        (kvgrid.geometry("NHD", 24, 8, "bfloat16", layers=32), "block_size", "ours 32, theirs 24"),
        (kvgrid.geometry("NHD", 32, 8, "fp8_e4m3", layers=32), "dtype", "ours bfloat16, theirs fp8_e4m3"),
        (kvgrid.geometry("NHD", 32, 4, "bfloat16", layers=32), "kv_heads", "ours 8, theirs 4"),
        (kvgrid.geometry("NHD", 32, 8, "bfloat16", layers=31), "number of layers", "ours 32, theirs 31"),
        (replace(OURS, tp_size=2), "tp_size", "ours 1, theirs 2"),
    ],
)
def test_first_contact_names_field_and_both_values(theirs, field, values):
    with Engine(metadata=theirs.encode()) as producer, Engine(metadata=OURS.encode()) as consumer:
        started = time.monotonic()
        peer = consumer.connect(producer.endpoint)
        with pytest.raises(GeometryMismatchError) as caught:
            check_compatible(OURS, KVGeometry.decode(peer.metadata))
        assert time.monotonic() - started < 5.0
        assert f"{field}: {values}; " in str(caught.value)
        assert peer.alive, "an incompatible peer is no reason to fail anything else"
