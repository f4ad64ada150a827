"""Real probes of what the transports need: copying between two processes, memory files, sockets."""

from __future__ import annotations

import array
import errno
import importlib
import mmap
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kvferry.cli.host.children import Child
from kvferry.cli.host.kernel import in_container
from kvferry.cli.host.model import Check, Level
from kvferry.errors import KVFerryError

_PEER_COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("probe_peer.py")))
_TIMEOUT_S = 10.0
_WORD = b"kvferry probe"


def probe_process_copy() -> str:
    """Copy 4 KiB from one child process to another, as two engines would; return "" or why it failed."""
    try:
        with Child(_PEER_COMMAND, "owner") as owner, Child(_PEER_COMMAND, "reader") as reader:
            address, reader_pid = owner.line(_TIMEOUT_S), reader.line(_TIMEOUT_S)
            owner.tell(reader_pid)
            if owner.line(_TIMEOUT_S) != "allowed":
                return "the owner process ended early"
            reader.tell(f"{owner.pid} {address}")
            error = int(reader.line(_TIMEOUT_S))
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        return f"the probe could not run: {failure}"
    return os.strerror(error) if error else ""


def probe_memory_file() -> str:
    """Pass a memory file over an abstract unix socket and map it; return "" or the reason it failed."""
    name = f"\0kvferry-doctor-{secrets.token_hex(8)}"
    try:
        descriptor = os.memfd_create("kvferry-doctor", os.MFD_CLOEXEC)
    except OSError as error:
        return f"memfd_create: {error.strerror}"
    with os.fdopen(descriptor, "wb") as file, socket.socket(socket.AF_UNIX) as listener:
        file.write(_WORD)
        file.flush()
        try:
            return _pass_descriptor(listener, name, file.fileno())
        except OSError as error:
            return f"abstract unix socket: {error.strerror or error}"


def _pass_descriptor(listener: socket.socket, name: str, descriptor: int) -> str:
    listener.settimeout(_TIMEOUT_S)
    listener.bind(name)
    listener.listen(1)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        client.connect(name)
        server, _ = listener.accept()
        with server:
            server.settimeout(_TIMEOUT_S)
            socket.send_fds(server, [b"x"], [descriptor])
            _, received, _, _ = socket.recv_fds(client, 1, 1)
            pid = array.array("i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with (
        os.fdopen(received[0], "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
    ):
        if view[:] != _WORD:
            return "the mapped memory file has other content"
    return "" if pid == os.getpid() else "the kernel does not tell the peer's process id"


def probe_tcp(family: socket.AddressFamily, address: str) -> str:
    """Send a word through a loopback connection; return "" or the reason it failed."""
    try:
        with socket.socket(family) as listener:
            listener.settimeout(_TIMEOUT_S)
            listener.bind((address, 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname()[:2], timeout=_TIMEOUT_S) as client:
                server, _ = listener.accept()
                with server:
                    server.settimeout(_TIMEOUT_S)
                    client.sendall(_WORD)
                    return "" if server.recv(len(_WORD)) == _WORD else "other bytes arrived"
    except OSError as error:
        return error.strerror or str(error)


def check_tcp(ipv4: str, ipv6: str) -> Check:
    """Report the tcp transport from the results of two probes."""
    details = {"ipv4": ipv4 or "ok", "ipv6": ipv6 or "ok"}
    if ipv4 and ipv6:
        fix = "ip link set lo up"
        return Check("transport tcp", Level.ERROR, f"no loopback connection: {ipv4}", fix, details)
    words = " and ".join(name for name, reason in (("IPv4", ipv4), ("IPv6", ipv6)) if not reason)
    return Check("transport tcp", Level.OK, f"{words} loopback", "", details)


def find_tls_library() -> str:
    """Return the version of the library for TLS. `KVFerryError`, ImportError when there is none."""
    return str(importlib.import_module("kvferry._native").tls_library())


def check_tls(find: Callable[[], str] = find_tls_library) -> Check:
    """Report whether `transfer.tls` could be switched on here."""
    try:
        version = find()
    except ImportError:
        return Check("TLS", Level.NOTE, "not looked for: the native module cannot be loaded")
    except KVFerryError as error:
        return Check("TLS", Level.NOTE, str(error))
    return Check("TLS", Level.OK, f"{version}, for transfer.tls", "", {"library": version})


def check_shm(process_copy: str, memory_file: str, root: Path) -> Check:
    """Report the shm transport from the results of two probes."""
    details = {"process_copy": process_copy or "ok", "memory_file": memory_file or "ok"}
    if not process_copy and not memory_file:
        return Check("transport shm", Level.OK, "copy between processes and shared memory files", "", details)
    if process_copy:
        permitted = os.strerror(errno.EPERM) not in process_copy
        fix = "" if permitted else _copy_fix(root)
        words = f"memory of engines cannot be copied between processes ({process_copy}); tcp is used instead"
        return Check("transport shm", Level.WARNING, words, fix, details)
    words = f"shared memory files do not work ({memory_file}); engines' own memory is copied all the same"
    return Check("transport shm", Level.WARNING, words, "", details)


def _copy_fix(root: Path) -> str:
    if in_container(root):
        return "docker run --cap-add SYS_PTRACE ... (Kubernetes: securityContext.capabilities.add)"
    return "sudo sysctl -w kernel.yama.ptrace_scope=1"
