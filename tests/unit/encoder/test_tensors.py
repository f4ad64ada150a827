from __future__ import annotations

import struct

import numpy as np
import pytest

from kvferry.encoder import DTYPES, EncoderIdentity, EncoderKeys, pack, unpack
from kvferry.encoder.tensors import HEADER_BYTES
from kvferry.errors import InvalidArgumentError, ProtocolError


def stored(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape)) * DTYPES[dtype]
    return np.concatenate([np.frombuffer(pack(dtype, shape), np.uint8), np.arange(size).astype(np.uint8)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4), (1, 2, 1, 2)])
def test_what_is_packed_comes_out(dtype: str, shape: tuple[int, ...]) -> None:
    whole = stored(dtype, shape)
    tensor = unpack(whole, rows=shape[0])
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    assert tensor.data.tobytes() == whole[HEADER_BYTES:].tobytes()
    assert np.shares_memory(tensor.data, whole)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("int64", (1, 2)),
        ("float32", ()),
        ("float32", (1, 2, 3, 4, 5)),
        ("float32", (0, 4)),
        ("float32", (-1,)),
    ],
)
def test_what_the_format_cannot_hold_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        pack(dtype, shape)


def changed(offset: int, code: str, value: object) -> np.ndarray:
    whole = stored("float32", (3, 4))
    raw = bytearray(whole.tobytes())
    struct.pack_into(code, raw, offset, value)
    return np.frombuffer(bytes(raw), np.uint8)


@pytest.mark.parametrize(
    "whole",
    [
        np.zeros(0, np.uint8),
        np.zeros(HEADER_BYTES, np.uint8),
        stored("float32", (3, 4))[:HEADER_BYTES],
        stored("float32", (3, 4))[:-1],
        np.append(stored("float32", (3, 4)), np.uint8(0)),
        changed(0, "<4s", b"KVFX"),
        changed(4, "<B", 2),
        changed(5, "<B", len(DTYPES)),
        changed(6, "<B", 0),
        changed(6, "<B", 5),
        changed(7, "<B", 1),
        changed(8, "<Q", 1 << 63),
        changed(16, "<Q", 5),
        changed(24, "<Q", 1),
        changed(40, "<Q", 47),
    ],
    ids=range(15),
)
def test_anything_else_is_refused(whole: np.ndarray) -> None:
    with pytest.raises(ProtocolError):
        unpack(whole)


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="3 rows, 4 are wanted"):
        unpack(stored("float32", (3, 4)), rows=4)


def test_keys_differ_in_whatever_the_output_depends_on() -> None:
    def key(media: str = "m", secret: bytes = b"", **changes: object) -> bytes:
        identity = EncoderIdentity(**{"model": "a", "revision": "1", "dtype": "bf16", **changes})  # type: ignore[arg-type]
        return EncoderKeys(identity, secret=secret).key(media)

    keys = [
        key(),
        key("n"),
        key(model="b"),
        key(revision="2"),
        key(dtype="f16"),
        key(tenant="t"),
        key(settings={"quantization": "fp8"}),
        key(settings={"quantization": "int4"}),
        key(model="a1", revision=""),
        key(secret=b"x" * 16),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key()
    assert all(len(each) == 24 for each in keys)
