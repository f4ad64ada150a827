"""Who is at the other end of a connection of this machine, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path


def is_same_user(caller: tuple[str, int], ours: tuple[str, int]) -> bool:
    """Say whether a loopback connection from `caller` to `ours` (addresses and ports) was made by this
    process's user, or by root. False if the kernel knows no such connection.
    """
    return _owner(caller, ours) in (0, os.geteuid())


def _owner(caller: tuple[str, int], ours: tuple[str, int]) -> int | None:
    table = Path("/proc/net/tcp6" if ":" in caller[0] else "/proc/net/tcp")
    wanted = [_as_listed(*caller), _as_listed(*ours)]
    with table.open(encoding="ascii") as lines:
        next(lines)  # the headings
        for line in lines:
            columns = line.split()
            if columns[1:3] == wanted:
                return int(columns[7])
    return None


def _as_listed(host: str, port: int) -> str:
    """Return an address as the table has it: 32-bit words in the machine's byte order, in hexadecimal."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
