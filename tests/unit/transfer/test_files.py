from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvferry.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    StaleError,
)
from kvferry.transfer import Engine, Region, TransferOptions


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture
def memory(engine: Engine) -> Region:
    region = engine.allocate(1 << 20, name="memory", access="rw")
    np.frombuffer(region.memory, dtype=np.uint8)[:] = np.random.default_rng(1).integers(0, 256, 1 << 20)
    return region


def move(engine: Engine, memory: Region, file: Region, op: str, pieces: list[tuple[int, int, int]]) -> None:
    rows = np.array([(memory.id, file.id, *piece) for piece in pieces], dtype=np.uint64)
    transfer = engine.submit(engine.prepare(engine.self_peer, rows, op))  # type: ignore[arg-type]
    assert transfer.wait()
    transfer.raise_if_failed()
    assert transfer.transport == "file"


def test_what_was_stored_is_loaded(engine: Engine, memory: Region, tmp_path: Path) -> None:
    file = engine.open_file(tmp_path / "kv", length_bytes=1 << 20, create=True, access="rw", sync="data")
    assert (file.kind, file.name, file.length_bytes) == ("file", str(tmp_path / "kv"), 1 << 20)
    before = bytes(memory.memory)
    move(engine, memory, file, "write", [(0, 0, 4096), (8192, 5000, 100_003)])
    stored = (tmp_path / "kv").read_bytes()
    assert stored[:4096] == before[:4096]
    assert stored[5000:105_003] == before[8192:108_195]
    memory.memory[:] = bytes(1 << 20)
    move(engine, memory, file, "read", [(0, 5000, 100_003)])
    assert memory.memory[:100_003] == before[8192:108_195]


def test_note_tells_how_and_why(tmp_path: Path) -> None:
    with Engine(TransferOptions(io_uring=False)) as engine:
        file = engine.open_file(tmp_path / "kv", length_bytes=4096, create=True, direct="never")
        assert file.note == "buffered: as asked for; by pread and pwrite: io_uring is switched off"
        assert "io_uring is switched off" in engine.self_peer.transport_note
        assert engine.register(bytearray(10)).note == ""
        file.unregister()
        with pytest.raises(NotFoundError):
            _ = file.note


def test_a_region_of_a_file_has_no_view(engine: Engine, tmp_path: Path) -> None:
    file = engine.open_file(tmp_path / "kv", length_bytes=4096, create=True)
    with pytest.raises(StaleError):
        _ = file.memory


def test_errors_name_the_path(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="missing"):
        engine.open_file(tmp_path / "missing")
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(OutOfRangeError, match="short"):
        engine.open_file(tmp_path / "short", length_bytes=4)
    with pytest.raises(InvalidArgumentError, match="neither a regular file"):
        engine.open_file(tmp_path)
    for wrong in ({"direct": "perhaps"}, {"sync": "later"}, {"access": "x"}):
        with pytest.raises(InvalidArgumentError, match="must be"):
            engine.open_file(tmp_path / "short", **wrong)  # type: ignore[arg-type]


def test_path_of_any_bytes(engine: Engine, memory: Region, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/kv-\xff")
    file = engine.open_file(path, length_bytes=4096, create=True, access="w")
    move(engine, memory, file, "write", [(0, 0, 4096)])
    assert Path(path).stat().st_size == 4096


def test_a_file_opened_for_reading_is_not_written(engine: Engine, memory: Region, tmp_path: Path) -> None:
    (tmp_path / "kv").write_bytes(bytes(8192))
    file = engine.open_file(tmp_path / "kv")
    with pytest.raises(AccessDeniedError):
        move(engine, memory, file, "write", [(0, 0, 4096)])
    move(engine, memory, file, "read", [(0, 0, 8192)])
    assert bytes(memory.memory[:8192]) == bytes(8192)


def test_a_truncated_file_fails_its_pieces_by_name(engine: Engine, memory: Region, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    file = engine.open_file(path, length_bytes=65536, create=True, access="rw")
    os.truncate(path, 10_000)
    rows = np.array([(memory.id, file.id, at, at, 4096) for at in (0, 40_960)], dtype=np.uint64)
    transfer = engine.submit(engine.prepare(engine.self_peer, rows, "read"))
    assert transfer.wait()
    first, second = transfer.piece_errors
    assert first is None
    assert isinstance(second, OutOfRangeError)
    assert str(path) in str(second)


def test_the_own_peer_copies_memory_and_sends_messages(engine: Engine, memory: Region) -> None:
    peer = engine.self_peer
    assert (peer.handle, peer.node_id, peer.same_host, peer.alive) == (0, engine.node_id, True, True)
    assert engine.peer(0) == peer
    assert peer not in engine.peers()
    target = engine.allocate(1 << 20, name="target")
    rows = np.array([(target.id, memory.id, 0, 0, 1 << 20)], dtype=np.uint64)

    async def copy() -> None:
        transfer = await engine.submit(engine.prepare(peer, rows, "read"), notify=b"done")
        assert transfer.transport == "local"

    asyncio.run(copy())
    assert target.memory == memory.memory
    message = engine.next_message(5)
    assert message is not None
    assert (message.peer, message.body) == (0, b"done")
    assert peer.stats().bytes_read == 1 << 20
    peer.close()  # has no effect: a node cannot part from itself
    assert engine.self_peer.alive
