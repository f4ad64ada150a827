"""Which Host headers a node's HTTP interface answers without a token."""

from __future__ import annotations

import pytest

from kvferry.node.admin import names_us


@pytest.mark.parametrize(
    ("host", "bound_to"),
    [
        ("127.0.0.1:7070", "127.0.0.1:0"),
        ("127.9.8.7", "127.0.0.1:0"),
        ("localhost", "127.0.0.1:0"),
        ("LocalHost:7070", "127.0.0.1:0"),
        ("[::1]:7070", "[::1]:0"),
        ("cache.internal:7070", "cache.internal:7070"),
        ("Cache.Internal", "cache.internal:7070"),
        ("10.1.2.3:7070", "10.1.2.3:7070"),
        ("[fd00::1]:7070", "[fd00::1]:7070"),
    ],
)
def test_names_of_this_machine_and_of_the_bound_address_are_answered(host: str, bound_to: str) -> None:
    assert names_us(host, bound_to)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1", "localhost.evil.example", "[fd00::2]"]
)
@pytest.mark.parametrize("bound_to", ["127.0.0.1:0", "cache.internal:7070", "[::1]:0"])
def test_other_names_are_not(host: str, bound_to: str) -> None:
    assert not names_us(host, bound_to)
