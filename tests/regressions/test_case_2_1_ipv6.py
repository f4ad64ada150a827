"""Case 2.1: IPv6 literals are split at the wrong colon."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _engines import ipv6_works, move, options, pattern, pieces
from kvferry.errors import InvalidArgumentError
from kvferry.transfer import Endpoint, Engine

_ZONES = st.none() | st.text("abcdefghijklmnopqrstuvwxyz0123456789-._", min_size=1, max_size=15)


@given(address=st.ip_addresses(), port=st.integers(0, 65535))
def test_parse_and_format_are_inverse_for_addresses(address, port):
    canonical = str(Endpoint(f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"))
    again = Endpoint(canonical)
    assert str(again) == canonical
    assert again.port == port
    assert ipaddress.ip_address(again.host) == address


@given(address=st.ip_addresses(v=6, network="fe80::/10"), zone=_ZONES, port=st.integers(0, 65535))
def test_parse_and_format_are_inverse_for_link_local_zones(address, zone, port):
    host = f"{address}%{zone}" if zone else str(address)
    canonical = str(Endpoint(f"[{host}]:{port}"))
    assert str(Endpoint(canonical)) == canonical
    assert Endpoint(canonical).port == port
    assert Endpoint(canonical).host.partition("%")[2] == (zone or "")


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused_with_a_sentence(text):
    try:
        endpoint = Endpoint(text)
    except InvalidArgumentError:
        with pytest.raises(InvalidArgumentError, match="endpoint"):
            Endpoint(text)
    else:
        assert str(Endpoint(str(endpoint))) == str(endpoint)


def test_ipv4_mapped_addresses_stay_ipv6():
    assert str(Endpoint("[::ffff:127.0.0.1]:80")) == "[::ffff:127.0.0.1]:80"


def test_bare_ipv6_with_a_port_shows_the_bracketed_form():
    with pytest.raises(InvalidArgumentError, match=r"\[::1\]:8000"):
        Endpoint("::1:8000")


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_everything_works_on_the_ipv6_loopback(transport):
    assert ipv6_works(), "this host has no IPv6 loopback: enable it (sysctl net.ipv6.conf.lo.disable_ipv6=0)"
    with (
        Engine(options(transport, bind="[::1]:0")) as server,
        Engine(options(transport, bind="[::1]:0")) as client,
    ):
        assert str(server.endpoint).startswith("[::1]:")
        data, target = pattern(100_000), bytearray(100_000)
        there = server.register(data, name="m")
        here = client.register(target, name="m")
        peer = client.connect(str(server.endpoint), expected=server.node_id)
        assert move(client, peer, pieces((here.id, there.id, 0, 0, 100_000))).error is None
        assert target == data.tobytes()
