"""Nodes as processes: commands, discovery, restart, replication, drain, the HTTP interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.config import load_config
from kvferry.errors import AccessDeniedError, ConflictError, KVFerryError, UnavailableError, UnsupportedError
from kvferry.metrics import definition
from kvferry.node import process
from kvferry.store import find_nodes, open_store
from kvferry.testing.nodes import NodeChild, start_nodes
from kvferry.testing.waiting import wait_until

VALUES = {f"key {i}": bytes([i]) * (i * i * 7) for i in range(120)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def node(directory: Path) -> Iterator[NodeChild]:
    with NodeChild(directory, "--dram", "64MiB") as child:
        yield child


def of_machine(directory: Path) -> object:
    return load_config({"cluster": {"directory": str(directory)}, "store": {"timeout_s": 5}}, environ={})


def test_a_client_without_shm_is_as_one_of_another_host(node: NodeChild) -> None:
    values = {
        "store": {"node": node.advert.endpoint},
        "cluster": {"directory": node.cluster.directory},
        "transfer": {"transports": ["tcp"]},
    }
    sizes = [0, 10, 70_000, 3_000_000, 70_000, 2_100_000]
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    keys = [f"remote {number}" for number in range(len(sizes))]
    with open_store(load_config(values, environ={})) as remote, node.open() as near:
        assert [result.created for result in remote.put_many(keys, parts)] == [True] * len(sizes)
        assert [near.get(key) for key in keys] == parts
        assert [remote.get(key) for key in keys] == parts
        assert remote.match_prefix(keys) == len(keys)
        with pytest.raises(UnsupportedError):
            remote.view(keys[2])
        again = [parts[1] * 7000, parts[3]]  # other bytes; the same
        assert [result.error is None for result in remote.put_many(keys[2:4], again)] == [False, True]


def ask(node: NodeChild, path: str, method: str = "GET", token: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(node.advert.admin + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def test_commands(node: NodeChild, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")
    assert b"10B stored, on 1 node" in node.command("put", "a key", str(source), "--tag", "group").stderr
    assert b"was there already" in node.command("put", "a key", str(source)).stderr
    assert node.command("get", "a key").stdout == b"some bytes"
    node.command("put", "hex:ff00", str(source))
    assert [json.loads(line)["key"] for line in node.command("ls", "--json").stdout.splitlines()] == [
        b"a key".hex(), "ff00",
    ]  # fmt: skip
    assert b"hex:ff00" in node.command("ls").stdout
    source.write_bytes(b"others")
    assert b"written once" in node.command("put", "a key", str(source), expect=2).stderr
    node.command("rm", "--tag", "group")
    assert b"cannot write /nowhere/target" in (
        node.command("get", "hex:ff00", "-o", "/nowhere/target", expect=2).stderr
    )
    assert b"no object under a key" in node.command("get", "a key", expect=2).stderr
    node.command("rm", "hex:ff00")
    assert node.command("ls").stdout == b""
    status = json.loads(node.command("status", "--json").stdout)
    assert (status["status"], status["stats"]["objects"]) == ("ok", 0)
    assert b"per second" in node.command("top", "--count", "1", "--every", "0.1").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("node", "--ssd", "nosize"), b"must be a directory and a size"),
        (("node", "--dram", "12 apples"), b"is not a size"),
        (("node", "--drain", "soon"), b"is not a duration"),
        (("node", "--admin", "0.0.0.0:0"), b"set admin.token_file"),
        (("node", "--cluster", "etcd://127.0.0.1:1"), b"cluster_secret"),
        (("status", "--cluster-name", "elsewhere"), b"start one with `kvferry node`"),
        (("get", "key", "--node", "127.0.0.1:1"), b"127.0.0.1:1"),
        (("status", "--node", "127.0.0.1:1"), b"runs at 127.0.0.1:1"),
        (("put", "key", "/nowhere/source"), b"cannot read /nowhere/source"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(node: NodeChild, words: tuple[str, ...], said: bytes) -> None:
    done = node.command(*words, expect=2)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_node_is_found_by_its_machine(directory: Path) -> None:
    config = of_machine(directory)
    with pytest.raises(UnavailableError, match="start one with `kvferry node`"):
        open_store(config)  # type: ignore[arg-type]
    with NodeChild(directory, "--dram", "32MiB") as node:
        with open_store(config) as store:  # type: ignore[arg-type]
            store.put("key", b"value")
        assert node.stop() == 0
    assert find_nodes(node.cluster) == []


def test_programs_take_the_settings_of_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeChild(directory, "--dram", "32MiB"):
        monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(directory))
        monkeypatch.setenv("KVFERRY_STORE_TENANT", "someone")
        with open_store() as store:
            store.put("key", b"value")
        with open_store(of_machine(directory)) as store:  # type: ignore[arg-type]
            assert not store.exists("key")


def test_more_ssd_than_the_disk_has_is_said(directory: Path) -> None:
    flags = ("--dram", "32MiB", "--ssd", f"{directory}/log:1000TiB", "--max-objects", "1000")
    with NodeChild(directory, *flags) as node:
        assert node.stop() == 0
        assert "has room for about" in node.log()


def status_of(node: NodeChild, path: str, method: str, **headers: str) -> int:
    request = urllib.request.Request(node.advert.admin + path, method=method, headers=headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    refused.value.close()
    return refused.value.code


def test_a_web_page_changes_nothing(node: NodeChild) -> None:
    assert status_of(node, "/drain", "POST", Origin="http://somewhere.example") == 403
    assert status_of(node, "/objects?tag=all", "DELETE", Origin="http://somewhere.example") == 403
    assert json.loads(ask(node, "/health"))["status"] == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_other_users_of_the_machine_see_no_keys_and_change_nothing(node: NodeChild) -> None:
    script = """if True:
        import encodings.idna, os, sys, urllib.error, urllib.request
        os.setuid(65534)
        for path in ("GET /status", "GET /objects", "POST /drain", "DELETE /objects?key=61"):
            method, path = path.split()
            try:
                request = urllib.request.Request(sys.argv[1] + path, method=method)
                print(urllib.request.urlopen(request, timeout=60).status)
            except urllib.error.HTTPError as error:
                print(error.code)
    """
    done = subprocess.run(
        [sys.executable, "-c", script, node.advert.admin],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["200", "403", "403", "403"], done.stderr
    assert json.loads(ask(node, "/objects")) == {"objects": []}


def test_a_program_outlives_its_node(directory: Path) -> None:
    """It attaches by itself to the node that takes the place of a killed one."""
    first = NodeChild(directory, "--dram", "32MiB")
    with open_store(of_machine(directory)) as store:  # type: ignore[arg-type]
        store.put("key", b"value")
        with store.view("key") as view:
            first.kill()
            with pytest.raises(KVFerryError):
                store.put("other", b"value", timeout_s=1)
            assert bytes(view.data) == b"value"  # still mapped
        with NodeChild(directory, "--dram", "32MiB"):
            wait_until(lambda: store.put_many(["new"], [b"x"], timeout_s=2)[0].error is None, 60)
            assert store.get("key") is None
            assert store.get("new") == b"x"
            assert store.error is None


def test_replicas_survive_a_kill(directory: Path) -> None:
    nodes = start_nodes(directory, 3)
    try:
        with nodes[0].open() as first, nodes[1].open() as second, nodes[2].open() as third:
            results = first.put_many(list(VALUES), list(VALUES.values()), replicas=2, chain=True)
            assert {(result.error, result.replicas) for result in results} == {(None, 2)}
            assert second.match_prefix(list(VALUES)) == len(VALUES)
            with pytest.raises(ConflictError):
                third.put("key 5", b"other bytes")
            nodes[0].kill()
            for store in (second, third):
                targets = [bytearray(len(value)) for value in VALUES.values()]
                got = store.get_many_into(list(VALUES), targets, timeout_s=10)
                assert [result.error for result in got] == [None] * len(VALUES)
                assert targets == [bytearray(value) for value in VALUES.values()]
                assert store.exists_many(list(VALUES)).all()
            second.remove_many(list(VALUES))
            assert not third.exists_many(list(VALUES)).any()
    finally:
        for node in nodes:
            node.kill()


def test_a_node_that_stood_still_is_taken_back_long_before_its_lease_ends(directory: Path) -> None:
    """Its programs cannot put before the others count on it again."""
    patient = {"KVFERRY_CLUSTER_LEASE_S": "120s"}
    with (
        NodeChild(directory, "--dram", "64MiB", environ=patient) as stopped,
        NodeChild(directory, "--dram", "64MiB", environ=patient) as other,
        stopped.open() as near,
        other.open() as far,
    ):
        wait_until(lambda: len(near.members) == len(far.members) == 2, 60)
        near.put("before", b"1")
        stopped.pause()
        wait_until(lambda: len(far.members) == 1, 60, "the other one gives it up")
        stopped.resume()

        def puts() -> bool:
            try:
                return near.put("after", b"2").created or near.exists("after")
            except UnavailableError:
                return False

        wait_until(puts, 60, "it takes puts again")
        assert near.get("before") == far.get("before") == b"1"
        assert len(far.members) == 2


def test_a_drained_node_leaves_nothing_behind(directory: Path) -> None:
    nodes = start_nodes(directory, 2)
    try:
        with nodes[0].open() as first, nodes[1].open() as second:
            first.put_many(list(VALUES), list(VALUES.values()))
            assert nodes[0].stop() == 0
            for key, value in VALUES.items():
                assert second.get(key) == value
    finally:
        for node in nodes:
            node.kill()


def test_a_second_signal_ends_the_draining() -> None:
    """Native code hears no signals: the thread that does must not be in it."""

    class Draining:
        closed = threading.Event()
        by: threading.Thread | None = None

        def drain(self, _timeout_s: float) -> int:
            self.by = threading.current_thread()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.closed.wait(60)
            return 1

        def close(self) -> None:
            self.closed.set()

    node = Draining()
    # A shell starts what it puts into the background with that signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process._drain(node, 20.0)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, before)
    assert node.closed.is_set()
    assert node.by is not threading.main_thread()


def test_metrics_are_exact_and_documented(node: NodeChild) -> None:
    """Field case 9.2: after known work the numbers are those, and every name is in the table."""
    with node.open() as store:
        for i in range(10):
            store.put(f"k{i}", bytes(1000))
        store.put("k0", bytes(1000))
        store.put_many(["k1"], [b"conflict"])
        store.remove("k9")
        values = {}
        for line in ask(node, "/metrics").decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
                definition(name.partition("{")[0].removesuffix("_created"))
    assert values['kvferry_store_objects{tier="dram"}'] == 9
    assert values["kvferry_store_puts_total"] == 10
    assert values["kvferry_store_put_conflicts_total"] == 1
    assert values["kvferry_store_clients"] == 1
    assert values["kvferry_meta_members"] == 1
    assert values["kvferry_store_dram_bytes"] == 64 << 20


def test_http_interface(node: NodeChild) -> None:
    with node.open() as store:
        store.put("one", b"1", tags=["t"])
        store.put("two", b"2")
    assert json.loads(ask(node, "/health")) == {"status": "ok", "reasons": []}
    listed = json.loads(ask(node, "/objects?prefix=" + b"o".hex()))["objects"]
    assert [row["text"] for row in listed] == ["one"]
    assert json.loads(ask(node, "/objects?tag=t", "DELETE")) == {"removed": 1}
    assert json.loads(ask(node, f"/objects?key={b'two'.hex()}", "DELETE")) == {"removed": 1}
    assert json.loads(ask(node, "/status"))["stats"]["objects"] == 0
    for path, code in (("/objects?limit=x", 400), ("/objects?prefix=zz", 400), ("/nothing", 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(node, path)
        assert caught.value.code == code
        caught.value.close()


def test_a_token_is_asked_for_once_it_is_set(directory: Path) -> None:
    """Field case 7.3: nothing but the health of a node is told without it."""
    token = directory / "token"
    token.write_text("a long and secret token\n")
    with NodeChild(directory, "--dram", "32MiB", environ={"KVFERRY_ADMIN_TOKEN_FILE": str(token)}) as node:
        ask(node, "/health")
        for path, method in (
            ("/status", "GET"),
            ("/metrics", "GET"),
            ("/drain", "POST"),
            ("/objects?tag=t", "DELETE"),
        ):
            for wrong in ("", "another token", "\xff"):
                with pytest.raises(urllib.error.HTTPError) as caught:
                    ask(node, path, method, wrong)
                assert caught.value.code == 401
                caught.value.close()
        assert json.loads(ask(node, "/status", token="a long and secret token"))["status"] == "ok"
        node.command("status")


def test_clusters_do_not_mix(directory: Path) -> None:
    with NodeChild(directory, "--dram", "32MiB", name="one") as node:
        config = load_config(
            {"cluster": {"name": "two"}, "store": {"node": node.advert.endpoint, "timeout_s": 5}}, environ={}
        )
        with pytest.raises(AccessDeniedError, match="cluster"):
            open_store(config)
