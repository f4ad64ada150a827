"""Links between two engines that can be broken and mended: a relay per rail.

The engines do not know of them: the relay of the control connection replaces the rails that the answer to
the hello tells by the relays' addresses. That works without a cluster secret only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import _wire as wire
from kvferry.transfer import Endpoint

_FIXED_ACK_BYTES = 4 + 16 + 32 + 32  # before the endpoint


class _Relay:
    """Listens on a free port of `host` and passes every connection on to `target`."""

    def __init__(self, host: str, target: Endpoint) -> None:
        self._target = (target.host, target.port)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []  # guarded by _lock, as is the next
        self._broken: list[socket.socket] = []  # threads may still use them
        self._threads: list[threading.Thread] = []
        self._flows = threading.Event()  # cleared: bytes are taken and not passed on
        self._flows.set()
        self._listener: socket.socket | None = None
        self.address = (host, 0)
        self.restore()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"{self.address[0]}:{self.address[1]}"

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            broken, self._open = self._open, []
            self._broken += broken
        for one in broken:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Pass nothing on from now on, and say nothing of it."""
        self._flows.clear()

    def restore(self) -> None:
        """Work as at the beginning."""
        self._flows.set()
        if self._listener is None:
            self._listener = socket.create_server(self.address)
            self.address = self._listener.getsockname()[:2]
            self._run(self._accept, self._listener)

    def close(self) -> None:
        """End everything."""
        self._flows.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for one in self._broken:
            one.close()

    def _run(self, body: object, *args: object) -> None:
        thread = threading.Thread(target=body, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _address = listener.accept()
            except OSError:  # closed
                return
            far = socket.create_connection(self._target, timeout=60)
            far.settimeout(None)
            with self._lock:
                self._open += [near, far]
            self._run(self._pass_on, near, far)
            self._run(self._pass_back, far, near)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        self._pass_on(source, target)


class RailRelays(_Relay):
    """The relay of the control connection to `target`; `rails`: those of its rails, once it is connected."""

    def __init__(self, target: Endpoint) -> None:
        self.rails: list[_Relay] = []
        super().__init__("127.0.0.1", target)

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            header = stream.read(wire.HEADER.size)
            _magic, _version, kind, _flags, length, _crc, _request = wire.HEADER.unpack(header)
            assert kind == wire.HELLO_ACK
            target.sendall(wire.frame(kind, self._with_relays(stream.read(length))))
            while data := stream.read1(1 << 18):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _with_relays(self, ack: bytes) -> bytes:
        at = _FIXED_ACK_BYTES
        for _text in ("endpoint", "shm name"):
            at += 1 + ack[at]
        told = ack[:at]
        (count,) = struct.unpack_from("<I", ack, at)
        at += 4
        told += struct.pack("<I", count)
        for _rail in range(count):
            speed = ack[at : at + 4]
            length = ack[at + 4]
            endpoint = Endpoint(ack[at + 5 : at + 5 + length].decode())
            at += 5 + length
            relay = _Relay(endpoint.host, endpoint)
            self.rails.append(relay)
            told += speed + bytes([len(relay.endpoint)]) + relay.endpoint.encode()
        return told + ack[at:]

    def close(self) -> None:
        """End everything."""
        for rail in self.rails:
            rail.close()
        super().close()

    def __enter__(self) -> RailRelays:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
