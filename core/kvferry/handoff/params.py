"""`kv_transfer_params`, the dictionary that travels prefill engine -> proxy -> decode engine.

It has the keys of vLLM's pull-mode connectors, so that existing proxies pass it on unchanged, plus the key
`kvferry` with what our consumer needs. It reaches the decode engine in an HTTP request body, so nothing in it
is trusted: `parse_remote_prefill` checks every field and raises `InvalidArgumentError` with one sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from kvferry.errors import InvalidArgumentError
from kvferry.handoff.leases import parse_lease_id
from kvferry.handoff.messages import StreamId

KEY = "kvferry"
MAX_RANKS = 1024
MAX_BLOCKS = 1 << 20
MAX_GROUPS = 64
DIGEST_BYTES = 16
_NIL_NODE = "0" * 32

NodeIdText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
EndpointText = Annotated[str, msgspec.Meta(pattern="^[!-~]{3,256}$")]  # printable ASCII
BlockIds = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], ...], msgspec.Meta(max_length=MAX_BLOCKS)
]

_Shape = TypeVar("_Shape")


class LeaseAddress(msgspec.Struct, frozen=True):
    """Where a lease lives: its id, and each rank's node and endpoint.

    Ranks are in order of pipeline stage, then of tensor-parallel rank.
    """

    lease: Annotated[str, msgspec.Meta(max_length=128)]
    node_ids: Annotated[tuple[NodeIdText, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    endpoints: Annotated[tuple[EndpointText, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    digest: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{0,{2 * DIGEST_BYTES}}}$")] = (
        ""  # see prompt_digest
    )
    lease_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = (
        30.0  # how long the lease lasts without renewal
    )
    pp_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = 1

    @property
    def tp_size(self) -> int:
        """Number of tensor-parallel ranks of each stage of the prefill engine."""
        return len(self.node_ids) // self.pp_size


class StreamAddress(msgspec.Struct, frozen=True):
    """A prefill that is being computed: its name, and each rank's node and endpoint as in `LeaseAddress`."""

    stream: StreamId
    node_ids: Annotated[tuple[NodeIdText, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    endpoints: Annotated[tuple[EndpointText, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    pp_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = 1

    @property
    def tp_size(self) -> int:
        """Number of tensor-parallel ranks of each stage of the prefill engine."""
        return len(self.node_ids) // self.pp_size


class RemotePrefill(msgspec.Struct, frozen=True):
    """A finished prefill to read: `num_tokens` prompt tokens in `block_ids`, one tuple per group."""

    address: LeaseAddress
    block_ids: tuple[tuple[int, ...], ...]
    num_tokens: int
    engine_id: str = ""
    request_id: str = ""


class _PullParams(msgspec.Struct, frozen=True):
    """The part of the pull-mode dictionary that we read; other keys are ignored."""

    kvferry: LeaseAddress
    remote_block_ids: Annotated[tuple[BlockIds, ...], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
    remote_num_tokens: Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
    remote_engine_id: Annotated[str, msgspec.Meta(max_length=512)] = ""
    remote_request_id: Annotated[str, msgspec.Meta(max_length=512)] = ""


class _AddressOnly(msgspec.Struct, frozen=True):
    kvferry: LeaseAddress


class _StreamParams(msgspec.Struct, frozen=True):
    kvferry: StreamAddress


class _StreamName(msgspec.Struct, frozen=True):
    stream: StreamId


class _StreamOrder(msgspec.Struct, frozen=True):
    kvferry: _StreamName


def wants_remote_decode(params: object) -> bool:
    """Whether the request asks this engine to prefill and to hand the KV cache off."""
    return isinstance(params, Mapping) and params.get("do_remote_decode") is True


def wants_remote_prefill(params: object) -> bool:
    """Whether the request asks this engine to load its prompt's KV cache from a prefill engine."""
    return isinstance(params, Mapping) and params.get("do_remote_prefill") is True


def parse_remote_prefill(params: object) -> RemotePrefill:
    """Return the checked content of a prefill engine's dictionary. Raises InvalidArgumentError."""
    pull = _convert(params, _PullParams)
    _check_address(pull.kvferry)
    if not any(pull.remote_block_ids):
        raise InvalidArgumentError("kv_transfer_params: remote_block_ids names no block")
    return RemotePrefill(
        address=pull.kvferry,
        block_ids=pull.remote_block_ids,
        num_tokens=pull.remote_num_tokens,
        engine_id=pull.remote_engine_id,
        request_id=pull.remote_request_id,
    )


def parse_lease_address(params: object) -> LeaseAddress:
    """Return where the lease lives, all that is needed to give it back. Raises InvalidArgumentError."""
    address = _convert(params, _AddressOnly).kvferry
    _check_address(address)
    return address


def names_stream(params: object) -> bool:
    """Whether the dictionary is about a prefill that streams, rather than one that is finished."""
    part = params.get(KEY) if isinstance(params, Mapping) else None
    return isinstance(part, Mapping) and "stream" in part


def parse_stream(params: object) -> StreamAddress:
    """Return where a decode engine follows a prefill under way. Raises InvalidArgumentError."""
    address = _convert(params, _StreamParams).kvferry
    _check_places(address)
    return address


def parse_stream_order(params: object) -> str:
    """Return the name under which a prefill engine is to announce a prefill. Raises InvalidArgumentError."""
    return _convert(params, _StreamOrder).kvferry.stream


def stream_order(stream: str) -> dict[str, Any]:
    """Return what a router adds to the prefill engine's dictionary to have its progress announced."""
    return {KEY: {"stream": stream}}


def build_stream(address: StreamAddress) -> dict[str, Any]:
    """Return the dictionary by which a decode engine follows a prefill under way."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_mode": "stream",
        "tp_size": address.tp_size,
        KEY: msgspec.to_builtins(address),
    }


def build_remote_prefill(remote: RemotePrefill, *, host: str, port: int) -> dict[str, Any]:
    """Return the dictionary that the prefill engine answers with.

    `host` and `port` are rank 0's, for proxies.
    """
    address = remote.address
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(ids) for ids in remote.block_ids],
        "remote_engine_id": remote.engine_id,
        "remote_request_id": remote.request_id,
        "remote_host": host,
        "remote_port": port,
        "tp_size": address.tp_size,
        "dcp_size": 1,
        "pp_size": address.pp_size,
        "remote_num_tokens": remote.num_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        KEY: msgspec.to_builtins(address),
    }


def prompt_digest(token_ids: Sequence[int], extras: Iterable[str] = ()) -> str:
    """Return a 128-bit digest (hex) of a prompt and of all else that its KV depends on (adapter, images).

    Prefill and decode engine must mean the same prompt, or one would decode from another text's KV cache.
    Each extra is length-prefixed, so that no two lists of extras collide.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    state.update(np.asarray(token_ids, dtype="<i8").tobytes())
    for extra in extras:
        data = extra.encode(errors="surrogatepass")
        state.update(len(data).to_bytes(4, "little") + data)
    return state.hexdigest()


def content_digest(block_ids: Iterable[Sequence[int]], num_tokens: int, digest: str) -> str:
    """Return a 128-bit digest (hex) of what a lease is for: the blocks by group, the number of tokens in
    them, and the `prompt_digest`."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    state.update(f"{num_tokens}.{digest}".encode())
    for ids in block_ids:
        state.update(len(ids).to_bytes(8, "little") + np.asarray(ids, dtype="<u8").tobytes())
    return state.hexdigest()


def _convert(params: object, shape: type[_Shape]) -> _Shape:
    if not isinstance(params, Mapping):
        raise InvalidArgumentError(f"kv_transfer_params: expected an object, got {type(params).__name__}")
    if KEY not in params:
        raise InvalidArgumentError(
            f'kv_transfer_params: no "{KEY}" key; the prefill engine does not run KVFerryConnector, '
            "or the proxy dropped the key"
        )
    try:
        return msgspec.convert(params, shape)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # JSON can hold half a surrogate pair
        raise InvalidArgumentError(f"kv_transfer_params: {error}") from error


def _check_address(address: LeaseAddress) -> None:
    parse_lease_id(address.lease)
    _check_places(address)


def _check_places(address: LeaseAddress | StreamAddress) -> None:
    if _NIL_NODE in address.node_ids:
        raise InvalidArgumentError("kvferry.node_ids: the nil id, which stands for any node, is not allowed")
    if len(set(address.node_ids)) != len(address.node_ids):
        raise InvalidArgumentError("kv_transfer_params: a node id is named twice")
    if len(address.node_ids) != len(address.endpoints):
        raise InvalidArgumentError(
            f"kv_transfer_params: {len(address.node_ids)} node_ids but {len(address.endpoints)} endpoints"
        )
    if len(address.node_ids) % address.pp_size:
        raise InvalidArgumentError(
            f"kv_transfer_params: {len(address.node_ids)} ranks do not make {address.pp_size} pipeline stages"
        )
