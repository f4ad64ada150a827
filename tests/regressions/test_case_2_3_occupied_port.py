"""Case 2.3: a port that somebody else holds stops a service without a word on the setting or the holder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from _engines import engine_pair, move, options, pieces
from kvferry import meta
from kvferry.config import load_config
from kvferry.errors import ResourceExhaustedError, UnavailableError
from kvferry.node import NodeProcess
from kvferry.transfer import Engine


def test_an_occupied_port_is_named_with_its_setting_and_how_to_find_the_holder():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(UnavailableError) as caught:
            Engine(options("tcp", bind=f"127.0.0.1:{port}"))
    text = str(caught.value)
    for part in (f"127.0.0.1:{port}", "bind", "port 0", "ss -ltnp"):
        assert part in text


def test_engines_with_default_settings_share_a_host():
    with engine_pair() as pair:
        assert pair.client.endpoint.port != pair.server.endpoint.port
        near, far = bytearray(4096), bytes(range(256)) * 16
        there = pair.server.register(far, name="m")
        here = pair.client.register(near, name="m")
        pair.peer.refresh()
        assert move(pair.client, pair.peer, pieces((here.id, there.id, 0, 0, 4096))).error is None
        assert near == far


def test_a_port_is_free_again_once_its_engine_is_closed():
    with engine_pair("tcp") as pair:
        endpoint = str(pair.server.endpoint)
    with Engine(options("tcp", bind=endpoint)) as second:
        assert str(second.endpoint) == endpoint


def test_a_node_whose_admin_port_is_occupied_never_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would take it for a member, and announce to it, until it is gone again."""
    joined: list[object] = []
    monkeypatch.setattr(meta, "open_store", joined.append)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        bind = f"127.0.0.1:{holder.getsockname()[1]}"
        given = {
            "store": {"dram": 16 << 20},
            "cluster": {"directory": str(tmp_path)},
            "admin": {"bind": bind},
        }
        with pytest.raises(ResourceExhaustedError) as caught:
            NodeProcess(load_config(given, environ={}))
    assert all(part in str(caught.value) for part in (bind, "admin.bind", "--admin", "choose another port"))
    assert joined == []
