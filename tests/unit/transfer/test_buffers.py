from __future__ import annotations

import array
import mmap
from types import SimpleNamespace

import numpy as np
import pytest

from kvferry.errors import InvalidArgumentError, UnsupportedError
from kvferry.transfer._buffers import host_memory, view_of


class Tensor:
    """Looks like a torch.Tensor; torch itself must not be needed."""

    def __init__(self, data: np.ndarray, device: str = "cpu", contiguous: bool = True) -> None:
        self._data = data
        self.nbytes = data.nbytes
        self.device = SimpleNamespace(type=device.partition(":")[0], __str__=lambda: device)
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return self._data.ctypes.data

    def is_contiguous(self) -> bool:
        return self._contiguous


class Storage:
    """Looks like a torch.UntypedStorage: nbytes is a method."""

    device = "cpu"

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def data_ptr(self) -> int:
        return self._data.ctypes.data

    def nbytes(self) -> int:
        return self._data.nbytes


@pytest.mark.parametrize(
    ("make", "read_only"),
    [
        (lambda: bytearray(b"hello world"), False),
        (lambda: b"hello world", True),
        (lambda: memoryview(b"hello world"), True),
        (lambda: memoryview(bytearray(b"0123hello world"))[4:], False),
        (lambda: array.array("B", b"hello world"), False),
        (lambda: np.frombuffer(b"hello world", dtype=np.uint8), True),
        (lambda: np.frombuffer(b"hello world", dtype=np.uint8).copy(), False),
    ],
)
def test_host_memory_finds_the_bytes_without_copying(make, read_only):
    buffer = make()
    memory = host_memory(buffer)
    assert memory.length_bytes == 11
    assert memory.read_only == read_only
    assert bytes(view_of(memory.address, memory.length_bytes)) == b"hello world"


def test_host_memory_accepts_mmap_and_shares_it():
    mapping = mmap.mmap(-1, 4096)
    memory = host_memory(mapping)
    mapping[7] = 99
    assert view_of(memory.address, 4096)[7] == 99


@pytest.mark.parametrize("order", ["C", "F"])
def test_host_memory_accepts_any_dense_array(order):
    data = np.ones((3, 5), dtype=np.float64, order=order)
    assert host_memory(data)[:2] == (data.ctypes.data, 120)


def test_host_memory_accepts_multi_dimensional_memoryviews():
    data = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert host_memory(memoryview(data))[:2] == (data.ctypes.data, 48)


@pytest.mark.parametrize("kind", [Tensor, Storage])
def test_host_memory_accepts_what_looks_like_torch(kind):
    data = np.arange(8, dtype=np.uint8)
    assert host_memory(kind(data))[:2] == (data.ctypes.data, 8)


def test_host_memory_keeps_the_buffer_exported():
    buffer = bytearray(8)
    memory = host_memory(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del memory
    buffer.extend(b"more")


@pytest.mark.parametrize(
    "buffer",
    [np.zeros((4, 4))[:, ::2], memoryview(bytearray(8))[::2], Tensor(np.zeros(4), contiguous=False)],
)
def test_host_memory_refuses_gaps(buffer):
    with pytest.raises(InvalidArgumentError, match="is not contiguous; register the memory that holds it"):
        host_memory(buffer)


def test_host_memory_refuses_device_memory():
    with pytest.raises(UnsupportedError, match=r"device memory.*copy it to the host first"):
        host_memory(Tensor(np.zeros(4), device="cuda:0"))
    cupy_like = SimpleNamespace(__cuda_array_interface__={})
    with pytest.raises(UnsupportedError, match="device memory"):
        host_memory(cupy_like)


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros(0), memoryview(b"")])
def test_host_memory_refuses_empty_memory(buffer):
    with pytest.raises(InvalidArgumentError, match=r"an empty .* has no memory"):
        host_memory(buffer)


@pytest.mark.parametrize("thing", [42, "text", None, [1, 2]])
def test_host_memory_refuses_what_has_no_memory(thing):
    with pytest.raises(InvalidArgumentError, match="has no memory to register"):
        host_memory(thing)


def test_host_memory_refuses_object_references():
    with pytest.raises(InvalidArgumentError, match="references to Python objects"):
        host_memory(np.array([object()]))
