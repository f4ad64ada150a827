"""Case 3.1: a peer restarts behind the same address, and the survivor keeps the old ports and keys."""

from __future__ import annotations

import numpy as np
import pytest

from _engines import Child, options, pattern, pieces, wait_until
from kvferry.errors import IdentityMismatchError, KVFerryError, UnavailableError
from kvferry.transfer import Engine, Plan

SIZE = 16 << 20
REGION = {"name": "m", "length": SIZE, "seed": 4}


def connect_when_up(engine: Engine, endpoint: str, **arguments):
    found = []

    def attempt() -> bool:
        try:
            found.append(engine.connect(endpoint, **arguments))
        except UnavailableError:
            return False
        return True

    wait_until(attempt, what=f"connection to {endpoint}")
    return found[0]


def submit_and_wait(engine: Engine, plan: Plan) -> None:
    transfer = engine.submit(plan)
    assert transfer.wait()
    transfer.raise_if_failed()


@pytest.mark.parametrize("idle_probe_s", [5.0, 120.0])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_restarted_peer_is_another_peer(transport, idle_probe_s):
    chosen = {"transports": [transport], "allow_fallback": False}
    with Engine(options(transport, idle_probe_s=idle_probe_s)) as survivor:
        near = np.zeros(SIZE, dtype=np.uint8)
        here = survivor.register(near, name="near")
        with Child([REGION], **chosen) as first:
            old = survivor.connect(first.endpoint, expected=first.node_id)
            plan = survivor.prepare(old, pieces((here.id, old.region("m").id, 0, 0, SIZE)), "read")
            first.kill()
        with Child([{**REGION, "seed": 5}], bind=first.endpoint, **chosen) as second:
            assert second.endpoint == first.endpoint
            assert second.node_id != first.node_id
            with pytest.raises(IdentityMismatchError):
                connect_when_up(survivor, second.endpoint, expected=first.node_id)
            wait_until(lambda: not old.alive, what="loss of the old peer")
            with pytest.raises(KVFerryError):
                submit_and_wait(survivor, plan)
            assert not near.any(), "an old plan must never bring bytes of the new process"
            new = connect_when_up(survivor, second.endpoint, expected=second.node_id)
            transfer = survivor.submit(
                survivor.prepare(new, pieces((here.id, new.region("m").id, 0, 0, SIZE)), "read")
            )
            assert transfer.wait()
            assert transfer.error is None
            np.testing.assert_array_equal(near, pattern(SIZE, 5))
