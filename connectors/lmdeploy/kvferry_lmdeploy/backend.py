"""LMDeploy's migration backend: the decode engine reads a prompt's blocks out of the prefill engine's
memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from lmdeploy.pytorch.disagg.backend.base import MigrationBackendImpl
from lmdeploy.pytorch.disagg.conn.protocol import (
    DistServeInitRequest,
    DistServeKVTransferEndpointInfo,
    MigrationProtocol,
)
from lmdeploy.pytorch.disagg.messages import DistServeRegisterMRMessage, MigrationAssignment

from kvferry.config import apply_log_options, explain_changes, load_config
from kvferry.errors import (
    NotFoundError,
    OutOfRangeError,
    PeerLostError,
    ProtocolError,
    UnavailableError,
    UnsupportedError,
)
from kvferry.transfer import AddressedEngine, Engine, TransferOptions

logger = logging.getLogger(__name__)

MAX_INFO_BYTES = 1 << 20
_ADDRESSES = 1 << 64
_MIGRATIONS = 4  # at a time; LMDeploy starts them one by one


class Pool(msgspec.Struct, frozen=True):
    """One pool of cache blocks. It ends within the 64 bits of an address."""

    address: Annotated[int, msgspec.Meta(ge=0)]
    length_bytes: Annotated[int, msgspec.Meta(ge=0)]


class EndpointInfo(msgspec.Struct, frozen=True, tag="kvferry", forbid_unknown_fields=True):
    """What a worker tells its counterpart about itself, as JSON. Addresses are names: they mean what the
    counterpart's engine finds under them in the list of what this one lets be read.
    """

    session: str
    pools: dict[str, Pool]


class Link:
    """The way to one remote engine's worker of the same rank."""

    def __init__(self, request: DistServeInitRequest) -> None:
        self.remote_engine_config = request.remote_engine_config  # LMDeploy reads its number of blocks
        self.remote: EndpointInfo | None = None
        self.before: EndpointInfo | None = None  # what it was until the engine was met again


