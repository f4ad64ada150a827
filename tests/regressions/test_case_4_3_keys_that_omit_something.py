"""Case 4.3: the key omits something that the KV depends on. Case 7.5: keys that others can compute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvferry.index import ContentSpan, KeyIdentity, KeySpace
from kvferry.index.keys import Algorithm

TOKENS = np.arange(32, dtype=np.int32)
BASE = {"model": "m", "revision": "1", "dtype": "bfloat16", "layout": "NHD"}
IMAGE_A, IMAGE_B = ContentSpan(0, 32, b"\x01" * 32), ContentSpan(0, 32, b"\x02" * 32)
# The report's (a) to (h): same tokens, one difference each.
CASES: dict[str, list[tuple[dict[str, object], list[ContentSpan]]]] = {
    "two images": [(BASE, [IMAGE_A]), (BASE, [IMAGE_B]), (BASE, [])],
    "two adapters": [({**BASE, "lora": "X"}, []), ({**BASE, "lora": "Y"}, [])],
    "two salts": [({**BASE, "salt": "A"}, []), ({**BASE, "salt": "B"}, [])],
    "an adapter named like a salt": [({**BASE, "lora": "X"}, []), ({**BASE, "salt": "X"}, [])],
    "fp8 and bf16": [({**BASE, "dtype": "fp8_e4m3"}, []), (BASE, [])],
    "TP 1 and 2": [({**BASE, "tensor_parallel": 1}, []), ({**BASE, "tensor_parallel": 2}, [])],
    "two revisions": [({**BASE, "revision": "2"}, []), (BASE, [])],
    "NHD and HND": [(BASE, []), ({**BASE, "layout": "HND"}, [])],
}
ALGORITHMS: tuple[Algorithm, ...] = ("sha256", "xxh3")


def keys_of(identity: dict[str, object], spans: list[ContentSpan], algorithm: Algorithm) -> list[bytes]:
    space = KeySpace(KeyIdentity(**identity), algorithm=algorithm)  # type: ignore[arg-type]
    return [key.tobytes() for key in space.keys(TOKENS, spans=spans)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_no_block_is_shared(name: str, algorithm: Algorithm) -> None:
    for one, other in itertools.combinations(CASES[name], 2):
        assert not set(keys_of(*one, algorithm)) & set(keys_of(*other, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_of_them_differ_from_each_other(algorithm: Algorithm) -> None:
    variants = {
        (repr(identity), repr(spans)): (identity, spans)
        for case in CASES.values()
        for identity, spans in case
    }
    del variants[repr({**BASE, "tensor_parallel": 1}), "[]"]  # the default, spelt out
    keys = [key for identity, spans in variants.values() for key in keys_of(identity, spans, algorithm)]
    assert len(set(keys)) == len(keys) == 2 * len(variants)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hundred_thousand_images_under_one_text(algorithm: Algorithm) -> None:
    space = KeySpace(KeyIdentity(**BASE), algorithm=algorithm)  # type: ignore[arg-type]
    tokens = np.zeros(16, np.int32)
    keys = {space.keys(tokens, spans=[(0, 16, b"%d" % image)])[0, :8].tobytes() for image in range(100_000)}  # type: ignore[list-item]
    assert len(keys) == 100_000  # already in their first 64 bits


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_secret_and_tenant_nobody_computes_a_key(algorithm: Algorithm) -> None:
    """Not even with the key of the block before, which events and traces show."""
    parent = KeySpace(KeyIdentity(tenant="a"), algorithm=algorithm, secret="s").root
    keys = [
        KeySpace(KeyIdentity(tenant=tenant), algorithm=algorithm, secret=secret)
        .keys(TOKENS[:16], parent=parent)[0]
        .tobytes()
        for tenant, secret in itertools.product(("a", "b", ""), ("s", "t", ""))
    ]
    assert len(set(keys)) == 9
