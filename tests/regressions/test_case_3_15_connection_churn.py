"""Case 3.15: a server that only opens and closes connections dies after a while."""

from __future__ import annotations

import random
import socket
import threading

import numpy as np
import pytest

import _wire as wire
from _engines import Child, move, options, pattern, pieces, wait_until
from kvferry.transfer import Endpoint, Engine

SHORT, LONG = 2_000, 50_000  # how many cycles


def first_bytes_of_a_handshake(engine: Engine) -> bytes:
    """What a real client sends first, caught by a listener that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def attempt() -> None:
            with pytest.raises(Exception):  # noqa: B017, PT011  (whatever it is, it is not the subject)
                engine.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=2.0)

        thread = threading.Thread(target=attempt)
        thread.start()
        caught, _address = listener.accept()
        with caught:
            caught.settimeout(60)
            hello = caught.recv(4096)
        thread.join()
    assert len(hello) > 24
    return hello


def cut_in_the_proof(endpoint: str, rng: random.Random) -> None:
    """Get past the hello, then leave in the middle of the frame that ends the handshake."""
    with wire.Attacker(endpoint) as attacker:
        attacker.send(wire.frame(wire.HELLO, wire.hello(wire.CONTROL)))
        answer = attacker.receive()
        assert answer is not None
        assert answer[0] == wire.HELLO_ACK
        proof = wire.frame(wire.AUTH, bytes(32))
        attacker.send(proof[: rng.randrange(len(proof))])


@pytest.mark.slow
def test_connections_cut_at_any_byte_cost_the_server_nothing(extent):
    rng = random.Random(15)
    region = {"name": "m", "length": 1 << 20, "seed": 2}
    with (
        Child([region], transports=["tcp"], allow_fallback=False) as child,
        Engine(options("tcp")) as engine,
    ):
        address = ("127.0.0.1", Endpoint(child.endpoint).port)
        hello = first_bytes_of_a_handshake(engine)

        def churn(cycles: int) -> None:
            for number in range(cycles):
                if number % 6 == 0:
                    with socket.create_connection(address, timeout=60) as cut:
                        cut.sendall(hello[: rng.randrange(len(hello))])
                elif number % 6 == 3:
                    cut_in_the_proof(child.endpoint, rng)
                else:
                    engine.connect(child.endpoint, expected=child.node_id).close()

        half_open = [socket.create_connection(address, timeout=60) for _ in range(20)]
        churn(300)
        wait_until(lambda: child.ask("peers") == 0, what="departure of closed peers")
        before = child.ask("status")
        churn(extent.times(SHORT, LONG))
        wait_until(lambda: child.ask("peers") == 0, what="departure of closed peers")
        wait_until(lambda: child.ask("status")["threads"] <= before["threads"], what="end of all threads")
        after = child.ask("status")
        for connection in half_open:
            connection.close()
        assert after["fds"] <= before["fds"]
        assert after["rss_kib"] - before["rss_kib"] < 8 << 10
        near = np.zeros(1 << 20, dtype=np.uint8)
        here = engine.register(near, name="near")
        peer = engine.connect(child.endpoint)
        assert move(engine, peer, pieces((here.id, peer.region("m").id, 0, 0, 1 << 20))).error is None
        np.testing.assert_array_equal(near, pattern(1 << 20, 2))
