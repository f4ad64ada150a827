"""A TCP relay between two engines that counts what passes, and can be slow, or cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Relay:
    """Listens on a free port of 127.0.0.1 and passes each connection on to the same port of 127.0.0.2.

    So the engine behind it binds `target_endpoint` and advertises `endpoint`. `forward` and `backward` count
    the bytes towards it and from it. `backward_bytes_per_s`: how many from it may pass at most; 0: as many as
    there are. `close` ends all.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.endpoint, self.target_endpoint = f"127.0.0.1:{self._port}", f"127.0.0.2:{self._port}"
        self.forward = self.backward = 0
        self.backward_bytes_per_s = 0
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _address = self._listener.accept()
            except OSError:  # closed
                return
            far = socket.create_connection(("127.0.0.2", self._port), timeout=60)
            far.settimeout(None)
            self._keep(near, far)
            self._start(near, far, "forward")
            self._start(far, near, "backward")

    def _keep(self, *sockets: socket.socket) -> None:
        for one in sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets += sockets

    def _start(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        thread = threading.Thread(target=self._pass_on, args=(source, target, direction))
        thread.start()
        self._threads.append(thread)

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                with self._lock:
                    setattr(self, direction, getattr(self, direction) + len(data))
                if direction == "backward" and self.backward_bytes_per_s:
                    self._wait_for_turn(len(data))
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _wait_for_turn(self, count: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / self.backward_bytes_per_s
            pause_s = self._free_at - time.monotonic()
        time.sleep(max(pause_s, 0.0))

    def cut(self) -> None:
        """Break the connections that are open now; new ones pass."""
        with self._lock:
            cut, self._sockets = self._sockets, []
        for one in cut:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(60)
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
