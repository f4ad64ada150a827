"""mooncake.store on KVFerry: what the cases that it shares with Mooncake do not see."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.errors import ResourceExhaustedError, UnavailableError, UnsupportedError
from kvferry.store import Store
from kvferry.testing.nodes import NodeChild
from kvferry_mooncake.store.sessions import GetSessions
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig

MIB = 1 << 20


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where the nodes of this test find each other, and no others."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeChild]:
    """A node of this machine, for all tests here that want one."""
    directory = tmp_path_factory.mktemp("cluster")
    directory.chmod(0o700)
    with NodeChild(directory, "--dram", "64MiB") as found:
        yield found


def opened(master: str, *, segment: int = 16 * MIB, **more: Any) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    full = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": segment,
        "master_server_addr": master,
        **more,
    }
    assert store.setup(full) == 0
    return store


@pytest.fixture
def store() -> Iterator[MooncakeDistributedStore]:
    found = opened("embedded")
    yield found
    found.close()


def test_without_a_store_every_call_fails() -> None:
    store = MooncakeDistributedStore()
    for _ in range(2):
        assert store.health_check() == 1
        assert store.put("a", b"x") == -600
        assert store.put_batch(["a"], [b"x"]) == -600
        assert store.batch_put_from(["a", "b"], [1, 2], [1, 1]) == [-600, -600]
        assert store.batch_get_into(["a"], [1], [1]) == [-600]
        assert (store.get("a"), store.get_buffer("a"), store.get_size("a")) == (b"", None, -600)
        assert store.batch_is_exist(["a", "b"]) == [-1, -1]
        assert (store.remove("a"), store.remove_all(), store.remove_by_regex("a")) == (-600, -600, -600)
        assert store.batch_get_session_start(["a"]) == [-600]
        assert store.batch_put_session_end(["a"]) == [-600]
        assert store.register_buffer(4096, 1) == -600
        assert store.close() == 0


def test_two_members_of_a_cluster_share_objects() -> None:
    first, second = opened("cluster"), opened("cluster")
    try:
        assert first.put("a", b"from the first") == 0
        assert second.get("a") == b"from the first"
        assert second.batch_is_exist(["a", "b"]) == [1, 0]
        both = ReplicateConfig()
        both.replica_num = 2
        assert second.put("b", b"both have it", both) == 0
        assert first.get("b") == b"both have it"
        assert second.remove_all() == 2
        assert first.get("a") == b""
        assert first.get_hostname() != second.get_hostname()
    finally:
        second.close()
        first.close()


def test_a_node_named_by_its_address(node: NodeChild) -> None:
    store = opened(node.advert.endpoint)
    assert store.put("a", b"x" * 1000) == 0
    other = MooncakeDistributedStore()
    assert other.setup_dummy(MIB, MIB, node.advert.endpoint) == 0
    assert other.get("a") == b"x" * 1000
    pool = other.alloc_from_mem_pool(4096)
    assert other.get_into("a", pool, 4096) == 1000
    assert ctypes.string_at(pool, 1000) == b"x" * 1000
    # objects of others in the same pool are not ours to see, nor to remove
    with node.open() as theirs:
        theirs.put("theirs", b"kept")
        assert other.batch_is_exist(["theirs"]) == [0]
        assert other.remove_all() == 1
        assert theirs.get("theirs") == b"kept"
    store.close()
    other.close()


def test_auto_takes_the_node_of_this_machine(node: NodeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = opened("auto")  # none here: it brings its own
    assert alone.put("auto", b"1") == 0
    monkeypatch.setenv("KVFERRY_CLUSTER_DIRECTORY", str(node.cluster.directory))
    first, second = opened(""), opened("auto")
    assert first.put("auto", b"2") == 0
    assert second.get("auto") == b"2"
    assert alone.get("auto") == b"1"
    for store in (second, first, alone):
        store.close()


def test_the_setting_of_the_node_wins(node: NodeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_STORE_NODE", node.advert.endpoint)
    monkeypatch.setenv("KVFERRY_STORE_TENANT", "chosen")
    store = opened("10.255.255.1:50051")
    assert store.put("a", b"x") == 0
    with node.open(tenant="chosen") as theirs:
        assert theirs.get("a") == b"x"
    store.close()


def test_tenants_do_not_meet(node: NodeChild) -> None:
    first = opened(node.advert.endpoint, tenant_id="one")
    second = opened(node.advert.endpoint, tenant_id="two")
    assert first.put("a", b"x") == 0
    assert second.is_exist("a") == 0
    second.close()
    first.close()


def test_a_master_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "kvferry.mooncake"):
        assert MooncakeDistributedStore().setup("h", "P2PHANDSHAKE", 1, 1, "tcp", "", "name.invalid:1") == -1
    assert "name.invalid" in caplog.text


def test_what_leaves_memory_goes_to_the_offload_path(tmp_path: Path) -> None:
    folder = tmp_path / "ssd"
    store = opened("embedded", segment=8 * MIB, enable_ssd_offload="true", ssd_offload_path=str(folder))
    value = np.arange(MIB, dtype=np.uint32).astype(np.uint8)
    for index in range(24):
        assert store.put(f"k{index}", value) == 0
    assert store.batch_is_exist([f"k{index}" for index in range(24)]) == [1] * 24
    assert store.get("k0") == value.tobytes()
    store.close()
    assert any(folder.rglob("*"))


def test_objects_in_place_outlive_their_removal(store: MooncakeDistributedStore) -> None:
    assert store.put("a", b"abc" * 1000) == 0
    handle = store.get_buffer("a")
    assert handle is not None
    assert store.remove("a") == 0
    assert store.get_buffer("a") is None
    view = memoryview(handle)
    del handle
    assert bytes(view) == b"abc" * 1000
    assert view.readonly


def test_lists_that_are_not_alike_are_refused(store: MooncakeDistributedStore) -> None:
    assert store.batch_put_from(["a", "b"], [1], [1, 1]) == [-600, -600]
    assert store.batch_get_into(["a"], [], [1]) == [-600]
    assert store.batch_put_from_multi_buffers(["a"], [[1, 2]], [[1]]) == [-600]
    assert store.batch_get_into_multi_buffers(["a", "b"], [[1]], [[1]]) == [-600, -600]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_batches_say_what_became_of_each_key(store: MooncakeDistributedStore) -> None:
    data = np.arange(4096, dtype=np.uint32).astype(np.uint8)
    base = data.ctypes.data
    assert store.batch_put_from(["a", "b"], [base, base], [100, 4096]) == [0, 0]
    target = np.zeros(8192, np.uint8)
    into = target.ctypes.data
    assert store.batch_get_into(["a", "b", "c"], [into, into + 200, into], [200, 64, 1]) == [100, -600, -704]
    assert target[:100].tolist() == data[:100].tolist()


def test_objects_larger_than_the_node_are_refused(store: MooncakeDistributedStore) -> None:
    assert store.put("big", bytes(64 * MIB)) == -600
    assert store.is_exist("big") == 0


def test_many_threads(store: MooncakeDistributedStore) -> None:
    wrong: list[str] = []

    def work(name: int) -> None:
        for index in range(30):
            key = f"{name}-{index}"
            if store.put(key, key.encode() * 50) != 0 or store.get(key) != key.encode() * 50:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert wrong == []
    assert store.remove_by_regex(r"^1-\d$") == 10
    assert store.remove_all() == 110


def test_put_sessions_end_once(store: MooncakeDistributedStore) -> None:
    data = np.full(100, 3, np.uint8)
    base = data.ctypes.data
    assert store.batch_put_session_start(["s", "s"], [50, 50]) == [0, -705]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[base]], [[51]], [[0]]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[base]], [[50]], [[0, 1]]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[base]], [[40]], [[10]]) == [40]
    assert store.batch_put_session_end(["s", "s"]) == [0, -600]
    assert store.get("s") == bytes(10) + b"\3" * 40


def test_memory_of_the_allocator_outlives_it() -> None:
    address = MooncakeHostMemAllocator().alloc(10000)
    ctypes.memset(address, 1, 10000)
    assert ctypes.string_at(address, 10000) == b"\1" * 10000
    assert MooncakeHostMemAllocator().free(address) == 0
    assert MooncakeHostMemAllocator().free(address) == -1


def test_set_up_once_more_is_another_store(store: MooncakeDistributedStore) -> None:
    assert store.put("a", b"x") == 0
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 2 * MIB, 0, "tcp", "", "embedded") == 0
    assert store.is_exist("a") == 0
    assert store.setup({"local_hostname": "h", "metadata_server": "m", "global_segment_size": "x"}) == -600
    assert store.health_check() == 0


def failing(error: Exception, count: int | None = None) -> Any:
    """Return a method that raises, or answers so for each key."""

    def call(_self: Store, keys: Any, **_options: Any) -> list[Exception]:
        if count is not None:
            raise error
        return [error for _ in keys]

    return call


def test_an_upsert_that_cannot_remove_is_no_success(
    store: MooncakeDistributedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.put("a", b"old") == 0
    monkeypatch.setattr(Store, "remove_many", failing(UnavailableError("a node is stopped")))
    bytes_ = np.zeros(3, np.uint8)
    assert store.upsert("a", b"new") == -800
    assert store.upsert_parts("a", b"n", b"ew") == -800
    assert store.upsert_batch(["a"], [b"new"]) == -800
    assert store.batch_upsert_from(["a"], [bytes_.ctypes.data], [3]) == [-800]
    assert store.get("a") == b"old"


def test_memory_in_use_stays_known(store: MooncakeDistributedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = np.zeros(4096, np.uint8)
    assert store.register_buffer(memory.ctypes.data, memory.nbytes) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Store, "unregister", failing(ResourceExhaustedError("in use"), count=1))
        assert store.unregister_buffer(memory.ctypes.data) == -200
    assert store.unregister_buffer(memory.ctypes.data) == 0
    assert store.unregister_buffer(memory.ctypes.data) == -600


def test_a_session_of_what_is_not_there_on_another_host() -> None:
    class Remote:
        def view(self, _key: str) -> None:
            raise UnsupportedError("the node is on another host")

        def get(self, _key: str) -> None:
            return None

    sessions: Any = GetSessions(Remote())  # type: ignore[arg-type]
    assert sessions.start("absent") == -704
