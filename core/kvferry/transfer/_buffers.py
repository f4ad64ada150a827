"""Where an object's bytes lie: buffer protocol, numpy arrays, torch tensors and storages, told apart by
shape."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, NamedTuple

from kvferry import _native
from kvferry.errors import InvalidArgumentError, UnsupportedError

# What torch calls a device, and the kind of its memory. A ROCm build of torch says "cuda", too.
_KINDS = {"cpu": "host", "cuda": "cuda", "npu": "ascend"}


class Memory(NamedTuple):
    """A contiguous range of memory. `owner` must live as long as the range is used."""

    address: int
    length_bytes: int
    read_only: bool
    owner: object
    kind: str = "host"  # or "cuda", "hip", "ascend"


def memory_of(buffer: Any) -> Memory:
    """Return the memory of `buffer` without copying it.

    Accepts what has `data_ptr()` and `nbytes` (torch tensors and untyped storages; torch itself is never
    imported), what has `__cuda_array_interface__` (cupy, numba), and whatever supports the buffer protocol
    (bytearray, memoryview, mmap, array, numpy). Raises `InvalidArgumentError` for non-contiguous or empty
    memory, torch tensors whose bytes are not their values (sparse, or conjugated or negated lazily) and
    objects without memory, `UnsupportedError` for devices that KVFerry does not know.
    """
    found = _tensor_memory(buffer) if hasattr(buffer, "data_ptr") else _buffer_memory(buffer)
    if found.length_bytes == 0 or found.address == 0:
        raise InvalidArgumentError(f"an empty {_type(buffer)} has no memory to register")
    return found


def _type(buffer: object) -> str:
    return f"{type(buffer).__module__}.{type(buffer).__qualname__}".removeprefix("builtins.")


def _kind_of(buffer: object, device: str) -> str:
    kind = _KINDS.get(device)
    if kind is None:
        raise UnsupportedError(
            f"this {_type(buffer)} lies in memory of a {device!r} device, which no driver here reaches: "
            "copy it to the host first"
        )
    if kind == "cuda" and getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None):
        return "hip"
    return kind


def _refuse_gaps(buffer: object) -> None:
    raise InvalidArgumentError(
        f"this {_type(buffer)} is not contiguous; register the memory that holds it, or a contiguous copy"
    )


def _refuse_other_values(tensor: Any) -> None:
    """Refuse torch tensors whose values are not simply what their memory holds."""
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise InvalidArgumentError(
            f"this {_type(tensor)} of layout {layout} has no memory of its own: give its parts, or to_dense()"
        )
    for bit in ("conj", "neg"):  # views that torch computes when they are read
        is_set = getattr(tensor, f"is_{bit}", None)
        if is_set is not None and is_set():
            raise InvalidArgumentError(
                f"this {_type(tensor)} is a view with torch's {bit} bit, whose memory holds other values: "
                f"call resolve_{bit}() and give what that returns"
            )


def _tensor_memory(tensor: Any) -> Memory:
    device = getattr(tensor, "device", None)
    place = str(getattr(device, "type", device or "cpu"))
    kind = _kind_of(tensor, place)
    _refuse_other_values(tensor)
    if hasattr(tensor, "is_contiguous") and not tensor.is_contiguous():
        _refuse_gaps(tensor)
    length = tensor.nbytes() if callable(tensor.nbytes) else tensor.nbytes
    return Memory(int(tensor.data_ptr()), int(length), read_only=False, owner=tensor, kind=kind)


def _cuda_array_memory(array: Any) -> Memory:
    """Numba's CUDA array interface, version 3: `data`, `shape`, `typestr`; no `strides` if contiguous."""
    interface = array.__cuda_array_interface__
    if interface.get("strides") is not None:
        _refuse_gaps(array)
    address, read_only = interface["data"]
    item_bytes = int(interface["typestr"][2:])
    length = math.prod(interface["shape"]) * item_bytes
    return Memory(int(address), length, bool(read_only), array, _kind_of(array, "cuda"))


def _buffer_memory(buffer: Any) -> Memory:
    if hasattr(buffer, "__cuda_array_interface__"):
        return _cuda_array_memory(buffer)
    if getattr(getattr(buffer, "dtype", None), "hasobject", False):
        raise InvalidArgumentError(f"this {_type(buffer)} holds references to Python objects, not plain data")
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:  # also dtypes that the buffer protocol cannot express, such as bfloat16
        if not buffer.flags.forc:
            _refuse_gaps(buffer)
        address, read_only = interface["data"]
        return Memory(int(address), int(buffer.nbytes), read_only=bool(read_only), owner=buffer)
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise InvalidArgumentError(
            f"a {_type(buffer)} has no memory to register: give a buffer, numpy array or torch tensor"
        ) from error
    if not view.contiguous:
        _refuse_gaps(buffer)
    return Memory(_native.buffer_address(view), view.nbytes, read_only=view.readonly, owner=view)


def view_of(address: int, length_bytes: int) -> memoryview:
    """Return a writable view of memory that someone else keeps alive."""
    array = (ctypes.c_ubyte * length_bytes).from_address(address)
    return memoryview(array).cast("B")
