"""`mooncake.engine` on KVFerry: calls by address and `host:port`, integers for results."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal, TypeAlias

from kvferry.errors import InvalidArgumentError, KVFerryError
from kvferry.transfer import SessionEngine, Transfer
from kvferry_mooncake.batches import Batches
from kvferry_mooncake.codes import ADDRESS_OVERLAPPED, INVALID_ARGUMENT, OK, engine_code, logger
from kvferry_mooncake.devices import register
from kvferry_mooncake.listening import options_for, timeout_s
from kvferry_mooncake.notices import TransferNotify, encoded, received

_REFUSED_PROTOCOLS = {"xgmi"}  # Mooncake refuses it, too: "use hip"
_LINE_BYTES_PER_S = 1e9  # what a transfer may take longer than its time limit for its size


class TransferOpcode(enum.IntEnum):
    """Which way bytes move, as seen from the caller."""

    Read = 0
    Write = 1


Opcode: TypeAlias = TransferOpcode
_OPS: dict[TransferOpcode, Literal["read", "write"]] = {
    TransferOpcode.Read: "read",
    TransferOpcode.Write: "write",
}


class TransferEngine:
    """Moves bytes between registered memory of this process and that of sessions (`host:port`).

    Every method returns what Mooncake's does: 0 or more is success, less than 0 an error, whose reason is
    logged. Memory outside of registered regions is an error before anything moves, on both sides. All methods
    are thread-safe and let other threads run while they wait.
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._engine: SessionEngine | None = None
        self._timeout_s = 0.0
        self._batches = Batches()

    # Set-up

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Start listening on `local_hostname`; 0, or -1.

        The address may carry a port, which is not used: `get_rpc_port` tells the real one. `metadata_server`:
        "P2PHANDSHAKE"; anything else means the same, as sessions are addresses here. `protocol` and
        `device_name` choose nothing: KVFerry takes the best transport that both sides have (setting
        `transfer.transports`). Once more ends the engine that was made before, with its registrations.
        """
        if protocol in _REFUSED_PROTOCOLS:
            logger.error("the protocol %r is not one of mooncake's Python module", protocol)
            return INVALID_ARGUMENT
        if metadata_server != "P2PHANDSHAKE":
            logger.info("metadata server %s is not used: sessions are addresses", metadata_server)
        try:
            options = options_for(local_hostname)
            if self._engine is not None:
                self._engine.close()
            self._engine = SessionEngine(options)
        except KVFerryError as error:
            logger.error("cannot listen on %s: %s", local_hostname, error)
            return INVALID_ARGUMENT
        self._timeout_s = timeout_s(options)
        return OK

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str
    ) -> int:
        """As `initialize`; `metadata_type` is not used either."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Return the port of this engine's session; 0 before `initialize`."""
        return 0 if self._engine is None else self._engine.port

    def get_engine(self) -> TransferEngine:
        """Return what `MooncakeDistributedStore.setup` takes as its engine."""
        return self

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Return what Mooncake returns on hosts without RDMA devices."""
        return "{}"

    def close(self) -> None:
        """End it, with its registrations; not one of Mooncake's methods. Idempotent."""
        if self._engine is not None:
            self._engine.close()

    # Memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Let sessions read and write this memory; 0, -7 if it overlaps with registered memory, else -1."""
        engine = self._engine
        if engine is None:
            return _uninitialised()
        if capacity > 0 and engine.overlaps(buffer_addr, capacity):
            logger.error("memory at %#x (%d bytes) overlaps with registered memory", buffer_addr, capacity)
            return ADDRESS_OVERLAPPED
        return engine_code(
            lambda: register(engine, buffer_addr, capacity, location), f"registering {buffer_addr:#x}"
        )

    def unregister_memory(self, buffer_addr: int) -> int:
        """End a registration; 0, or -3 if no registered memory begins there."""
        engine = self._engine
        if engine is None:
            return _uninitialised()
        return engine_code(lambda: engine.unregister(buffer_addr), f"unregistering {buffer_addr:#x}")

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Register all of these, or none: 0, or the code of the first that failed."""
        if len(buffer_addresses) != len(capacities):
            logger.error("%d addresses and %d lengths are given", len(buffer_addresses), len(capacities))
            return INVALID_ARGUMENT
        for index, (address, capacity) in enumerate(zip(buffer_addresses, capacities, strict=True)):
            code = self.register_memory(int(address), int(capacity), location)
            if code != OK:
                self.batch_unregister_memory(buffer_addresses[:index])
                return code
        return OK

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Unregister all of these; 0, or the code of the first that failed."""
        codes = [self.unregister_memory(int(address)) for address in buffer_addresses]
        return next((code for code in codes if code != OK), OK)

    def allocate_managed_buffer(self, length: int) -> int:
        """Return the address of registered memory; 0 if there is none to be had."""
        if self._engine is None:
            return 0
        try:
            return self._engine.allocate(length)
        except (KVFerryError, MemoryError) as error:
            logger.error("cannot allocate %d bytes: %s", length, error)
            return 0

    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Give back what `allocate_managed_buffer` returned; 0, or -3 if it did not."""
        engine = self._engine
        if engine is None:
            return _uninitialised()
        return engine_code(lambda: engine.free(buffer_addr), f"freeing {buffer_addr:#x}")

    def write_bytes_to_buffer(self, dest_address: int, src: bytes | str, length: int) -> int:
        """Copy the first `length` bytes of `src` into registered memory of this process; 0 or -1."""
        content = src.encode() if isinstance(src, str) else bytes(src)
        if self._engine is None or length > len(content):
            return INVALID_ARGUMENT
        try:
            self._engine.view(dest_address, length)[:] = content[:length]
        except KVFerryError as error:
            logger.error("cannot write: %s", error)
            return INVALID_ARGUMENT
        return OK

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Return a copy of registered memory of this process. Raises InvalidArgumentError or
        OutOfRangeError (ValueErrors) where Mooncake would read whatever lies there."""
        if self._engine is None:
            raise InvalidArgumentError("the engine is not initialized")
        return bytes(self._engine.view(source_address, length))

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Return where the memory begins that `segment_name` registered first; 0 if none, or not reached."""
        if self._engine is None:
            return 0
        try:
            return self._engine.first_address(segment_name)
        except KVFerryError as error:
            logger.error("%s cannot be asked for its memory: %s", segment_name, error)
            return 0

    # Transfers that are waited for: 0 or -1

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Copy our memory to the session's."""
        return self._move(
            target_hostname, TransferOpcode.Write, [buffer], [peer_buffer_address], [length], None
        )

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Copy the session's memory to ours."""
        return self._move(
            target_hostname, TransferOpcode.Read, [buffer], [peer_buffer_address], [length], None
        )

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Copy one run of bytes, then send `notify`."""
        return self._move(target_hostname, opcode, [buffer], [peer_buffer_address], [length], notify)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Copy many runs of our memory to the session's, as one plan."""
        return self._move(
            target_hostname, TransferOpcode.Write, buffers, peer_buffer_addresses, lengths, None
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Copy many runs of the session's memory to ours, as one plan."""
        return self._move(target_hostname, TransferOpcode.Read, buffers, peer_buffer_addresses, lengths, None)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Copy many runs as one plan, then send `notify`."""
        return self._move(target_hostname, opcode, buffers, peer_buffer_addresses, lengths, notify)

    def _move(
        self,
        session: str,
        opcode: Opcode,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
        notify: TransferNotify | None,
    ) -> int:
        engine = self._engine
        if engine is None:
            return _uninitialised()
        op = _OPS[opcode]
        try:
            engine.move(
                session, op, local, remote, lengths,
                timeout_s=self._limit_s(lengths), notify=encoded(notify),
            ).raise_if_failed()  # fmt: skip
        except KVFerryError as error:
            logger.error("%s of %d runs, session %s: %s", op, len(lengths), session, error)
            return INVALID_ARGUMENT
        return OK

    # Transfers that are asked after

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to copy to the session; see `batch_transfer_async`."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Write
        )

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to copy from the session; see `batch_transfer_async`."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Read
        )

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: Opcode,
        transport_hint: str = "",
    ) -> int:
        """Begin to copy; return what `get_batch_transfer_status` takes, 0 if the session cannot be reached or
        the lists differ in length. Wrong addresses are a transfer that fails."""
        engine = self._engine
        if engine is None or not len(buffers) == len(peer_buffer_addresses) == len(lengths):
            logger.error("an asynchronous transfer with %s cannot be started", target_hostname)
            return 0
        transfer: Transfer | None
        try:
            engine.connect(target_hostname)
        except KVFerryError as error:
            logger.error("%s cannot be reached: %s", target_hostname, error)
            return 0
        try:
            transfer = engine.start(
                target_hostname, _OPS[opcode], buffers, peer_buffer_addresses, lengths,
                timeout_s=self._limit_s(lengths),
            )  # fmt: skip
        except KVFerryError as error:
            logger.error("%s of %d runs, session %s: %s", _OPS[opcode], len(lengths), target_hostname, error)
            transfer = None
        return self._batches.keep(transfer)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Begin to copy one run; return what `transfer_check_status` takes, 0 if there is none."""
        return self.batch_transfer_async(
            target_hostname, [buffer], [peer_buffer_address], [length], TransferOpcode.Write
        )

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Wait until all of these are over, and forget them; 0 if every one was moved, else -1."""
        return OK if self._batches.wait_for(batch_ids) else INVALID_ARGUMENT

    def transfer_check_status(self, batch_id: int) -> int:
        """Look at a transfer: 1 moved, 0 under way, -1 failed. After 1 and -1 it is forgotten."""
        moved = self._batches.ask(batch_id)
        return 0 if moved is None else 1 if moved else INVALID_ARGUMENT

    # The rest

    def send_probe(self, peer_server_name: str) -> int:
        """Ask a session for an answer; 0, or less if there is none."""
        engine = self._engine
        if engine is None:
            return _uninitialised()
        return engine_code(lambda: engine.probe(peer_server_name), f"probing {peer_server_name}")

    def get_notifies(self) -> list[TransferNotify]:
        """Return the messages that came with transfers since the last call, in order of arrival."""
        if self._engine is None:
            return []
        return received(self._engine)

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Connect to a session ahead of time; 0, or less if it cannot be reached."""
        return self.send_probe(segment_name)

    def _limit_s(self, lengths: Sequence[int]) -> float:
        return self._timeout_s + float(sum(lengths)) / _LINE_BYTES_PER_S


def _uninitialised() -> int:
    logger.error("the engine is not initialized")
    return INVALID_ARGUMENT
