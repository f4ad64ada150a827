"""A hand-made wire client that may lie. docs/wire-format.md has the tables."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

from kvferry.transfer import Endpoint

MAGIC, VERSION = b"KVF1", 1
HELLO, HELLO_ACK, AUTH, ERROR, REGIONS_REQUEST, REGIONS, MESSAGE, PING, PONG, GOODBYE = range(1, 11)
READ, READ_DATA, WRITE, WRITE_ACK = range(11, 15)
REQUEST = 1 << 32 | 1  # the first of the data connection that its initiator numbered 1
CONTROL, TCP_DATA, SHM_ATTACH = 1, 2, 3
ENDPOINT = b"\x0b127.0.0.1:9"  # where nobody is; the engine only remembers it
HEADER = struct.Struct("<4sBBHIIQ")


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Castagnoli, as the header carries it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def frame(kind: int, body: bytes = b"", *, request: int = 0, **lies: int | bytes) -> bytes:
    """Header and body; `lies` replaces magic, version, flags, length or crc."""
    header = HEADER.pack(
        lies.get("magic", MAGIC),
        lies.get("version", VERSION),
        kind,
        lies.get("flags", 0),
        lies.get("length", len(body)),
        lies.get("crc", crc32c(body)),
        request,
    )
    return header + body


def hello(
    purpose: int, *, node: bytes = b"", expected: bytes = bytes(16), versions: tuple[int, int] = (1, 1)
) -> bytes:
    """A HELLO body of a node that exists nowhere."""
    host = os.urandom(16) + struct.pack("<QQ", 1, 1)
    return (
        bytes([*versions, purpose, 0])
        + (node or os.urandom(16))
        + expected
        + host
        + os.urandom(32)
        + ENDPOINT
        + b"\0"
        + struct.pack("<I", 0)
    )


def piece(region: int, generation: int, offset: int, length: int) -> bytes:
    """One descriptor of READ and WRITE."""
    return struct.pack("<IIQQ", region, generation, offset, length)


def request(*pieces: bytes, count: int | None = None) -> bytes:
    """A READ or WRITE body."""
    return struct.pack("<II", len(pieces) if count is None else count, 0) + b"".join(pieces)


@contextlib.contextmanager
def data_connection(endpoint: Endpoint | str, timeout_s: float = 10.0) -> Iterator[Attacker]:
    """A data connection of a node that has a control connection, as the engine demands."""
    node = os.urandom(16)
    with Attacker(endpoint, timeout_s) as control, Attacker(endpoint, timeout_s) as data:
        control.handshake(CONTROL, node)
        data.handshake(TCP_DATA, node)
        yield data


class Attacker:
    """A connection on which anything may be sent."""

    def __init__(self, endpoint: Endpoint | str, timeout_s: float = 10.0) -> None:
        address = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.socket = socket.create_connection((address.host, address.port), timeout=timeout_s)

    def send(self, data: bytes) -> None:
        """Send as much as the other side takes."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self) -> tuple[int, bytes] | None:
        """One frame (type, body), or None at the end of the connection."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        _magic, _version, kind, _flags, length, _crc, _request = HEADER.unpack(header)
        body = self._exactly(length)
        return None if body is None else (kind, body)

    def _exactly(self, length: int) -> bytes | None:
        data = b""
        while len(data) < length:
            try:
                more = self.socket.recv(length - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def handshake(self, purpose: int, node: bytes = b"") -> None:
        """A correct handshake without a secret."""
        self.send(frame(HELLO, hello(purpose, node=node)))
        answer = self.receive()
        assert answer is not None
        assert answer[0] == HELLO_ACK, answer
        self.send(frame(AUTH, bytes(32)))
        if purpose == CONTROL:
            answer = self.receive()
            assert answer is not None
            assert answer[0] == REGIONS, answer

    def closed(self) -> bool:
        """Read until the other side closes; False if it does not within the timeout."""
        try:
            while self.receive() is not None:
                pass
        except TimeoutError:
            return False
        return True

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
