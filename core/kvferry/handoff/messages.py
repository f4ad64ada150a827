"""Control messages of the hand-off: what a decode engine and a prefill engine say about leases.

They travel as bodies of engine messages, msgpack-encoded, tagged by `type`. A field that a newer version
added is ignored; a message of an unknown type, of the wrong shape or over the size limit is a
`ProtocolError`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvferry.errors import ProtocolError

MAX_MESSAGE_BYTES = 256 * 1024
MAX_LEASES_PER_RENEW = 1024
MAX_READERS = 1024  # ranks of one decode engine

LeaseId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Correlation = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
ReleaseReason = Literal["done", "rejected", "aborted"]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Consumer to producer: this lease is no longer needed. Answered by `Released`.

    `content` is `params.content_digest` of what was read under the lease; empty if nothing was. Several ranks
    of a decode engine may share a lease: `reader` of `readers` says who speaks, and the lease ends with the
    last of them.
    """

    lease_id: LeaseId
    correlation: Correlation
    reason: ReleaseReason
    content: Annotated[str, msgspec.Meta(max_length=64)] = ""
    reader: Annotated[int, msgspec.Meta(ge=0, lt=MAX_READERS)] = 0
    readers: Annotated[int, msgspec.Meta(ge=1, le=MAX_READERS)] = 1


class Released(msgspec.Struct, frozen=True, tag="released"):
    """Producer to consumer: `held` tells whether what was read is valid: the lease was alive until now, and
    it was for that content."""

    correlation: Correlation
    held: bool


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Consumer to producer: these leases are still needed. Not answered."""

    lease_ids: Annotated[tuple[LeaseId, ...], msgspec.Meta(max_length=MAX_LEASES_PER_RENEW)]


HandoffMessage = Release | Released | Renew

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HandoffMessage)


def encode_message(message: HandoffMessage) -> bytes:
    """Return the body that carries `message`."""
    return _encoder.encode(message)


def decode_message(body: bytes) -> HandoffMessage:
    """Return the message in `body`. Raises ProtocolError naming what is wrong."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"hand-off message of {len(body)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed hand-off message of {len(body)} bytes: {error}") from error
