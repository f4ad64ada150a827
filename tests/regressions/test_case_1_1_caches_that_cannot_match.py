"""Both engines started healthy, then every request failed, or was decoded from foreign memory."""

from __future__ import annotations

import msgspec
import pytest

from _handoff import Clock, Decode, Prefill, geometry
from kvferry.errors import GeometryMismatchError
from kvferry.testing import FakeNetwork


def group_of(**changes: object) -> dict[str, object]:
    (group,) = geometry().groups
    return {"groups": (msgspec.structs.replace(group, **changes),)}


@pytest.mark.parametrize(
    ("field", "theirs", "changes"),
    [
        ("block_size", "24", {"block_size": 24}),
        ("dtype", "fp8_e4m3", {"dtype": "fp8_e4m3"}),
        ("kv_heads", "8", group_of(kv_heads=8)),
        ("number of layers", "1", group_of(layer_names=("layer.0",))),
        ("revision", "b", {"revision": "b"}),
        ("kv_heads", "4", {"tp_size": 2}),
    ],
)
def test_first_contact_names_field_and_both_values_and_the_engine_goes_on(field, theirs, changes) -> None:
    clock = Clock()
    network = FakeNetwork(clock=clock)
    other = Prefill(network, clock, **changes)
    decode = Decode(network, clock, revision="a")
    started = clock.now
    result = decode.load("d1", other.finish("p1", (3,)), (7,))
    assert isinstance(result.error, GeometryMismatchError)
    assert field in str(result.error)
    assert f"theirs {theirs}" in str(result.error)
    assert "ours" in str(result.error)
    decode.chores.run()
    assert other.table.take_ended() == {"p1"}  # its blocks are free at once
    assert clock.now - started < 5
    fitting = Prefill(network, clock)
    assert decode.load("d2", fitting.finish("p2", (3,)), (7,)).error is None
