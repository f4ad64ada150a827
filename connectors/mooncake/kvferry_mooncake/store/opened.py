"""Opening and closing a store as Mooncake's programs do, and registering memory with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvferry.errors import KVFerryError
from kvferry.store import Store
from kvferry.transfer import Span
from kvferry_mooncake.codes import INVALID_PARAMS, OK, logger, refused, store_code
from kvferry_mooncake.store.arguments import settings_by_name, settings_by_position
from kvferry_mooncake.store.memory import MooncakeHostMemAllocator
from kvferry_mooncake.store.placing import Placed, Placing, place
from kvferry_mooncake.store.sessions import GetSessions, PutSessions, can_be

_SETUP_FAILED = -1
_NOT_THERE, _UNREACHABLE = 1, 2  # of health_check
_REQUIRED = ("local_hostname", "metadata_server")
_DEFAULT_SIZE = 16 << 20


class OpenedStore:
    """The part of `MooncakeDistributedStore` that is about the store itself, not its objects."""

    def __init__(self) -> None:
        self._placed: Placed | None = None
        self._gets: GetSessions | None = None
        self._puts: PutSessions | None = None
        self._hostname = ""
        self._buffers: dict[int, Span] = {}
        self._pool: MooncakeHostMemAllocator | None = None

    # Set-up

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Open the store: `setup(local_hostname, metadata_server, global_segment_size, ...)`, or one
        dictionary of these. 0, -600 (wrong or missing settings), -1 (the reason is logged).

        `master_server_addr` says where objects are, see docs/mooncake.md; `global_segment_size` is the memory
        of a node that comes with the store, if one does. Protocol, devices, engine and local buffer choose
        nothing.
        """
        given = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else kwargs.get("config")
        if not isinstance(given, Mapping):
            return self._open(**settings_by_position(*args, **kwargs))
        if any(not given.get(name) for name in _REQUIRED):
            logger.error("setup needs %s", " and ".join(_REQUIRED))
            return INVALID_PARAMS
        return self._open(**settings_by_name(given))

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Open the store of the node at `server_address`, bringing no memory along; 0 or -1."""
        self._pool = MooncakeHostMemAllocator()
        return self._open(local_hostname="", global_segment_size=0, master_server_addr=server_address)

    def _open(
        self,
        *,
        local_hostname: str = "",
        global_segment_size: Any = _DEFAULT_SIZE,
        master_server_addr: str = "",
        enable_ssd_offload: Any = False,
        ssd_offload_path: str | None = "",
        tenant_id: str | None = "",
        **_unused: Any,
    ) -> int:
        offload = str(enable_ssd_offload).lower() in ("true", "1")
        try:
            wanted = Placing(
                master=master_server_addr,
                segment_bytes=int(global_segment_size),
                tenant=tenant_id or "",
                ssd_directory=(ssd_offload_path or "") if offload else "",
            )
        except ValueError:
            logger.error("global_segment_size %r is no number of bytes", global_segment_size)
            return INVALID_PARAMS
        try:
            placed = place(wanted)
        except (KVFerryError, OSError) as error:
            logger.error("no store for master_server_addr %r: %s", master_server_addr, error)
            return _SETUP_FAILED
        logger.info("Mooncake's store: %s", placed.keeper)
        self.close()
        self._placed = placed
        self._gets, self._puts = GetSessions(placed.store), PutSessions(placed.store)
        self._hostname = local_hostname
        return OK

    def close(self) -> int:
        """Let go of the store, and end the node that came with it; 0, again and again."""
        placed, self._placed = self._placed, None
        self._buffers.clear()
        for sessions in (self._gets, self._puts):
            if sessions is not None:
                sessions.clear()
        self._gets = self._puts = None
        if placed is not None:
            placed.close()
        return OK

    def health_check(self) -> int:
        """0: well, 1: not set up or closed, 2: the node is not reached."""
        if self._placed is None:
            return _NOT_THERE
        return OK if self._placed.store.error is None else _UNREACHABLE

    def get_hostname(self) -> str:
        """Return what `setup` was told, with a port."""
        port = self._placed.port if self._placed is not None else 0
        return self._hostname if ":" in self._hostname else f"{self._hostname}:{port}"

    @property
    def _store(self) -> Store | None:
        if self._placed is None:
            refused("no store", "the store is not set up, or was closed")
            return None
        return self._placed.store

    # Memory

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Register memory, so that bytes move between it and other hosts without a copy; 0 or -600."""
        store = self._store
        if store is None:
            return INVALID_PARAMS
        if size == 0 or not can_be(buffer_ptr, size):
            return refused("registration", "%d bytes at the address %d cannot be", size, buffer_ptr)
        if buffer_ptr in self._buffers:
            return refused("registered twice", "memory at %#x is registered already", buffer_ptr)
        span = Span(buffer_ptr, size)
        code = code_of(lambda: store.register(span), "register_buffer")
        if code == OK:
            self._buffers[buffer_ptr] = span
        return code

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """End a registration; 0, or -600 if there is none."""
        store, span = self._store, self._buffers.get(buffer_ptr)
        if store is None:
            return INVALID_PARAMS
        if span is None:
            return refused("not registered", "memory at the address %d is not registered", buffer_ptr)
        code = code_of(lambda: store.unregister(span), "unregister_buffer")
        if code == OK:
            self._buffers.pop(buffer_ptr, None)
        return code

    def alloc_from_mem_pool(self, size: int) -> int:
        """Return the address of memory after `setup_dummy`; 0 otherwise."""
        return 0 if self._pool is None else self._pool.alloc(size)


def code_of(call: Callable[[], Any], what: str) -> int:
    """Make a call of the store; return its code."""
    try:
        call()
    except KVFerryError as error:
        return store_code(error, what)
    return OK
