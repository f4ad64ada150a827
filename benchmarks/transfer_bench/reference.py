"""Compiles reference.c once per content, and the memory that the benchmark moves."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path

import numpy as np
from tools import cache
from tools.progress import run_logged

SOURCE = Path(__file__).with_name("reference.c")
FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")
OPS = {"read": 0, "write": 1}


def _compiled() -> Path:
    def build(folder: Path) -> None:
        log = cache.cache_root() / "logs" / "transfer-reference.log"
        command = ["gcc", *FLAGS, "-o", folder / "reference.so", SOURCE]
        run_logged(command, log, "compiling the raw references", timeout_s=120.0)

    return cache.ensure("transfer-reference", cache.digest(SOURCE, *FLAGS), build) / "reference.so"


@functools.cache
def library() -> ctypes.CDLL:
    """The references as functions; a call releases the interpreter lock."""
    loaded = ctypes.CDLL(str(_compiled()))
    number, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    signatures = {
        "fill_blocks": (None, [pointer, pointer, size, size, ctypes.c_uint64]),
        "check_blocks": (ctypes.c_int64, [pointer, pointer, pointer, size, size, ctypes.c_uint64]),
        "has_streaming_copy": (number, []),
        "copy_blocks": (None, [pointer, pointer, pointer, pointer, size, size]),
        "stream_blocks": (None, [pointer, pointer, pointer, pointer, size, size]),
        "vm_blocks": (number, [number, number, pointer, pointer, pointer, pointer, size, size]),
        "prepare_stream": (None, [number]),
        "serve_stream": (None, [number, pointer, size]),
        "streams_open": (pointer, [ctypes.POINTER(number), number]),
        "streams_move": (number, [pointer, number, pointer, pointer, pointer, size, size]),
        "streams_close": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def fill(memory: np.ndarray, blocks: np.ndarray, size: int, salt: int) -> None:
    """Write each block's own pattern into it."""
    library().fill_blocks(memory.ctypes.data, blocks.ctypes.data, len(blocks), size, salt)


def first_wrong(memory: np.ndarray, at: np.ndarray, of: np.ndarray, size: int, salt: int) -> int:
    """Position of the first block in `at` without the pattern of the block in `of`; -1 if there is none."""
    return int(
        library().check_blocks(memory.ctypes.data, at.ctypes.data, of.ctypes.data, len(at), size, salt)
    )


def private_memory(length: int) -> np.ndarray:
    """Touched memory of this process, in huge pages where the kernel gives them."""
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return _touched(mapping)


def shared_memory(length: int) -> tuple[np.ndarray, int]:
    """Touched memory in a memfd, and the descriptor by which another process maps it."""
    fd = os.memfd_create("transfer-reference")
    os.ftruncate(fd, length)
    return _touched(_shared(fd, length)), fd


def map_shared(pid: int, fd: int, length: int) -> np.ndarray:
    """Map the memfd of another process of the same user."""
    here = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    try:
        return np.frombuffer(_shared(here, length), dtype=np.uint8)
    finally:
        os.close(here)


def _shared(fd: int, length: int) -> mmap.mmap:
    mapping = mmap.mmap(fd, length)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _touched(mapping: mmap.mmap) -> np.ndarray:
    array = np.frombuffer(mapping, dtype=np.uint8)
    array[:: mmap.PAGESIZE] = 1
    return array
