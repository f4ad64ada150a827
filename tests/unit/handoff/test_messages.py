from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ProtocolError
from kvferry.handoff.messages import (
    MAX_LEASES_PER_RENEW,
    MAX_MESSAGE_BYTES,
    Finished,
    Mark,
    Progress,
    Release,
    Released,
    Renew,
    StreamAborted,
    StreamCancel,
    Subscribe,
    decode_message,
    encode_message,
)

STREAM = "5" * 32


@pytest.mark.parametrize(
    "message",
    [
        Release("a.1.b", 7, "done"),
        Release("x" * 128, (1 << 63) - 1, "rejected"),
        Released(0, False),
        Released(9, True),
        Renew(()),
        Renew(("a", "b")),
        Subscribe(STREAM, "ab"),
        Progress(STREAM, 0, 0),
        Progress(STREAM, 2, 9, (4, 5), (Mark(64, (0, 3)), Mark(32, ()))),
        Finished(STREAM, 0, 3, "a.1.b", 70, "ab", 30.0),
        Finished(STREAM, 0, 3, "a.1.b", 70, "ab", 30.0, ((1, 2), (0,))),
        StreamAborted(STREAM, "the request was aborted"),
        StreamCancel(STREAM, "rejected"),
    ],
)
def test_round_trip(message):
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    "body",
    [
        {"type": "release", "lease_id": "a", "correlation": 1, "reason": "because"},
        {"type": "release", "lease_id": "", "correlation": 1, "reason": "done"},
        {"type": "release", "lease_id": "a" * 129, "correlation": 1, "reason": "done"},
        {"type": "release", "lease_id": "a", "correlation": -1, "reason": "done"},
        {"type": "release", "lease_id": "a", "correlation": "1", "reason": "done"},
        {"type": "release", "lease_id": b"a", "correlation": 1, "reason": "done"},
        {"type": "released", "correlation": 1, "held": 1},
        {"type": "renew", "lease_ids": ["a"] * (MAX_LEASES_PER_RENEW + 1)},
        {"type": "renew", "lease_ids": "a"},
        {"type": "subscribe", "stream": "../../etc", "digest": ""},
        {"type": "subscribe", "stream": STREAM},
        {"type": "progress", "stream": STREAM, "generation": -1, "sequence": 0},
        {"type": "progress", "stream": STREAM, "generation": 0, "sequence": 0, "blocks": [1 << 32]},
        {"type": "progress", "stream": STREAM, "generation": 0, "sequence": 0, "blocks": [0] * 32769},
        {"type": "progress", "stream": STREAM, "generation": 0, "sequence": 0, "marks": [[5, [4096]]]},
        {"type": "progress", "stream": STREAM, "generation": 0, "sequence": 0, "marks": [[-5, [0]]]},
        {"type": "progress", "stream": STREAM, "generation": 0, "sequence": 0, "marks": [5]},
        {"type": "stream_aborted", "stream": STREAM, "why": "x" * 201},
        {"type": "stream_cancel", "stream": STREAM, "reason": "because"},
        {"type": "unheard of"},
        {"lease_id": "a"},
        [],
        None,
    ],
)
def test_wrong_shape_is_a_protocol_error(body):
    with pytest.raises(ProtocolError, match="malformed hand-off message"):
        decode_message(msgspec.msgpack.encode(body))


def test_size_limit():
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        decode_message(b"\x00" * (MAX_MESSAGE_BYTES + 1))


def test_field_of_a_newer_version_is_ignored():
    body = {"type": "released", "correlation": 3, "held": True, "since": 12.5}
    assert decode_message(msgspec.msgpack.encode(body)) == Released(3, True)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(body):
    with contextlib.suppress(ProtocolError):
        decode_message(body)


def test_deep_nesting_is_malformed():
    body = msgspec.msgpack.encode({"type": "release"})[1:]
    with pytest.raises(ProtocolError, match="malformed"):
        decode_message(b"\x82" + body + msgspec.msgpack.encode("new") + b"\x91" * 100_000)
