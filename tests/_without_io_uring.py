"""Runs code where the kernel forbids io_uring, as the seccomp filters of containers do.

python -m tests._without_io_uring CODE
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF
ALLOW, FAIL = 0x7FFF0000, 0x00050000
IO_URING_SETUP = 425  # on every architecture


def forbid_io_uring() -> None:
    """For this process and its children, for ever. Raises OSError."""
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (LOAD_WORD, 0, 0, 0),  # the number of the system call
            (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
            (RETURN, 0, 0, FAIL | errno.EPERM),
            (RETURN, 0, 0, ALLOW),
        )
    )
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    for call in (
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.c_char_p(header), zero, zero),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "cannot install the filter")


if __name__ == "__main__":
    forbid_io_uring()
    exec(sys.argv[1])
