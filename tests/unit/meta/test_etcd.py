"""What only etcd can do to us: members that die or hang, log-in, TLS, answers that make no sense."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from _members import LONG_LEASE_S, SECRET, Members
from kvferry.config import ClusterOptions
from kvferry.errors import AccessDeniedError, ConfigError, KVFerryError, UnavailableError
from kvferry.meta import MetaStore, open_store
from kvferry.meta.etcd import address
from kvferry.meta.etcd.gateway import Gateway
from kvferry.meta.etcd.store import EtcdStore
from kvferry.testing.etcd import EtcdCluster
from kvferry.testing.waiting import PATIENCE_S, read_until, wait_until

CERTIFICATES = Path(__file__).resolve().parents[2] / "data/etcd-tls"
OTHER_AUTHORITY = Path(__file__).resolve().parents[3] / "native/tests/data/tls/ca.pem"


def opened(etcd: EtcdCluster, **options: str) -> contextlib.closing[MetaStore]:
    return contextlib.closing(open_store(ClusterOptions(store=etcd.address, **options), SECRET))


def hurried(etcd: EtcdCluster, **options) -> contextlib.closing[MetaStore]:
    """A client that gives up sooner."""
    gateway = Gateway(etcd.urls, attempt_timeout_s=0.5, call_timeout_s=1.0, **options)
    return contextlib.closing(EtcdStore(gateway))


def member_used_by(store: EtcdStore) -> int:
    """Return which member our next request goes to; watches are there, too."""
    return store._gateway._current


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), members=3) as etcd:
        yield etcd


def persistently(action) -> None:
    """Do what may fail while etcd has no leader."""

    def done() -> bool:
        with contextlib.suppress(UnavailableError):
            action()
            return True
        return False

    wait_until(done, PATIENCE_S, "write")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_member_may_be_killed(three: EtcdCluster, index: int) -> None:
    with opened(three) as store, contextlib.closing(store.watch("a/")) as watch:
        lease = store.lease(60.0)
        store.put(f"a/{index}", b"before", lease=lease)
        read_until(watch, bool)
        three.kill(index)
        persistently(lambda: store.put(f"a/{index}", b"after", lease=lease))
        read_until(watch, lambda state: state == {f"a/{index}": b"after"})
        persistently(lambda: lease.keep_alive() or pytest.fail("the lease ended with a member"))
        three.start()
        three.wait_ready()
        lease.revoke()


def test_nodes_do_not_notice_that_a_member_died(three: EtcdCluster, caplog: pytest.LogCaptureFixture) -> None:
    with Members(lambda: open_store(ClusterOptions(store=three.address), SECRET), LONG_LEASE_S) as members:
        with caplog.at_level(logging.INFO, "kvferry.meta"):
            pair = members.join(2)
            views = [x.members() for x in pair]
            wait_until(lambda: caplog.text.count("members 2") == 2, what="both said that they joined")
            caplog.clear()
            three.kill(0)
            time.sleep(1.5 * LONG_LEASE_S)
            three.start()
            three.wait_ready()
        assert [x.members() for x in pair] == views
        assert not caplog.records


def test_a_member_that_hangs_is_left_for_another_one(three: EtcdCluster) -> None:
    with opened(three) as store, contextlib.closing(store.watch("b/")) as watch:
        store.put("b/1", b"1")
        read_until(watch, bool)
        used = member_used_by(store)
        three.freeze(used)
        persistently(lambda: store.put("b/1", b"2"))
        read_until(watch, lambda state: state == {"b/1": b"2"})
        three.kill(used)
    three.start()
    three.wait_ready()


def test_two_dead_members_of_three_are_an_outage_that_ends_by_itself(three: EtcdCluster) -> None:
    with hurried(three) as store:
        persistently(lambda: store.put("c", b"1"))
        three.kill(0, 1)
        with pytest.raises(UnavailableError, match="does not answer"):
            store.put("c", b"2")
        three.start()
        three.wait_ready()
        persistently(lambda: store.put("c", b"3"))
        assert store.get("c").value == b"3"


def test_a_store_that_is_not_there_is_named_once_with_what_to_look_at() -> None:
    with socket.socket() as nobody:  # has a port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        gateway = Gateway([where], attempt_timeout_s=0.5, call_timeout_s=1.0)
        with contextlib.closing(EtcdStore(gateway)) as store, pytest.raises(UnavailableError) as raised:
            store.put("a", b"1")
    text = str(raised.value)
    assert text.count(where) == 1, text
    assert "Connection refused" in text
    assert "cluster.store" in text


def test_a_swap_that_may_have_happened_is_not_repeated(three: EtcdCluster) -> None:
    with hurried(three) as store:
        persistently(lambda: store.put("d", b"1"))
        used = member_used_by(store)
        three.freeze(used)
        with pytest.raises(UnavailableError):
            store.compare_and_swap("d", 0, b"2")
        persistently(lambda: store.get("d").value == b"1" or pytest.fail("it was done"))
        three.kill(used)
    three.start()
    three.wait_ready()


def test_password(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("a pass word\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("another one")
    with EtcdCluster(tmp_path / "etcd") as etcd:
        with opened(etcd, user="kvferry", password_file=str(password)) as store:
            store.put("a", b"no log-in is asked for yet")
        etcd.require_password("kvferry", "a pass word")
        with opened(etcd, user="kvferry", password_file=str(password)) as store:
            watch = store.watch("a")
            lease = store.lease(60.0)
            store.put("a", b"1", lease=lease)
            etcd.kill()
            etcd.start()
            etcd.wait_ready()  # it knows no token any more
            assert lease.keep_alive()
            store.put("a", b"2", lease=lease)
            read_until(watch, lambda state: state == {"a": b"2"})
        for options in ({}, {"user": "kvferry", "password_file": str(wrong)}):
            with opened(etcd, **options) as store, pytest.raises(AccessDeniedError) as raised:
                store.put("a", b"3")
            assert "another one" not in str(raised.value)
            with opened(etcd, **options) as store, contextlib.closing(store.watch("a")) as watch:
                assert watch.next(0.2) is None


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    files = {name: str(CERTIFICATES / f"{name}.pem") for name in ("ca", "server", "client", "key")}
    arguments = [
        f"--cert-file={files['server']}", f"--key-file={files['key']}",
        f"--trusted-ca-file={files['ca']}", "--client-cert-auth",
    ]  # fmt: skip
    ours = {"ca_file": files["ca"], "cert_file": files["client"], "key_file": files["key"]}
    with EtcdCluster(tmp_path, arguments=arguments, scheme="https") as etcd:
        with opened(etcd, **ours) as store:
            persistently(lambda: store.put("a", b"1"))
            assert store.get("a").value == b"1"
            with contextlib.closing(store.watch("a")) as watch:
                assert read_until(watch, bool) == {"a": b"1"}
        for wrong in ({**ours, "ca_file": str(OTHER_AUTHORITY)}, {}):
            with opened(etcd, **wrong) as store, pytest.raises(UnavailableError, match=r"cluster\.ca_file"):
                store.put("a", b"2")
        nameless = address._tls(ClusterOptions(ca_file=files["ca"]))
        with hurried(etcd, tls=nameless) as store, pytest.raises(UnavailableError, match="certificate"):
            store.put("a", b"2")


class _Liar(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        length = 0
        while line := self.rfile.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        self.wfile.write(self.server.answer)


def http(body: bytes, status: str = "200 OK") -> bytes:
    return (
        b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status.encode(), len(body))
        + body
    )


LIES = [
    b"",
    b"\x00\xff" * 100,
    http(b"not json"),
    http(b"[]"),
    http(b"{}", "500 Oh"),
    http(b'{"result": 7}'),
    http(b'{"kvs": 7}'),
    http(b'{"kvs": [7]}'),
    http(b'{"kvs": [{}]}'),
    http(b'{"kvs": [{"key": "?"}]}'),
    http(b'{"kvs": [{"key": "YQ==", "value": 7}]}'),
    http(b'{"kvs": [{"key": "YQ==", "mod_revision": {}}]}'),
    http(b'{"kvs": [{"key": "/////w==", "mod_revision": "1"}]}'),
    http(b'{"header": [], "error": {"code": "x"}}'),
    http(b'{"header": {"revision": "x"}, "kvs": [{"key": "YQ==", "lease": []}]}'),
    http(b'{"error": "a", "code": 14}', "503 Unavailable"),
    http(b"[" * 100_000),
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
]


@pytest.mark.parametrize("answer", LIES, ids=range(len(LIES)))
def test_an_answer_that_makes_no_sense_is_an_error_and_no_more(answer: bytes) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Liar) as server:
        server.daemon_threads = True
        server.answer = answer
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        gateway = Gateway([url], call_timeout_s=0.1, attempt_timeout_s=0.1)
        with contextlib.closing(EtcdStore(gateway)) as store:
            watch = store.watch("a")
            with pytest.raises(KVFerryError):
                raise UnavailableError(str(store.list("a")))
            assert watch.next(0.01) in (None, ((), True))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("etcd://a", ("http://a:2379",)),
        ("etcd://a:1,b:2/", ("http://a:1", "http://b:2")),
        ("etcds://[::1]:7, 10.0.0.1", ("https://[::1]:7", "https://10.0.0.1:2379")),
        ("etcd://[fe80::1]", ("http://[fe80::1]:2379",)),
    ],
)
def test_addresses(text: str, urls: tuple[str, ...]) -> None:
    assert address.parse_endpoints(text) == urls


@pytest.mark.parametrize(
    "text",
    ["etcd://", "etcd://a,,b", "etcd://a:x", "etcd://a:99999", "etcd://::1:2379", "etcd://a/b", "etcd://a?b",
     "etcd://u:p@a", "http://a"],
)  # fmt: skip
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(ClusterOptions(store=text), SECRET)
    assert "cluster.store" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"user": "a"}, "password_file"),
        ({"password_file": "x"}, "user"),
        ({"user": "a", "password_file": "/nowhere"}, "cannot read"),
        ({"ca_file": "/nowhere"}, "etcds://"),
        ({"store": "etcds://a", "ca_file": "/nowhere"}, "cannot be used"),
        ({"store": "etcds://a", "cert_file": "/nowhere"}, "belong together"),
    ],
)
def test_settings_that_contradict(options: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        open_store(ClusterOptions(**{"store": "etcd://a", **options}), SECRET)


@pytest.mark.parametrize("secret", ["", "fifteen letters"])
def test_etcd_is_not_used_without_a_secret(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"transfer\.cluster_secret_file"):
        open_store(ClusterOptions(store="etcd://a"), secret)


def test_an_empty_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        open_store(ClusterOptions(store="etcd://a", user="u", password_file=str(tmp_path / "empty")), SECRET)


def test_what_etcd_gets_is_readable_json() -> None:
    """Nothing but the documented gateway is spoken: text that an administrator can repeat with curl."""
    from kvferry.meta.etcd.store import _put, _range

    assert json.dumps(_range("ab")) == '{"key": "YWI=", "range_end": "YWM="}'
    assert _put("a", b"\xff", None) == {"key": "YQ==", "value": "/w=="}
