"""mooncake.store on KVFerry: what is refused, without a crash and with a reason in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.errors import UnavailableError
from kvferry.handoff import WarningThrottle
from kvferry.store import GetResult, PutResult, Store
from kvferry.testing.nodes import NodeChild
from kvferry_mooncake import codes, engine
from mooncake.store import MooncakeDistributedStore

NAME = "kvferry.mooncake"
MIB = 1 << 20
BAD = [0, -1, -(1 << 63), 1 << 63, 1 << 70, 100]
FULL = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": 16 * MIB}


@pytest.fixture(autouse=True)
def log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What is logged, where nothing was logged before and no node is known."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(codes, "_warnings", WarningThrottle(clock=lambda: 0.0))
    caplog.set_level(logging.DEBUG, NAME)
    return caplog


@pytest.fixture
def store() -> Iterator[MooncakeDistributedStore]:
    found = MooncakeDistributedStore()
    assert found.setup({**FULL, "master_server_addr": "embedded"}) == 0
    yield found
    found.close()


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [text for name, level, text in log.record_tuples if name == NAME and level >= logging.WARNING]


def test_the_name_that_files_have_is_one_of_setup(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    with NodeChild(tmp_path, "--dram", "16MiB") as node:
        store = MooncakeDistributedStore()
        given = {**FULL, "ipc_socket_path": "", "device_name": "", "protocol": "tcp"}
        assert store.setup({**given, "master_server_address": node.advert.endpoint}) == 0
        assert store.put("a", b"x") == 0
        with node.open(tenant="mooncake") as theirs:
            assert theirs.get("a") == b"x"
        store.close()
        assert warnings(log) == []
        assert f"attached to the node {node.advert.endpoint}" in log.text


def test_an_unknown_name_is_told_with_the_nearest(log: pytest.LogCaptureFixture) -> None:
    store = MooncakeDistributedStore()
    assert store.setup({**FULL, "master_server_adr": "x", "zzz": 1}) == 0
    store.close()
    first, second = warnings(log)
    assert "'master_server_adr'" in first
    assert "'master_server_addr'" in first
    assert "'zzz'" in second
    assert "ssd_offload_path" in second
    [info] = [text for name, level, text in log.record_tuples if (name, level) == (NAME, logging.INFO)]
    assert "in this process" in info
    assert "16MiB" in info.replace(" ", "")


def test_an_offload_path_needs_its_parent(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "missing" / "ssd"
    more = {"master_server_addr": "embedded", "enable_ssd_offload": True, "ssd_offload_path": str(path)}
    assert MooncakeDistributedStore().setup({**FULL, **more}) == -1
    assert not path.parent.exists()
    assert "the directory that it should be in is not there" in log.text


@pytest.mark.parametrize("size", [-1, 1000])
def test_too_small_a_segment_is_told(size: int, log: pytest.LogCaptureFixture) -> None:
    store = MooncakeDistributedStore()
    assert store.setup({**FULL, "master_server_addr": "embedded", "global_segment_size": size}) == 0
    store.close()
    [text] = warnings(log)
    assert str(size) in text
    assert "1MiB" in text.replace(" ", "")


@pytest.mark.parametrize("bad", BAD)
def test_addresses_that_cannot_be(store: MooncakeDistributedStore, bad: int) -> None:
    assert store.put("a", b"old") == 0
    assert store.put_from("n", bad, 8) == -600
    assert store.upsert_from("a", bad, 8) == -600
    assert store.get_into("a", bad, 8) == -600
    assert store.batch_put_from_multi_buffers(["n"], [[bad]], [[8]]) == [-600]
    assert store.batch_get_into_multi_buffers(["a"], [[bad]], [[8]]) == [-600]
    assert store.batch_get_session_start(["a"]) == [0]
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[bad]], [[3]], [[0]]) == [-600]
    assert store.batch_put_session_start(["s"], [8]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[bad]], [[8]], [[0]]) == [-600]
    assert store.register_buffer(bad, 8) == -600
    assert store.unregister_buffer(bad) == -600
    assert store.get("a") == b"old"
    assert store.is_exist("n") == 0


def test_sizes_that_cannot_be(store: MooncakeDistributedStore) -> None:
    memory = np.ones(8, np.uint8)
    base = memory.ctypes.data
    for bad in (-1, 1 << 64):
        assert store.put_from("n", base, bad) == -600
        assert store.get_into("n", base, bad) == -600
        assert store.batch_put_session_start(["s"], [bad]) == [-600]
    assert store.batch_put_session_start(["s"], [8]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[0, base]], [[0, 8]], [[0, 0]]) == [8]


def test_what_is_well_in_a_batch_is_done(store: MooncakeDistributedStore) -> None:
    memory = np.arange(64, dtype=np.uint8)
    base = memory.ctypes.data
    keys = ["a", "b", "c"]
    assert store.batch_put_from(keys, [base, 0, base + 8], [8] * 3) == [0, -600, 0]
    nested = [[base + 32], [base, -1], [base + 40, base + 44]]
    assert store.batch_get_into_multi_buffers(keys, nested, [[8], [4, 4], [4, 4]]) == [8, -600, 8]
    assert memory[32:48].tolist() == list(range(16))
    assert store.batch_upsert_from(keys, [0, base, base], [8] * 3) == [-600, 0, 0]
    assert store.get("a") == bytes(range(8))


def test_an_upsert_of_nothing_keeps_what_is_there(store: MooncakeDistributedStore) -> None:
    assert store.put("a", b"old") == 0
    assert store.upsert("a", b"") == -600
    assert store.upsert_batch(["a", "b"], [b"new"]) == -600
    assert store.batch_upsert_from(["a", "b"], [1], [1]) == [-600, -600]
    assert store.get("a") == b"old"


REFUSALS: dict[str, tuple[Callable[[MooncakeDistributedStore, int], Any], str]] = {
    "too large": (lambda store, _: store.put("big", bytes(64 * MIB)), "larger than all memory"),
    "too large, at an address": (
        lambda store, at: store.put_from("big", at, 1 << 40),
        "larger than all memory",
    ),
    "long key": (lambda store, _: store.put("k" * 2000, b"x"), "1 to 1024 bytes"),
    "uneven": (lambda store, at: store.batch_put_from(["a", "b"], [at], [1, 1])[0], r"2 keys"),
    "uneven parts": (
        lambda store, at: store.batch_put_from_multi_buffers(["a"], [[at]], [[]])[0],
        "more addr",
    ),
    "uneven values": (lambda store, _: store.put_batch(["a", "b"], [b"x"]), "2 keys"),
    "uneven ranges": (
        lambda store, at: store.batch_get_into_multi_buffer_ranges(["a"], [], [[1]], [[0]])[0],
        "1 keys",
    ),
    "little room": (lambda store, at: store.get_into("here", at, 2), "the target only 2"),
    "registered twice": (lambda store, at: store.register_buffer(at, 8), "registered already"),
    "no session": (lambda store, _: store.batch_put_session_end(["s"])[0], "no session"),
    "no bytes": (lambda store, _: store.put("a", b""), "no bytes"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_has_one_reason(
    store: MooncakeDistributedStore, log: pytest.LogCaptureFixture, name: str
) -> None:
    call, reason = REFUSALS[name]
    memory = np.zeros(8, np.uint8)
    assert store.put("here", b"eight by") == 0
    assert store.register_buffer(memory.ctypes.data, 8) == 0
    for _ in range(5):
        assert call(store, memory.ctypes.data) == -600
    [text] = warnings(log)
    assert reason in text


def test_a_node_that_is_gone_is_told_once(
    store: MooncakeDistributedStore, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = UnavailableError("the node is gone")
    memory = np.zeros(8, np.uint8)
    keys, places, sizes = [f"k{index}" for index in range(128)], [memory.ctypes.data] * 128, [8] * 128

    def results(kind: Any) -> Callable[..., Any]:
        return lambda _store, keys, *_args, **_more: [kind] * len(keys)

    monkeypatch.setattr(Store, "put_runs", results(PutResult(gone, False, 0)))
    monkeypatch.setattr(Store, "get_runs_into", results(GetResult(gone, 0)))
    assert store.batch_put_from(keys, places, sizes) == [-800] * 128
    assert store.batch_get_into(keys, places, sizes) == [-800] * 128
    [text] = warnings(log)
    assert "the node is gone" in text


def test_what_is_merely_absent_is_not_logged(
    store: MooncakeDistributedStore, log: pytest.LogCaptureFixture
) -> None:
    assert (store.get("absent"), store.get_size("absent"), store.remove("absent")) == (b"", -704, -704)
    assert store.put("a", b"x") == store.put("a", b"x") == 0
    assert warnings(log) == []


@pytest.mark.parametrize(
    ("given", "used"), [("abc", 30.0), ("-3", 30.0), ("2", 5.0), ("40", None), ("", None)]
)
def test_a_time_limit_that_is_none(
    given: str, used: float | None, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", given)
    monkeypatch.setenv("KVFERRY_TRANSFER_TRANSFER_TIMEOUT_S", "30")
    found = engine.TransferEngine()
    assert found.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    if used is None:
        assert warnings(log) == []
    else:
        [text] = warnings(log)
        assert given in text
        assert f"{used:g} s are used" in text
