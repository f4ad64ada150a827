"""Names of hosts in settings, which become numeric addresses once, before anything starts."""

from __future__ import annotations

import socket

import pytest

from kvferry.config import load_config, resolve_address, resolve_host, unresolved_address
from kvferry.errors import ConfigError, UnavailableError
from kvferry.store import check_settings, named_node, open_store
from kvferry.transfer import native_options

KNOWN = {"node-1.example": "10.0.0.7", "v6.example": "fd00::7"}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def known(host: str, port: object, *args: object, **more: object) -> object:
        if host in KNOWN:
            return real(KNOWN[host], port, *args, **more)  # type: ignore[arg-type]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", known)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("node-1.example:7000", "10.0.0.7:7000"),
        ("v6.example:0", "[fd00::7]:0"),
        ("10.0.0.7:7000", "10.0.0.7:7000"),
        ("[::1]:80", "[::1]:80"),
        ("localhost:80", "localhost:80"),
        ("unix:@abstract", "unix:@abstract"),
        ("10.0.0.256:1", "10.0.0.256:1"),
        ("http://node-1.example:80", "http://node-1.example:80"),
        ("node-1.example", "node-1.example"),
        ("::1:80", "::1:80"),
        ("", ""),
    ],
)
def test_only_names_with_a_port_are_looked_up(text: str, address: str) -> None:
    assert resolve_address(text) == address


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(UnavailableError, match=r"'name\.invalid' cannot be found: Name or service not known"):
        resolve_host("name.invalid")
    assert unresolved_address("name.invalid:80") == "127.0.0.1:80"
    assert unresolved_address("10.0.0.1:80") == "10.0.0.1:80"


def test_addresses_of_the_engine_may_be_names() -> None:
    config = load_config(
        {"transfer": {"bind": "node-1.example:0", "advertise": "v6.example:7000"}}, environ={}
    )
    native = native_options(config.transfer, b"")
    assert (native.bind, native.advertise) == ("10.0.0.7:0", "[fd00::7]:7000")
    config = load_config({"transfer.bind": "name.invalid:0"}, environ={})
    with pytest.raises(ConfigError, match=r"transfer\.bind: the host 'name\.invalid' cannot be found"):
        native_options(config.transfer, b"")


def test_the_node_of_a_program_may_have_a_name() -> None:
    config = load_config({"store.node": "node-1.example:7000"}, environ={}, overrides_source="command line")
    assert str(named_node(config)) == "10.0.0.7:7000"
    config = load_config({"store.node": "name.invalid:7000"}, environ={}, overrides_source="command line")
    check_settings(config)  # a name may be known later
    with pytest.raises(UnavailableError, match=r"store\.node from command line: the host 'name\.invalid'"):
        open_store(config)


@pytest.mark.parametrize("text", ["node-1.example:70000", "node-1.example", "node 1:80", "10.0.0.256:80"])
def test_what_is_no_address_is_refused_without_a_look_up(text: str) -> None:
    config = load_config({"store.node": text}, environ={}, overrides_source="command line")
    with pytest.raises(ConfigError, match=r"store\.node from command line is not allowed"):
        check_settings(config)
