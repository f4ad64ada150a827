"""`kvferry put`, `get`, `ls`, `rm` and `drain`, as scripts use them: what is said, and the exit code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvferry.cli import main
from kvferry.testing.nodes import NodeChild, start_nodes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeChild]:
    with NodeChild(tmp_path_factory.mktemp("node"), "--dram", "16MiB") as started:
        yield started


@pytest.fixture(autouse=True)
def _as_its_user(node: NodeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVFERRY_CLUSTER_DIRECTORY", "KVFERRY_CLUSTER_NAME"):
        monkeypatch.setenv(name, node.environ[name])
    monkeypatch.setattr(logging.getLogger("kvferry"), "handlers", [])  # of commands that ran in this process


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "value"
    path.write_bytes(b"x" * 2048)
    return str(path)


def test_what_was_put_can_be_got_listed_and_removed(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["put", "plain", source, "--tag", "one"]) == 0
    assert capsys.readouterr().err == "2KiB stored, on 1 node(s)\n"
    assert main(["put", "plain", source]) == 0
    assert "was there already" in capsys.readouterr().err
    assert main(["ls", "pl"]) == 0
    assert capsys.readouterr().out.split() == ["2KiB", "dram", "plain", "[one]"]
    assert main(["get", "plain", "--output", str(tmp_path / "copy")]) == 0
    assert (tmp_path / "copy").read_bytes() == b"x" * 2048
    assert main(["rm", "plain"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["get", "plain"]) == 2
    assert capsys.readouterr().err == "error: there is no object under plain\n"


def test_closed_streams_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by `kvferry get key >&-`: Python then has no such stream at all."""
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdout", None)
        assert main(["get", "plain"]) == 2
    assert "standard output is closed: name a file with --output" in capsys.readouterr().err
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdin", None)
        assert main(["put", "plain", "-"]) == 2
    assert "standard input is closed: name a file" in capsys.readouterr().err


def test_fewer_replicas_than_asked_for_are_said_and_are_exit_code_1(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["put", "alone", source, "--replicas", "3"]) == 1
    assert capsys.readouterr().err == "2KiB stored, on 1 of the 3 node(s) asked for\n"
    assert main(["put", "enough", source, "--replicas", "1"]) == 0


def test_removing_what_is_absent_is_said_and_is_exit_code_1(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["put", "there", source, "--tag", "some"]) == 0
    capsys.readouterr()
    assert main(["rm", "nope", "there", "hex:00ff"]) == 1
    assert capsys.readouterr().err == "nope: absent\nhex:00ff: absent\n"
    assert main(["rm", "there"]) == 1  # it went all the same
    assert main(["rm", "--tag", "some"]) == 1
    assert capsys.readouterr().err == "there: absent\n0 object(s) removed\n"


def test_keys_or_a_tag_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm"]) == 2
    assert main(["rm", "key", "--tag", "tag"]) == 2
    assert "name either keys or a tag" in capsys.readouterr().err


def test_a_drained_node_has_left_nothing_behind(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    with ExitStack() as nodes:
        first, second = (nodes.enter_context(node) for node in start_nodes(tmp_path, 2, ("--dram", "16MiB")))
        there = ["--node", first.advert.endpoint]
        assert main(["put", "moves", source, *there]) == 0
        assert main(["drain", *there]) == 0
        assert capsys.readouterr().err.endswith("drained, 0 object(s) left behind\n")
        first.kill()
        assert main(["get", "moves", "--node", second.advert.endpoint, "-o", str(tmp_path / "copy")]) == 0
        assert main(["drain", "--admin", first.advert.admin]) == 2
        assert (
            "/drain?timeout_s=60 does not answer: Connection refused; look whether" in capsys.readouterr().err
        )
    assert (tmp_path / "copy").read_bytes() == b"x" * 2048


def test_a_lone_node_cannot_hand_on_what_it_holds(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    with NodeChild(tmp_path, "--dram", "16MiB"):
        assert main(["put", "stays", source]) == 0
        assert main(["drain", "--timeout", "1"]) == 1
        assert "1 object(s) left behind: no other member took them" in capsys.readouterr().err


def test_who_is_no_node_cannot_be_drained(capsys: pytest.CaptureFixture[str]) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["drain", "--admin", url]) == 2
        answering.join()
    assert f"{url} is no node's HTTP interface" in capsys.readouterr().err
