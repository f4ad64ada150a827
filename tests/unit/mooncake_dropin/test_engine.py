"""mooncake.engine on KVFerry: what the cases that it shares with Mooncake do not see."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kvferry.errors import OutOfRangeError
from kvferry.testing.waiting import wait_until
from mooncake.engine import TransferEngine, TransferNotify

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[3]


class Side:
    """An engine with one registered MiB."""

    def __init__(self) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0") == 0
        self.bytes = np.zeros(MIB, np.uint8)
        self.base = self.bytes.ctypes.data
        assert self.engine.register_memory(self.base, MIB) == 0

    @property
    def session(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()}"


@pytest.fixture
def near() -> Iterator[Side]:
    side = Side()
    yield side
    side.engine.close()


@pytest.fixture
def far() -> Iterator[Side]:
    side = Side()
    yield side
    side.engine.close()


def test_memory_registered_after_the_first_contact_is_found(near: Side, far: Side) -> None:
    assert near.engine.send_probe(far.session) == 0
    later = np.zeros(4096, np.uint8)
    assert far.engine.register_memory(later.ctypes.data, 4096) == 0
    near.bytes[:10] = 7
    assert near.engine.transfer_sync_write(far.session, near.base, later.ctypes.data, 10) == 0
    assert later[:11].tolist() == [7] * 10 + [0]


def test_memory_that_was_unregistered_is_never_touched(near: Side, far: Side) -> None:
    near.bytes[:] = 1
    assert near.engine.transfer_sync_write(far.session, near.base, far.base, 10) == 0
    assert far.engine.unregister_memory(far.base) == 0
    assert near.engine.transfer_sync_write(far.session, near.base, far.base + 100, 10) == -1
    assert far.bytes[100:].max() == 0
    assert far.engine.register_memory(far.base, 4096) == 0  # as another region, and smaller
    assert near.engine.transfer_sync_write(far.session, near.base, far.base + 100, 10) == 0
    assert near.engine.transfer_sync_write(far.session, near.base, far.base + 4090, 10) == -1
    assert far.bytes[4090:].max() == 0


def test_a_run_must_lie_in_one_region_on_both_sides(near: Side, far: Side) -> None:
    assert far.engine.unregister_memory(far.base) == 0
    assert far.engine.batch_register_memory([far.base, far.base + 4096], [4096, 4096]) == 0
    assert near.engine.transfer_sync_write(far.session, near.base, far.base + 4000, 100) == -1
    assert near.engine.transfer_sync_write(far.session, near.base + MIB - 10, far.base, 11) == -1
    assert (
        near.engine.batch_transfer_sync_write(
            far.session, [near.base] * 2, [far.base, far.base + 4096], [4096] * 2
        )
        == 0
    )


def test_a_failed_batch_registration_leaves_nothing(near: Side) -> None:
    spare = np.zeros(8192, np.uint8).ctypes.data
    assert near.engine.batch_register_memory([spare, near.base], [4096, 4096]) == -7
    assert near.engine.unregister_memory(spare) == -3
    assert near.engine.batch_register_memory([spare], [1, 2]) == -1


def test_many_small_blocks_are_one_plan(near: Side, far: Side) -> None:
    near.bytes[:] = np.arange(MIB, dtype=np.uint32).astype(np.uint8)
    offsets = [index * 256 for index in range(2000)]
    sources = [near.base + offset for offset in offsets]
    targets = [far.base + offset for offset in offsets]
    assert near.engine.batch_transfer_sync_write(far.session, sources, targets, [128] * 2000) == 0
    assert (far.bytes.reshape(-1, 256)[:2000, :128] == near.bytes.reshape(-1, 256)[:2000, :128]).all()
    assert far.bytes.reshape(-1, 256)[:, 128:].max() == 0
    [peer] = near.engine._engine.engine.peers()
    [stats] = peer.stats().by_transport
    assert (stats.transfers, stats.pieces) == (1, 2000)


def test_a_session_that_came_back_is_another_engine(near: Side, far: Side) -> None:
    session = far.session
    assert near.engine.send_probe(session) == 0
    far.engine.close()
    assert near.engine.transfer_sync_write(session, near.base, far.base, 10) == -1
    assert near.engine.send_probe(session) != 0


def test_copies_within_one_engine(near: Side) -> None:
    near.bytes[:10] = 9
    assert near.engine.transfer_sync_write(near.session, near.base, near.base + 4096, 10) == 0
    assert near.bytes[4096:4107].tolist() == [9] * 10 + [0]
    assert near.engine.send_probe(near.session) == 0
    assert near.engine.get_first_buffer_address(near.session) == near.base


def test_calls_before_initialize_are_errors() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0
    assert engine.register_memory(4096, 4096) == -1
    assert engine.unregister_memory(4096) == -1
    assert engine.transfer_sync_read("127.0.0.1:1", 1, 1, 1) == -1
    assert engine.batch_transfer_async_read("127.0.0.1:1", [1], [1], [1]) == 0
    assert engine.get_notifies() == []
    assert engine.allocate_managed_buffer(10) == 0


def test_an_address_other_hosts_reach_needs_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "kvferry.mooncake"):
        assert TransferEngine().initialize("0.0.0.0", "P2PHANDSHAKE", "tcp", "") == -1
    assert "cluster_secret" in caplog.text


def test_the_setting_of_the_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_TRANSFER_BIND", "127.0.0.1:0")
    engine = TransferEngine()
    assert engine.initialize("name.invalid", "P2PHANDSHAKE", "ascend", "") == 0
    engine.close()


@pytest.mark.parametrize("name", ["127.0.0.1:50:npu_3", "[::1]:50", "::1", "localhost"])
def test_host_names_in_all_forms(name: str) -> None:
    engine = TransferEngine()
    assert engine.initialize(name, "P2PHANDSHAKE", "ascend", "") == 0
    assert engine.get_rpc_port() > 0
    engine.close()


def test_own_memory_is_read_only_where_it_is_registered(near: Side) -> None:
    with pytest.raises(OutOfRangeError):
        near.engine.read_bytes_from_buffer(near.base + MIB - 4, 8)
    assert near.engine.write_bytes_to_buffer(64, b"abc", 3) == -1
    assert near.engine.write_bytes_to_buffer(near.base, b"abc", 4) == -1


def test_unknown_batches_have_failed(near: Side) -> None:
    assert near.engine.get_batch_transfer_status([12345]) == -1
    assert near.engine.transfer_check_status(12345) == -1


def test_notifies_of_others_are_dropped(near: Side, far: Side) -> None:
    assert near.engine.send_probe(far.session) == 0
    [peer] = near.engine._engine.engine.peers()
    near.engine._engine.engine.send(peer, b"\x93not ours")
    notify = TransferNotify("a", "b")
    assert near.engine.transfer_sync(far.session, near.base, far.base, 1, 1, notify) == 0
    found: list[TransferNotify] = []

    def arrived() -> bool:
        found.extend(far.engine.get_notifies())
        return bool(found)

    wait_until(arrived)
    assert [(each.name, each.msg) for each in found] == [("a", "b")]


def test_another_process_reads_and_writes(far: Side) -> None:
    far.bytes[:4096] = 5
    script = """
