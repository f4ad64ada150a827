"""A hand-made wire client that may lie. docs/wire-format.md has the tables."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
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
    purpose: int,
    *,
    node: bytes = b"",
    expected: bytes = bytes(16),
    versions: tuple[int, int] = (1, 1),
    has_secret: bool = False,
) -> bytes:
    """A HELLO body of a node that exists nowhere."""
    host = os.urandom(16) + struct.pack("<QQ", 1, 1)
    return (
        bytes([*versions, purpose, has_secret])
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
def data_connection(endpoint: Endpoint | str, timeout_s: float = 60.0) -> Iterator[Attacker]:
    """A data connection of a node that has a control connection, as the engine demands."""
    node = os.urandom(16)
    with Attacker(endpoint, timeout_s) as control, Attacker(endpoint, timeout_s) as data:
        control.handshake(CONTROL, node)
        data.handshake(TCP_DATA, node)
        yield data


class Attacker:
    """A connection on which anything may be sent."""

    def __init__(self, endpoint: Endpoint | str, timeout_s: float = 60.0) -> None:
        address = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.endpoint = endpoint
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


INITIATOR, ACCEPTOR = 1, 2
TAG_BYTES = 16


def proof(secret: bytes, role: int, hello_body: bytes, ack_body: bytes) -> bytes:
    """The proof of the secret in a handshake without TLS."""
    head = b"kvferry handshake 1" + bytes([role, 0]) + struct.pack("<I", len(hello_body))
    return hmac.digest(secret, head + hello_body + ack_body[:-32], "sha256")


def frame_key(secret: bytes, sender: int, hello_body: bytes, ack_body: bytes) -> bytes:
    """The key for the tags of what `sender` sends (HKDF, one block)."""
    salt = hello_body[68:100] + ack_body[52:84]
    info = b"kvferry frames 1" + bytes([sender, hello_body[2]]) + hello_body[4:20] + ack_body[4:20]
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


class Member(Attacker):
    """Somebody who knows the secret: a member of the cluster, or who records and changes what one sends."""

    def __init__(self, endpoint: Endpoint | str, secret: bytes, timeout_s: float = 60.0) -> None:
        super().__init__(endpoint, timeout_s)
        self.secret = secret
        self._sent = self._received = 0
        self._send_key = self._receive_key = b""

    def handshake(self, purpose: int, node: bytes = b"") -> None:
        """A correct handshake; everything that follows has tags."""
        greeting = hello(purpose, node=node, has_secret=True)
        self.send(frame(HELLO, greeting))
        answer = self.receive()
        assert answer is not None
        assert answer[0] == HELLO_ACK, answer
        ack = answer[1]
        assert hmac.compare_digest(ack[-32:], proof(self.secret, ACCEPTOR, greeting, ack))
        self.send(frame(AUTH, proof(self.secret, INITIATOR, greeting, ack)))
        self._send_key = frame_key(self.secret, INITIATOR, greeting, ack)
        self._receive_key = frame_key(self.secret, ACCEPTOR, greeting, ack)
        if purpose == CONTROL:
            assert self.receive_tagged()[0] == REGIONS

    def _tag(self, key: bytes, sender: int, number: int, data: bytes) -> bytes:
        return hmac.digest(key, bytes([sender]) + struct.pack("<Q", number) + data, hashlib.sha256)[
            :TAG_BYTES
        ]

    def tagged(self, kind: int, body: bytes = b"", *, request: int = 0) -> bytes:
        """The next frame of this side, with its tag; frames count as they are made."""
        data = frame(kind, body, request=request)
        number, self._sent = self._sent, self._sent + 1
        return data + self._tag(self._send_key, INITIATOR, number, data)

    def receive_tagged(self) -> tuple[int, bytes]:
        """The next frame without payload of the other side; its tag must be right."""
        header = self._exactly(HEADER.size)
        assert header is not None
        body = self._exactly(HEADER.unpack(header)[4])
        assert body is not None
        number, self._received = self._received, self._received + 1
        assert self._exactly(TAG_BYTES) == self._tag(self._receive_key, ACCEPTOR, number, header + body)
        return header[5], body
