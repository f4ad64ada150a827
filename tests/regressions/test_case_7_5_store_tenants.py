"""Case 7.5, the store's side: tenants must not see, guess, or time what others have stored.

That keys are long, and keyed by secret and tenant, is shown in test_case_4_3_keys_that_omit_something.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvferry.config import load_config
from kvferry.errors import NotFoundError
from kvferry.store import Store, open_embedded, open_store

KEY, VALUE = b"a key that both compute", b"the same bytes" * 10_000


@pytest.fixture
def tenants() -> Iterator[tuple[Store, Store]]:
    """Two that share a node, and are told so by nobody."""
    sizes = {"dram": 16 << 20}
    with (
        open_embedded(load_config({"store": {**sizes, "tenant": "one"}}, environ={})) as one,
        open_store(load_config({"store": {"tenant": "two"}}, environ={}), node=one._owned.endpoint) as two,
    ):
        yield one, two


def test_what_one_has_does_not_exist_for_the_other(tenants: tuple[Store, Store]) -> None:
    one, two = tenants
    one.put(KEY, VALUE, tags=["group"])
    assert two.get(KEY) is None
    assert not two.exists(KEY)
    assert two.match_prefix([KEY]) == 0
    assert two.sizes([KEY]) == [None]
    with pytest.raises(NotFoundError):
        two.view(KEY)
    assert list(two.scan()) == []
    assert two.remove_tag("group") == 0
    two.remove(KEY)
    assert one.get(KEY) == VALUE


def test_a_put_tells_nothing_of_others(tenants: tuple[Store, Store]) -> None:
    """The same bytes under the same key are stored anew: the answer does not show who was first."""
    one, two = tenants
    one.put(KEY, VALUE)
    assert two.put(KEY, VALUE).created
    assert not two.put(KEY, VALUE).created
    assert one.node_stats().objects == 2
    one.remove(KEY)
    assert two.get(KEY) == VALUE
    assert two.put(KEY + b"2", b"other").created


@pytest.mark.parametrize(
    ("first", "second"), [("a", "ab"), ("", "a"), ("a\x00", "a"), ("tenant/x", "tenant")]
)
def test_no_tenant_and_key_run_into_each_other(first: str, second: str) -> None:
    """What one calls "b..." is not what the other one, whose name ends earlier, calls "...b"."""
    long, short = sorted((first, second), key=len, reverse=True)
    rest = long[len(short) :].encode()
    with (
        open_embedded(load_config({"store": {"dram": 16 << 20, "tenant": short}}, environ={})) as one,
        open_store(load_config({"store": {"tenant": long}}, environ={}), node=one._owned.endpoint) as two,
    ):
        two.put(b"key", b"of the long one")
        assert one.get(rest + b"key") is None
        assert one.get(b"key") is None
