"""The shipped conformance suite over every transport and set-up; transports that are broken on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from _engines import Pair, engine_pair, move, pattern, pieces
from kvferry.errors import DeadlineExceededError, PeerLostError, UnavailableError
from kvferry.transfer import Transfer

pytest.register_assert_rewrite("kvferry.testing.transports")

from kvferry.testing.rigs import FileRig, Rig  # noqa: E402
from kvferry.testing.transports import TransportConformance  # noqa: E402


class TestTcp(TransportConformance):
    transport = "tcp"


class TestTcpWithChecksums(TransportConformance):
    transport = "tcp"
    options = {"checksum": True, "tcp_streams": 4, "slice_bytes": 64 << 10}
    beyond_4_gib = False


class TestTcpWithASecret(TransportConformance):
    """Every frame carries a tag."""

    transport = "tcp"
    options = {"cluster_secret": "sixteen bytes and more"}
    beyond_4_gib = False


class TestTcpWithTls(TransportConformance):
    """Needs OpenSSL 3, which every Debian that has Python brings."""

    transport = "tcp"
    options = {"tls": True, "cluster_secret": "sixteen bytes and more"}
    beyond_4_gib = False


class TestShmWithForeignMemory(TransportConformance):
    transport = "shm"


class TestShmWithOwnMemory(TransportConformance):
    transport = "shm"
    options = {"shm_lanes": 2}
    allocate = True
    beyond_4_gib = False


class TestShmThatIsLate(TransportConformance):
    transport = "shm"
    near_options = {"fault_plan": "*:delay=1"}
    beyond_4_gib = False


class TestFiles(TransportConformance):
    transport = "file"
    beyond_4_gib = False

    @classmethod
    def make_rig(cls) -> Rig:
        return FileRig({})

    def await_echo(self, rig: Rig, body: bytes) -> None:
        """The engine is its own peer: the message is the one that was sent."""
        message = rig.engine.next_message(10.0)
        assert message is not None
        assert message.body == body


class TestTcpThatBreaksNowAndThen(TransportConformance):
    """Every transfer is retried until it is right."""

    transport = "tcp"
    near_options = {"fault_plan": ";".join(f"tcp:short@{call}x1" for call in range(3, 400, 7))}
    beyond_4_gib = False


PIECES = 16


def read_through(transports: tuple[str, ...], plan: str, **extra: Any) -> tuple[Transfer, Pair]:
    """Read a MiB in 16 pieces while `plan` breaks things. No piece may be called moved that was not."""
    timeout_s = extra.pop("timeout_s", 10.0)
    with engine_pair(*transports, fault_plan=plan, **extra) as pair:
        far, near = pattern(1 << 20, 9), np.zeros(1 << 20, dtype=np.uint8)
        there = pair.server.register(far, name="m")
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        size = (1 << 20) // PIECES
        offsets = [2 * size * (n % (PIECES // 2)) + size * (n >= PIECES // 2) for n in range(PIECES)]
        rows = pieces(*((here.id, there.id, offset, offset, size) for offset in offsets))
        transfer = move(pair.client, pair.peer, rows, timeout_s=timeout_s)
        for error, offset in zip(transfer.piece_errors, offsets, strict=True):
            if error is None:
                part = slice(offset, offset + size)
                np.testing.assert_array_equal(near[part], far[part])
        return transfer, pair


@pytest.fixture(params=["tcp", "shm"])
def transport(request):
    return request.param


def test_a_late_transport_is_only_late(transport):
    transfer, _pair = read_through((transport,), f"{transport}:delay=100")
    assert transfer.error is None
    assert transfer.seconds >= 0.1


@pytest.mark.parametrize("action", ["cut", "short"])
def test_a_rail_that_breaks_once_is_opened_again(transport, action):
    transfer, _pair = read_through((transport,), f"{transport}:{action}x1")
    assert transfer.error is None


@pytest.mark.parametrize("action", ["cut", "short", "refuse"])
def test_a_transport_that_stays_broken_fails_with_its_reason(transport, action):
    transfer, _pair = read_through((transport,), f"{transport}:{action}")
    assert isinstance(transfer.error, (UnavailableError, PeerLostError))
    assert transport in str(transfer.error) or "rail" in str(transfer.error)


@pytest.mark.parametrize("action", ["cut", "short", "refuse"])
def test_another_transport_takes_over_if_allowed(action):
    transfer, pair = read_through(("shm", "tcp"), f"shm:{action}", allow_fallback=True)
    assert transfer.error is None
    assert transfer.transport.endswith("tcp")
    assert pair.client.counters()["tcp_bytes"] > 0


def test_a_transport_that_hangs_fails_at_the_deadline(transport):
    transfer, _pair = read_through((transport,), f"{transport}:hang", timeout_s=0.5)
    assert isinstance(transfer.error, DeadlineExceededError)
    assert transfer.seconds < 29.0
