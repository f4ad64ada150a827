"""Case 7.2: a server that uses an address sent by the peer. Only ranges of named regions are served."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

import _wire as wire
from _engines import Child, move, options, pattern, pieces
from kvferry.transfer import Engine

SIZE = 64 << 10


def draws(rng: random.Random) -> bytes:
    """A descriptor with fields from the places where range checks go wrong."""
    edges = [0, 1, SIZE - 1, SIZE, SIZE + 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - SIZE, 2**64 - 1]
    return wire.piece(
        rng.choice([0, 1, 2, 3072, 3073, 2**32 - 1]),
        rng.choice([0, 1, 2, 2**32 - 1]),
        rng.choice(edges),
        rng.choice(edges),
    )


def expected(descriptor: bytes) -> bool:
    region, generation, offset, length = struct.unpack("<IIQQ", descriptor)
    return (region, generation) == (1, 1) and length > 0 and offset + length <= SIZE


@pytest.mark.parametrize("seed", range(4))
def test_only_ranges_of_registered_regions_are_ever_read(seed):
    rng = random.Random(seed)
    held = pattern(SIZE, 6).tobytes()
    with Child([{"name": "m", "length": SIZE, "access": "r", "seed": 6}], transports=["tcp"]) as child:
        served = 0
        for _ in range(60):
            descriptor = draws(rng)
            with wire.data_connection(child.endpoint) as attacker:
                attacker.send(wire.frame(wire.READ, wire.request(descriptor), request=wire.REQUEST))
                answer = attacker.receive()
                if answer is None or answer[0] == wire.ERROR:
                    assert not expected(descriptor)
                    continue
                payload, results = struct.unpack_from("<QI", answer[1])
                assert (results == 0 or answer[1][16] == 0) == (payload > 0) == expected(descriptor)
                if payload:
                    _region, _generation, offset, length = struct.unpack("<IIQQ", descriptor)
                    assert attacker._exactly(length) == held[offset : offset + length]
                    served += 1
        assert child.process.poll() is None
        with Engine(options("tcp")) as honest:
            near = np.zeros(SIZE, dtype=np.uint8)
            here = honest.register(near, name="near")
            peer = honest.connect(child.endpoint)
            assert move(honest, peer, pieces((here.id, peer.region("m").id, 0, 0, SIZE))).error is None
            assert near.tobytes() == held