import ctypes, sys
from mooncake.engine import TransferEngine
session, remote = sys.argv[1], int(sys.argv[2])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = (ctypes.c_ubyte * 8192)()
base = ctypes.addressof(memory)
assert engine.register_memory(base, 8192) == 0
assert engine.transfer_sync_read(session, base, remote, 4096) == 0
assert bytes(memory[:4096]) == b"\\5" * 4096
assert engine.transfer_sync_write(session, base, remote + 8192, 4096) == 0
assert engine.transfer_sync_write(session, base, remote - 1, 1) == -1
"""
    path = [str(ROOT / "connectors/mooncake"), *[each for each in sys.path if each]]
    done = subprocess.run(
        [sys.executable, "-c", script, far.session, str(far.base)],
        env={"PYTHONPATH": ":".join(path)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert far.bytes[8192:12288].tolist() == [5] * 4096
    assert ctypes.string_at(far.base + 12288, 16) == bytes(16)


def test_results_that_nobody_asked_for_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_mooncake.batches._MAX_OPEN", 2)
    engine = TransferEngine()
    over, failed = (
        SimpleNamespace(settled=True, error=None),
        SimpleNamespace(settled=True, error=ValueError()),
    )
    batches = [engine._batches.keep(each) for each in (over, failed, over, over, failed, over)]  # type: ignore[arg-type]
    assert [engine.transfer_check_status(batch) for batch in batches] == [1, -1, 1, 1, -1, 1]
    assert engine.transfer_check_status(batches[0]) == -1