class Backend(MigrationBackendImpl):
    """One worker's backend: one transfer engine for all its peers, memory registered once. Settings come from
    the environment and the configuration file.
    """

    def __init__(self, options: TransferOptions | None = None) -> None:
        """Start a transfer engine. Raises ConfigError, and what `Engine` raises."""
        if options is None:
            config = load_config()
            apply_log_options(config.log, own_process=False)
            logger.info("settings: %s", explain_changes(config))
            options = config.transfer
        self._engine = AddressedEngine(Engine(options))
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._pools: dict[int, Pool] = {}
        self._threads = ThreadPoolExecutor(_MIGRATIONS, "kvferry-migrate")
        self.links: dict[str, Link] = {}

    def p2p_initialize(self, init_request: DistServeInitRequest) -> None:
        """Prepare for a remote engine, known or new (a proxy that failed tries again)."""
        old = self.links.get(init_request.remote_engine_id)
        new = self.links[init_request.remote_engine_id] = Link(init_request)
        if old is not None:
            new.before = old.remote or old.before

    def register_memory_region(self, register_mr_request: DistServeRegisterMRMessage) -> None:
        """Let peers read a pool of blocks; the same one for each remote engine. Raises KVFerryError."""
        key, pool = register_mr_request.mr_key, Pool(register_mr_request.addr, register_mr_request.length)
        if self._pools.get(key) == pool:
            return
        self._engine.register(pool.address, pool.length_bytes, access="r", device=self._device)
        old = self._pools.get(key)
        self._pools[key] = pool
        if old is not None:  # the cache was made anew
            self._engine.unregister(old.address, old.length_bytes)

    def endpoint_info(self, remote_engine_id: str, protocol: MigrationProtocol) -> Any:
        """Return what the remote engine needs in order to read, as what becomes JSON."""
        pools = {str(key): pool for key, pool in self._pools.items()}
        return msgspec.to_builtins(EndpointInfo(self._engine.session, pools))

    def p2p_connect(self, remote_engine_id: str, conn_req: DistServeKVTransferEndpointInfo) -> None:
        """Connect to a remote engine's worker. Raises ProtocolError (no endpoint of ours), and KVFerryError
        if it cannot be reached now: the proxy tries again.
        """
        remote = _parsed(conn_req.endpoint_info)
        self._engine.connect(remote.session)
        link = self.links[remote_engine_id]
        link.remote, before = remote, link.before
        if before is not None and before.session not in self._sessions():
            self._engine.forget(before.session)

    async def p2p_migrate(self, assignment: MigrationAssignment, async_op: bool = False) -> None:
        """Read all pieces, as one transfer, into our pools; returns when every byte has arrived.

        Raises KVFerryError otherwise, at the latest after `transfer.transfer_timeout_s`; the blocks then hold
        anything. A connection that is lost is made once more within that time, and everything is read again:
        LMDeploy's loop ends at an error here. The event loop goes on meanwhile. If the task is cancelled, the
        transfer ends by itself.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._migrate, assignment)

    def store(self, assignment: MigrationAssignment, async_op: bool = False) -> None:
        """Raise UnsupportedError: LMDeploy 0.18 declares this and does not call it."""
        raise UnsupportedError(
            "KVFerry migrates blocks between engines: LMDeploy 0.18 never asks to store them elsewhere"
        )

    def load(self, assignment: MigrationAssignment, async_op: bool = False) -> None:
        """Raise UnsupportedError: LMDeploy 0.18 declares this and does not call it."""
        raise UnsupportedError(
            "KVFerry migrates blocks between engines: LMDeploy 0.18 never asks to load them elsewhere"
        )

    def close(self) -> None:
        """End all connections and transfers; idempotent. LMDeploy ends the process instead."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.engine.close()
        self._threads.shutdown()

    def _migrate(self, assignment: MigrationAssignment) -> None:
        link = self.links.get(assignment.remote_engine_id)
        # While a second proxy connects the two anew, requests of the first one go on.
        remote = None if link is None else link.remote or link.before
        if remote is None:
            raise NotFoundError(f"there is no connection to the engine {assignment.remote_engine_id}")
        pieces = np.array(
            [(each.mr_key, each.source_offset, each.target_offset, each.length) for each in assignment.batch],
            np.uint64,
        ).reshape(-1, 4)
        if not len(pieces):
            return
        keys, source, target, lengths = (np.ascontiguousarray(column) for column in pieces.T)
        # "Target" is the remote prefill engine, "source" the local decode engine: that is LMDeploy's wording.
        near = _addresses(self._pools, keys, source, lengths, "our")
        far = _addresses(
            {int(key): pool for key, pool in remote.pools.items()}, keys, target, lengths, "their"
        )
        limit_s = self._engine.engine.options.transfer_timeout_s
        deadline = time.monotonic() + limit_s
        try:
            self._read(remote.session, near, far, lengths, limit_s)
        except (PeerLostError, UnavailableError) as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            logger.warning("a prompt's blocks are read once more from %s: %s", remote.session, error)
            self._read(remote.session, near, far, lengths, left_s)

    def _read(
        self, session: str, near: np.ndarray, far: np.ndarray, lengths: np.ndarray, limit_s: float
    ) -> None:
        self._engine.execute(session, "read", near, far, lengths, timeout_s=limit_s).raise_if_failed()

    def _sessions(self) -> set[str]:
        return {link.remote.session for link in self.links.values() if link.remote is not None}


def _parsed(text: str) -> EndpointInfo:
    try:
        if len(text) > MAX_INFO_BYTES:
            raise ProtocolError(f"an endpoint info of {len(text)} characters is too long")
        info = msgspec.json.decode(text, type=EndpointInfo)
        if any(not key.isdecimal() for key in info.pools):
            raise ProtocolError("an endpoint info names a pool by what is no number")
        if any(pool.address + pool.length_bytes > _ADDRESSES for pool in info.pools.values()):
            raise ProtocolError("an endpoint info has a pool that ends beyond all addresses")
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(
            f"the other engine's endpoint is not one of KVFerry ({error}): both sides need "
            "--migration-backend KVFerry"
        ) from error
    return info


def _addresses(
    pools: dict[int, Pool], keys: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, whose: str
) -> np.ndarray:
    """Return where pieces begin. Raises NotFoundError, OutOfRangeError: a pool, or its end, is missed."""
    addresses = np.empty(len(keys), np.uint64)
    for key in _distinct(keys):
        if key not in pools:
            raise NotFoundError(f"pool {key} is none of {whose} registered pools")
        mine, pool = keys == key, pools[key]
        if (offsets[mine] > pool.length_bytes).any() or (
            lengths[mine] > pool.length_bytes - offsets[mine]
        ).any():
            raise OutOfRangeError(f"a piece leaves {whose} pool {key} of {pool.length_bytes} bytes")
        addresses[mine] = pool.address + offsets[mine]
    return addresses


def _distinct(keys: np.ndarray) -> Iterable[int]:
    return (int(key) for key in np.unique(keys))
