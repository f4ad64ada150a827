"""Case 4.9: in a batch, one bad key or an empty answer hides the others.

Reports: kvcache-ai/Mooncake#551, LMCache/LMCache#3151, Ascend/TransferQueue#94,
vllm-project/vllm-ascend#2912, kvcache-ai/Mooncake#3331. A batch was given up at its first missing key, size 0
counted as success, retries went to the wrong slot, refused keys were never tried again. Right: a list of
results of the same length and order, each with its own, and the good ones are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.config import load_config
from kvferry.errors import ConflictError, NotFoundError, OutOfRangeError
from kvferry.store import Store, open_embedded


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = {"cluster.directory": str(tmp_path), "store.dram": "4MiB"}
    tmp_path.chmod(0o700)
    with open_embedded(load_config(settings, environ={})) as made:
        yield made


def test_each_key_of_a_get_has_its_own_result(store: Store) -> None:
    store.put_many([f"k{n}" for n in range(4)], [bytes([n]) * 100 for n in range(4)])
    store.put("empty", b"")
    store.put("big", b"b" * 200)
    wanted = ["k0", "missing", "k1", "big", "gone", "k2", "empty", "k3", "k0", "absent"]
    targets = [bytearray(b"\xee" * 100) for _ in wanted]
    results = store.get_many_into(wanted, targets)
    expected: dict[str, type[Exception] | None] = {
        "missing": NotFoundError, "gone": NotFoundError, "absent": NotFoundError, "big": OutOfRangeError,
    }  # fmt: skip
    assert [type(result.error) if result.error else None for result in results] == [
        expected.get(name) for name in wanted
    ]
    assert [result.bytes for name, result in zip(wanted, results, strict=True) if name[0] == "k"] == [100] * 5
    for name, result, target in zip(wanted, results, targets, strict=True):
        if name[0] == "k":
            assert target == bytes([int(name[1:])]) * 100
        if name == "empty":
            assert result.bytes == 0
            assert target == b"\xee" * 100
    assert store.exists_many(wanted).tolist() == [expected.get(name) is not NotFoundError for name in wanted]
    assert store.sizes(wanted) == [
        None if expected.get(name) is NotFoundError else {"big": 200, "empty": 0}.get(name, 100)
        for name in wanted
    ]


def test_each_key_of_a_put_has_its_own_result(store: Store) -> None:
    store.put("there", b"old")
    keys = ["a", "there", "huge", "same", "same", "z"]
    values = [b"a" * 10, b"new", bytes(8 << 20), b"s", b"s", b"z" * 10]
    results = store.put_many(keys, values)
    assert [type(result.error) if result.error else None for result in results] == [
        None, ConflictError, OutOfRangeError, None, None, None,
    ]  # fmt: skip
    assert [result.created for result in results] == [True, False, False, True, False, True]
    again = store.put_many(["huge", "a"], [b"h", b"a" * 10])  # what was refused is tried anew
    assert [(result.error, result.created) for result in again] == [(None, True), (None, False)]
    assert [store.get(key) for key in ("a", "there", "same", "z", "huge")] == [
        b"a" * 10, b"old", b"s", b"z" * 10, b"h",
    ]  # fmt: skip
