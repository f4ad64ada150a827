from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvferry.cli import main
from kvferry.cli.status import text_of
from kvferry.cli.using import TIMEOUT_S


def test_a_node_that_stands_still_is_not_waited_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # connects, and says nothing
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        assert main(["status", "--admin", url, "--timeout", "0.2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {url}/status did not answer within 0.2 s: the node may be stopped")
    assert "--timeout" in error
    assert TIMEOUT_S <= 3


def test_why_a_node_refuses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "access_denied", "message": "ask by localhost"}}')

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.timeout = 60
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        assert main(["status", "--admin", f"http://127.0.0.1:{server.server_port}", "--timeout", "30"]) == 2
        answering.join(60)
    assert "/status answered 403 Forbidden: ask by localhost\n" in capsys.readouterr().err


def test_objects_that_are_on_ssd_as_well_are_not_said_to_be_missing_there() -> None:
    """With write-through all objects are there, and 0 of them only there."""
    stats = {"ssd_bytes": 1 << 30, "ssd_used": 1 << 20, "ssd_objects": 0, "ssd_written": 0, "ssd_stored": 0}
    assert "0 objects not in memory" in text_of(document_with(counters={}, **stats))


def test_the_index_is_counted_once() -> None:
    assert "metadata 20 MiB\n" in text_of(document_with())


def document_with(**stats: Any) -> dict[str, Any]:
    return {
        "node_id": "0" * 32,
        "endpoint": "127.0.0.1:7000",
        "cluster": "local",
        "status": "ok",
        "reasons": [],
        "view": 1,
        "members": [],
        "stats": {
            "dram_used": 0,
            "dram_bytes": 1 << 30,
            "dram_objects": 0,
            "ssd_bytes": 0,
            "clients": 1,
            "pinned_objects": 0,
            "directory_entries": 0,
            "index_bytes": 12 << 20,
            "metadata_bytes": 20 << 20,
            **stats,
        },
    }


def test_top_takes_no_negative_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--count", "-1"]) == 2
    assert "--count" in capsys.readouterr().err
