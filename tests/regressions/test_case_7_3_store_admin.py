"""Cases 7.3 and 9.2: who may ask a node over HTTP, and what it then says is what happened."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvferry.errors import ConflictError, UnavailableError
from kvferry.testing.nodes import NodeChild


def ask(url: str, method: str = "GET", token: str = "", host: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(url, method=method)
    if host:
        request.add_header("Host", host)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_by_default_it_listens_on_loopback_only(tmp_path: Path) -> None:
    with NodeChild(tmp_path, "--dram", "16MiB") as node:
        assert node.advert.admin.startswith("http://127.0.0.1:")
        code, body = ask(f"{node.advert.admin}/health")
        assert (code, json.loads(body)["status"]) == (200, "ok")
        for route in ("/debug", "/run", "/config", "/scripts"):
            assert ask(node.advert.admin + route, "POST")[0] in (403, 404, 405)


def test_a_web_page_whose_name_points_here_is_told_nothing(tmp_path: Path) -> None:
    """DNS rebinding: a browser of this machine takes our answers for those of the page's own server."""
    with NodeChild(tmp_path, "--dram", "16MiB") as node:
        port = node.advert.admin.rpartition(":")[2]
        for route in ("/status", "/metrics", "/health", "/objects"):
            for host in (
                f"rebound.example:{port}",
                "rebound.example",
                "127.0.0.1.rebound.example",
                f"10.0.0.1:{port}",
            ):
                code, body = ask(node.advert.admin + route, host=host)
                assert code == 403
                assert "localhost" in json.loads(body)["error"]["message"]
        for host in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", "127.1.2.3", f"[::1]:{port}"):
            assert ask(f"{node.advert.admin}/status", host=host)[0] == 200


def test_elsewhere_it_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="token"):
        NodeChild(tmp_path, "--dram", "16MiB", environ={"KVFERRY_ADMIN_BIND": "0.0.0.0:0"})
    secret = tmp_path / "token"
    secret.write_text("s3cret-of-the-test\n", encoding="ascii")
    secret.chmod(0o600)
    environ = {"KVFERRY_ADMIN_BIND": "0.0.0.0:0", "KVFERRY_ADMIN_TOKEN_FILE": str(secret)}
    with NodeChild(tmp_path, "--dram", "16MiB", environ=environ) as node, node.open() as store:
        store.put("kept", b"x")
        base = "http://127.0.0.1:" + node.advert.admin.rsplit(":", 1)[1].rstrip("/")
        wiping = ("DELETE", "/objects?key=" + b"kept".hex())
        for method, route in (wiping, ("POST", "/drain"), ("GET", "/objects"), ("GET", "/metrics")):
            assert ask(base + route, method)[0] == 401
            assert ask(base + route, method, "wrong")[0] == 401
        assert store.get("kept") == b"x"
        assert ask(base + wiping[1], wiping[0], "s3cret-of-the-test")[0] == 200
        assert store.get("kept") is None


def test_the_metrics_are_exact(tmp_path: Path) -> None:
    environ = {"KVFERRY_ADMIN_BIND": "127.0.0.1:0"}
    with NodeChild(tmp_path, "--dram", "16MiB", environ=environ) as node, node.open() as store:
        for number in range(7):
            store.put(f"key {number}", bytes(1000))
        store.put("key 1", bytes(1000))
        with pytest.raises(ConflictError):
            store.put("key 2", bytes(999))
        store.remove("key 3")
        store.remove("key 3")
        text = ask(f"{node.advert.admin}/metrics")[1].decode()
        numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(numbers["kvferry_store_puts_total"]) == 7
        assert float(numbers["kvferry_store_put_bytes_total"]) == 7000
        assert float(numbers["kvferry_store_puts_there_total"]) == 1
        assert float(numbers["kvferry_store_put_conflicts_total"]) == 1
        assert float(numbers["kvferry_store_puts_failed_total"]) == 0
        assert float(numbers['kvferry_store_objects{tier="dram"}']) == 6
