"""Memory and peers as programs name them that know nothing but pointers and `host:port`, as Mooncake's do."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry._native import Endpoint
from kvferry.config import TransferOptions, resolve_host
from kvferry.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from kvferry.transfer._buffers import view_of
from kvferry.transfer.addressed import AddressedEngine, Addresses
from kvferry.transfer.engine import Engine, Op
from kvferry.transfer.handle import Transfer
from kvferry.transfer.peer import Peer

# On Ascend an address may be followed by a device.
_SESSION = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+):(?P<port>\d{1,5})(:npu_\d+)?")
_SPACE = 1 << 64
_PAGE = 4096

Numbers = Sequence[int] | np.ndarray


class SessionEngine(AddressedEngine):
    """An `AddressedEngine` with an engine of its own, whose sessions are `host:port`, its own included.

    Whoever listens there now is meant: a process that was started anew at the same address is the same
    session. Registrations do not overlap, and one range is registered once. Thread-safe.
    """

    def __init__(self, options: TransferOptions | None = None) -> None:
        """Start listening. Raises what `Engine` raises."""
        super().__init__(Engine(options))
        self._registering = threading.Lock()  # held from the look for overlaps to the end of a registration
        self._managed: dict[int, np.ndarray] = {}

    @property
    def session(self) -> str:
        """What names this engine to its peers."""
        return str(self.engine.endpoint)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.engine.endpoint.port

    def add(self, address: int, length_bytes: int, *, device: str = "cpu") -> None:
        """Let peers read and write this memory, which must stay valid until `unregister`.

        Raises `InvalidArgumentError` (no memory, or it overlaps with a registration) and what
        `Engine.register` raises.
        """
        if address <= 0 or length_bytes <= 0 or address + length_bytes >= _SPACE:
            raise InvalidArgumentError(f"{length_bytes} bytes at {address:#x} are no memory to register")
        with self._registering:
            if self.overlaps(address, length_bytes):
                raise InvalidArgumentError(
                    f"{length_bytes} bytes at {address:#x} overlap with registered memory"
                )
            self.register(address, length_bytes, device=device)

    def overlaps(self, address: int, length_bytes: int) -> bool:
        """Say whether a registration holds one of these bytes."""
        with self._lock:
            return any(
                start < address + length_bytes and address < start + length
                for start, length in self._registered
            )

    def allocate(self, length_bytes: int) -> int:
        """Return the address of zeroed, registered memory of at least that size, to be given to `free`."""
        size = max(length_bytes, 1)
        array = np.zeros(size + _PAGE, np.uint8)
        address = -(-array.ctypes.data // _PAGE) * _PAGE
        self.add(address, size)
        self._managed[address] = array
        return address

    def free(self, address: int) -> None:
        """Give back what `allocate` returned. Raises `NotFoundError`, `DeadlineExceededError`."""
        if address not in self._managed:
            raise NotFoundError(f"nothing was allocated at {address:#x}")
        self.unregister(address)
        self._managed.pop(address, None)

    def view(self, address: int, length_bytes: int) -> memoryview:
        """Return registered host memory as a writable view, valid as long as it is registered.

        Raises `OutOfRangeError` for memory that is not registered, or not the host's.
        """
        with self._lock:
            for (start, length), held in self._registered.items():
                if start <= address and address + length_bytes <= start + length and held[0].kind == "host":
                    return view_of(address, length_bytes)
        raise OutOfRangeError(f"{length_bytes} bytes at {address:#x} are no registered memory of this host")

    def move(
        self,
        session: str,
        op: Op,
        local: Numbers,
        remote: Numbers,
        lengths: Numbers,
        *,
        timeout_s: float | None = None,
        notify: bytes = b"",
    ) -> Transfer:
        """As `execute`, for sequences of whole numbers. `InvalidArgumentError` if they are not alike."""
        pieces = _pieces(local, remote, lengths)
        return self.execute(session, op, *pieces, timeout_s=timeout_s, notify=notify)

    def start(
        self,
        session: str,
        op: Op,
        local: Numbers,
        remote: Numbers,
        lengths: Numbers,
        *,
        timeout_s: float | None = None,
    ) -> Transfer:
        """As `move`, but return the transfer while it is under way; only connecting is waited for."""
        plan = self.prepare(session, op, *_pieces(local, remote, lengths))
        return self.engine.submit(plan, timeout_s=timeout_s)

    def first_address(self, session: str) -> int:
        """Return where the region begins that `session` registered first; 0 if it has none."""
        return self._look_again(session, self.connect(session)).map.first

    def probe(self, session: str) -> None:
        """Ask `session` for an answer; raise why there is none, as `Engine.connect` and `Peer.refresh` do."""
        self._look_again(session, self.connect(session))

    def _connect(self, session: str, timeout_s: float) -> Peer:
        endpoint = resolve_session(session)
        own = self.engine.endpoint
        if endpoint == own or (own.is_wildcard and endpoint.is_loopback and endpoint.port == own.port):
            return self.engine.self_peer
        return self.engine.connect(endpoint, timeout_s=timeout_s)

    def close(self) -> None:
        """End the engine, with its registrations; idempotent."""
        self.engine.close()
        self._managed.clear()


def resolve_session(session: str) -> Endpoint:
    """Return the address that `host:port` stands for; host names are looked up.

    Raises `InvalidArgumentError` for other text, `UnavailableError` for a name that nobody knows.
    """
    match = _SESSION.fullmatch(session)
    if match is None:
        raise InvalidArgumentError(f"the session {session!r} is not of the form host:port")
    return Endpoint(f"{resolve_host(match['host'])}:{match['port']}")


def _pieces(local: Numbers, remote: Numbers, lengths: Numbers) -> tuple[Addresses, Addresses, Addresses]:
    pieces = (_array(local), _array(remote), _array(lengths))
    sizes = [array.size for array in pieces]
    if len(set(sizes)) > 1:
        raise InvalidArgumentError(
            f"{sizes[0]} local addresses, {sizes[1]} remote ones and {sizes[2]} lengths do not go together"
        )
    return pieces


def _array(values: Any) -> Addresses:
    """Return numbers as uint64. Raises `InvalidArgumentError` for negative ones and for what is no number."""
    try:
        if not isinstance(values, np.ndarray):
            return np.array(values, np.uint64).reshape(-1)
        if values.size and (values.dtype.kind not in "iu" or values.min() < 0):
            raise InvalidArgumentError(
                f"addresses and lengths are whole numbers of at least 0, not {values!r}"
            )
        return values.astype(np.uint64, copy=False).reshape(-1)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"these are no addresses or lengths: {error}") from error
