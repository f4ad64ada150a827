from __future__ import annotations

import array
import mmap
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kvferry.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from kvferry.transfer import Engine
from kvferry.transfer._buffers import memory_of, view_of


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
def test_memory_of_finds_the_bytes_without_copying(make, read_only):
    buffer = make()
    memory = memory_of(buffer)
    assert memory.length_bytes == 11
    assert memory.read_only == read_only
    assert bytes(view_of(memory.address, memory.length_bytes)) == b"hello world"


def test_memory_of_accepts_mmap_and_shares_it():
    mapping = mmap.mmap(-1, 4096)
    memory = memory_of(mapping)
    mapping[7] = 99
    assert view_of(memory.address, 4096)[7] == 99


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_of_accepts_any_dense_array(order):
    data = np.ones((3, 5), dtype=np.float64, order=order)
    assert memory_of(data)[:2] == (data.ctypes.data, 120)


def test_memory_of_accepts_multi_dimensional_memoryviews():
    data = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert memory_of(memoryview(data))[:2] == (data.ctypes.data, 48)


@pytest.mark.parametrize("kind", [Tensor, Storage])
def test_memory_of_accepts_what_looks_like_torch(kind):
    data = np.arange(8, dtype=np.uint8)
    assert memory_of(kind(data))[:2] == (data.ctypes.data, 8)


def test_memory_of_keeps_the_buffer_exported():
    buffer = bytearray(8)
    memory = memory_of(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del memory
    buffer.extend(b"more")


@pytest.mark.parametrize(
    "buffer",
    [np.zeros((4, 4))[:, ::2], memoryview(bytearray(8))[::2], Tensor(np.zeros(4), contiguous=False)],
)
def test_memory_of_refuses_gaps(buffer):
    with pytest.raises(InvalidArgumentError, match="is not contiguous; register the memory that holds it"):
        memory_of(buffer)


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ({"is_conj": lambda: True}, r"call resolve_conj\(\)"),
        ({"is_neg": lambda: True}, r"call resolve_neg\(\)"),
        ({"layout": "torch.sparse_coo"}, r"layout torch.sparse_coo has no memory of its own.*to_dense\(\)"),
    ],
)
def test_tensors_whose_memory_holds_other_values_are_refused(what, advice):
    plain = {"is_conj": lambda: False, "is_neg": lambda: False, "layout": "torch.strided"}
    tensor = Tensor(np.zeros(4))
    vars(tensor).update(plain)
    assert memory_of(tensor).length_bytes == 32
    vars(tensor).update(what)
    with pytest.raises(InvalidArgumentError, match=advice):
        memory_of(tensor)


def test_memory_of_tells_the_kind_of_device_memory(monkeypatch):
    assert memory_of(np.zeros(4)).kind == "host"
    assert memory_of(Tensor(np.zeros(4))).kind == "host"
    assert memory_of(Tensor(np.zeros(4), device="npu:0")).kind == "ascend"
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None)))
    assert memory_of(Tensor(np.zeros(4), device="cuda:0")).kind == "cuda"
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip="6.3")))
    assert memory_of(Tensor(np.zeros(4), device="cuda:0")).kind == "hip"


def test_memory_of_a_cuda_array():
    interface = {"data": (4096, True), "shape": (3, 5), "typestr": "<f4", "strides": None, "version": 3}
    memory = memory_of(SimpleNamespace(__cuda_array_interface__=interface))
    assert (memory.address, memory.length_bytes, memory.read_only) == (4096, 60, True)
    assert memory.kind == "cuda"
    with pytest.raises(InvalidArgumentError, match="not contiguous"):
        memory_of(SimpleNamespace(__cuda_array_interface__={**interface, "strides": (40, 4)}))


def test_memory_of_an_unknown_device_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"'tpu'.*copy it to the host first"):
        memory_of(Tensor(np.zeros(4), device="tpu:0"))


def test_device_memory_is_refused_where_there_is_no_driver():
    with Engine() as engine, pytest.raises(UnavailableError, match=r"'ascend'.*not installed"):
        engine.register(Tensor(np.zeros(4), device="npu:0"))


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros(0), memoryview(b"")])
def test_memory_of_refuses_empty_memory(buffer):
    with pytest.raises(InvalidArgumentError, match=r"an empty .* has no memory"):
        memory_of(buffer)


@pytest.mark.parametrize("thing", [42, "text", None, [1, 2]])
def test_memory_of_refuses_what_has_no_memory(thing):
    with pytest.raises(InvalidArgumentError, match="has no memory to register"):
        memory_of(thing)


def test_memory_of_refuses_object_references():
    with pytest.raises(InvalidArgumentError, match="references to Python objects"):
        memory_of(np.array([object()]))
