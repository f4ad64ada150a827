"""Block keys against the published vectors, an independent implementation, and field cases 4.3 and 7.5."""

from __future__ import annotations

import array
import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _block_keys import FULL, NUMBER_TAGS, VECTORS, Reference, make_vectors
from kvferry.errors import InvalidArgumentError
from kvferry.index import ContentSpan, KeyIdentity, KeySpace
from kvferry.index.keys import Algorithm

TOKENS = list(range(100, 148))
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]
texts = st.text(max_size=8) | st.binary(max_size=8)


def rows(keys: np.ndarray) -> list[bytes]:
    assert keys.dtype == np.uint8
    assert keys.shape[1:] == (16,)
    return [row.tobytes() for row in keys]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_published_vectors(case: dict[str, Any]) -> None:
    space = KeySpace(KeyIdentity(**case["identity"]), algorithm=case["algorithm"], secret=case["secret"])
    spans = [ContentSpan(*span) for span in case["spans"]]
    assert space.root.hex() == case["root"]
    assert [key.hex() for key in rows(space.keys(case["tokens"], spans=spans))] == case["keys"]
    assert rows(space.of_engine_hashes([case["engine_hash"].encode()]))[0].hex() == case["engine_key"]


def test_the_published_file_is_what_the_independent_implementation_gives() -> None:
    assert make_vectors() == CASES


identities = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("model", "revision", "geometry", "dtype", "layout", "lora", "salt", "tenant"), texts
        ),
        **dict.fromkeys(NUMBER_TAGS, st.integers(1, 40)),
        "extra": st.dictionaries(st.text(max_size=4), texts, max_size=3),
    },
)
spans_of = st.lists(
    st.tuples(st.integers(-60, 120), st.integers(1, 150), st.text(min_size=1, max_size=4)), max_size=4
)


@settings(max_examples=150, deadline=None)
@given(
    identity=identities,
    algorithm=st.sampled_from(["sha256", "xxh3"]),
    secret=texts,
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=120),
    spans=spans_of,
)
def test_any_identity_and_prompt_is_hashed_as_documented(
    identity: dict[str, Any], algorithm: Algorithm, secret: str | bytes, tokens: list[int], spans: list[Any]
) -> None:
    space = KeySpace(KeyIdentity(**identity), algorithm=algorithm, secret=secret)
    reference = Reference(identity, algorithm, secret)
    assert space.root == reference.root
    assert rows(space.keys(tokens, spans=spans)) == reference.keys(tokens, None, spans)


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.integers(0, 9), max_size=90), cuts=st.lists(st.integers(0, 90), max_size=6))
def test_a_chain_gives_the_keys_of_the_whole(tokens: list[int], cuts: list[int]) -> None:
    space = KeySpace(KeyIdentity(block_tokens=7), algorithm="xxh3")
    image = ContentSpan(5, 30, "image")
    chain = space.chain()
    found: list[bytes] = []
    for first, end in itertools.pairwise([0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]):
        here = [image._replace(first_token=5 - first)] if first <= 5 < end else []
        found += rows(chain.extend(tokens[first:end], spans=here))
    spans = [image] if len(tokens) > 5 else []
    assert found == rows(space.keys(tokens, spans=spans))
    assert chain.last == (found[-1] if found else space.root)
    assert (chain.position, chain.pending_tokens) == (len(tokens), len(tokens) % 7)


def test_keys_go_on_from_a_parent() -> None:
    space = KeySpace(KeyIdentity())
    keys = rows(space.keys(TOKENS))
    assert rows(space.keys(TOKENS[16:], parent=keys[0])) == keys[1:]
    assert rows(space.chain(parent=keys[1], position=32).extend(TOKENS[32:])) == keys[2:]
    assert len(space.keys(TOKENS[:15])) == 0


@pytest.mark.parametrize(
    "tokens",
    [
        tuple(TOKENS),
        np.array(TOKENS, np.int32),
        np.array(TOKENS, np.int64),
        np.array(TOKENS, np.uint16),
        np.repeat(np.array(TOKENS, np.int32), 2)[::2],
        array.array("i", TOKENS),
        memoryview(array.array("i", TOKENS)),
        range(100, 148),
    ],
    ids=lambda tokens: f"{type(tokens).__name__}-{getattr(tokens, 'dtype', '')}",
)
def test_tokens_may_come_as_any_integers(tokens: Any) -> None:
    space = KeySpace(KeyIdentity())
    assert rows(space.keys(tokens)) == rows(space.keys(TOKENS))


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (np.zeros((4, 4), np.int32), "one dimension"),
        ([0.5], "integers"),
        ([2**31], "32 bits"),
        (np.array([-(2**31) - 1]), "32 bits"),
    ],
)
def test_other_tokens_are_refused(tokens: Any, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        KeySpace(KeyIdentity()).keys(tokens)


def test_wrong_keys_spans_and_fields_are_refused() -> None:
    space = KeySpace(KeyIdentity())
    with pytest.raises(InvalidArgumentError, match="16 bytes, not 3"):
        space.keys(TOKENS, parent=b"abc")
    with pytest.raises(InvalidArgumentError, match="no id"):
        space.keys(TOKENS, spans=[ContentSpan(0, 4, "")])
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        space.chain().extend(TOKENS, spans=[ContentSpan(0, 0, "x")])
    with pytest.raises(InvalidArgumentError, match="lora"):
        KeySpace(KeyIdentity(lora="x" * 65537))
    with pytest.raises(InvalidArgumentError, match="algorithm"):
        KeySpace(KeyIdentity(), algorithm="md5")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="group of a block key's identity has the wrong type"):
        KeySpace(KeyIdentity(group="one"))  # type: ignore[arg-type]


def test_every_field_of_an_identity_is_part_of_the_key() -> None:
    """A field added to the class and forgotten below would show here."""
    changed = {
        name: 7 if isinstance(value, int) else "other" for name, value in FULL.items() if name != "extra"
    }
    assert {field.name for field in dataclasses.fields(KeyIdentity)} == {*changed, "extra"}
    full = KeyIdentity(**FULL)
    variants = [dataclasses.replace(full, **{name: value}) for name, value in changed.items()]
    variants.append(dataclasses.replace(full, extra={"rope": "yarn:8", "attention": "window:4096"}))
    assert len({KeySpace(one).root for one in [full, *variants]}) == len(variants) + 1
