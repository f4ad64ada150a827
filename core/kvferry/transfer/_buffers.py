"""Where an object's bytes lie: buffer protocol, numpy arrays, torch tensors and storages, told apart by
shape."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from kvferry import _native
from kvferry.errors import InvalidArgumentError, UnsupportedError


class HostMemory(NamedTuple):
    """A contiguous range of this process's memory. `owner` must live as long as the range is used."""

    address: int
    length_bytes: int
    read_only: bool
    owner: object


def host_memory(buffer: Any) -> HostMemory:
    """Return the memory of `buffer` without copying it.

    Accepts what has `data_ptr()` and `nbytes` (torch tensors and untyped storages; torch itself is never
    imported) and whatever supports the buffer protocol (bytearray, memoryview, mmap, array, numpy). Raises
    `InvalidArgumentError` for non-contiguous or empty memory and objects without memory, `UnsupportedError`
    for device memory.
    """
    found = _tensor_memory(buffer) if hasattr(buffer, "data_ptr") else _buffer_memory(buffer)
    if found.length_bytes == 0 or found.address == 0:
        raise InvalidArgumentError(f"an empty {_type(buffer)} has no memory to register")
    return found


def _type(buffer: object) -> str:
    return f"{type(buffer).__module__}.{type(buffer).__qualname__}".removeprefix("builtins.")


def _refuse_device(buffer: object, place: str) -> None:
    raise UnsupportedError(
        f"this {_type(buffer)} lies in device memory ({place}); this version moves host memory only: "
        "copy it to the host first"
    )


def _refuse_gaps(buffer: object) -> None:
    raise InvalidArgumentError(
        f"this {_type(buffer)} is not contiguous; register the memory that holds it, or a contiguous copy"
    )


def _tensor_memory(tensor: Any) -> HostMemory:
    device = getattr(tensor, "device", None)
    place = str(getattr(device, "type", device or "cpu"))
    if place != "cpu":
        _refuse_device(tensor, str(device))
    if hasattr(tensor, "is_contiguous") and not tensor.is_contiguous():
        _refuse_gaps(tensor)
    length = tensor.nbytes() if callable(tensor.nbytes) else tensor.nbytes
    return HostMemory(int(tensor.data_ptr()), int(length), read_only=False, owner=tensor)


def _buffer_memory(buffer: Any) -> HostMemory:
    if hasattr(buffer, "__cuda_array_interface__"):
        _refuse_device(buffer, "CUDA array interface")
    if getattr(getattr(buffer, "dtype", None), "hasobject", False):
        raise InvalidArgumentError(f"this {_type(buffer)} holds references to Python objects, not plain data")
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:  # also dtypes that the buffer protocol cannot express, such as bfloat16
        if not buffer.flags.forc:
            _refuse_gaps(buffer)
        address, read_only = interface["data"]
        return HostMemory(int(address), int(buffer.nbytes), read_only=bool(read_only), owner=buffer)
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise InvalidArgumentError(
            f"a {_type(buffer)} has no memory to register: give a buffer, numpy array or torch tensor"
        ) from error
    if not view.contiguous:
        _refuse_gaps(buffer)
    return HostMemory(_native.buffer_address(view), view.nbytes, read_only=view.readonly, owner=view)


def view_of(address: int, length_bytes: int) -> memoryview:
    """Return a writable view of memory that someone else keeps alive."""
    array = (ctypes.c_ubyte * length_bytes).from_address(address)
    return memoryview(array).cast("B")
