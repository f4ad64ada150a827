"""Control messages of the hand-off: what a decode engine and a prefill engine say about leases and streams.

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
MAX_LAYERS = 4096
MAX_GROUPS = 64
MAX_BLOCKS_TOLD = 32 * 1024  # in one message

LeaseId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Correlation = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
ReleaseReason = Literal["done", "rejected", "aborted"]
StreamId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,32}$")]
TokenCount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
LayerIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_LAYERS)]
Counter = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Blocks = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], ...], msgspec.Meta(max_length=MAX_BLOCKS_TOLD)
]


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


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """Consumer to producer: tell me how the prefill called `stream` gets on. `digest` is the consumer's
    `params.prompt_digest` of the whole prompt; it must be the producer's, too."""

    stream: StreamId
    digest: Digest


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """In these layers, given by their index in the geometry, tokens [0, end_token) are complete."""

    end_token: TokenCount
    layers: Annotated[tuple[LayerIndex, ...], msgspec.Meta(max_length=MAX_LAYERS)]


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Producer to subscriber: what has become readable since the last message of this stream.

    `generation` grows when the prefill was begun anew in other blocks: what was read before is void.
    `sequence` counts a stream's messages from 0. `blocks` continue the list of the generation's blocks.
    """

    stream: StreamId
    generation: Counter
    sequence: Counter
    blocks: Blocks = ()
    marks: Annotated[tuple[Mark, ...], msgspec.Meta(max_length=MAX_LAYERS)] = ()


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Producer to subscriber: the prefill is complete and leased; give the lease back after the last read.

    `block_ids` by group, or None: those announced for this generation.
    """

    stream: StreamId
    generation: Counter
    sequence: Counter
    lease_id: LeaseId
    num_tokens: TokenCount
    digest: Digest
    lease_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)]
    block_ids: Annotated[tuple[Blocks, ...], msgspec.Meta(max_length=MAX_GROUPS)] | None = None


class StreamAborted(msgspec.Struct, frozen=True, tag="stream_aborted"):
    """Producer to subscriber: this prefill will not be finished; what was read of it is void."""

    stream: StreamId
    why: Annotated[str, msgspec.Meta(max_length=200)]


class StreamCancel(msgspec.Struct, frozen=True, tag="stream_cancel"):
    """To the producer, from the subscriber or the router: nobody wants this prefill's blocks any more."""

    stream: StreamId
    reason: ReleaseReason


HandoffMessage = Release | Released | Renew | Subscribe | Progress | Finished | StreamAborted | StreamCancel

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
