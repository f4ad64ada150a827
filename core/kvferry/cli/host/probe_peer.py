"""The two processes of the memory probe; run as a file, with the standard library only.

`owner`: makes a buffer, prints its address, allows the process whose id it reads from stdin to copy from it
(as the transport does), and stays until stdin ends. `reader`: prints its process id, reads the owner's id and
address from stdin, copies the buffer with process_vm_readv, and prints the errno.
"""

import ctypes
import os
import sys

PATTERN = bytes(range(256)) * 16
PR_SET_PTRACER = 0x59616D61


class Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def own() -> None:
    """Own the buffer until stdin ends."""
    buffer = ctypes.create_string_buffer(PATTERN, len(PATTERN))
    sys.stdout.write(f"{ctypes.addressof(buffer)}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(int(line)), 0, 0, 0)
        sys.stdout.write("allowed\n")
        sys.stdout.flush()


def read() -> int:
    """Copy the owner's buffer; return the errno, 0 if it went well."""
    pid, address = (int(word) for word in sys.stdin.readline().split())
    libc = ctypes.CDLL(None, use_errno=True)
    target = ctypes.create_string_buffer(len(PATTERN))
    local = Span(ctypes.addressof(target), len(PATTERN))
    remote = Span(address, len(PATTERN))
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    copied = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if copied < 0:
        return ctypes.get_errno()
    return 0 if copied == len(PATTERN) and target.raw == PATTERN else 5  # EIO


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        own()
    else:
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{read()}\n")
