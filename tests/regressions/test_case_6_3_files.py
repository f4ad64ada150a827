"""Field report 6.3: odd sizes, and places above 4 GiB, in a sparse file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvferry.errors import OutOfRangeError
from kvferry.transfer import Engine, Region

GIB = 1 << 30
LENGTH = 5 * GIB + 17
SIZES = [0, 1, 511, 4095, 4096, 4097, (1 << 20) + 1]


def move(engine: Engine, memory: Region, file: Region, op: str, pieces: list[tuple[int, int, int]]) -> None:
    rows = np.array([(memory.id, file.id, *piece) for piece in pieces], dtype=np.uint64)
    engine.execute(engine.prepare(engine.self_peer, rows, op)).raise_if_failed()  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 4095, 4 * GIB - 100_000, 5 * GIB - (1 << 20)])
def test_every_size_is_stored_and_loaded_at_every_place(tmp_path: Path, place: int) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as sparse:
        sparse.truncate(LENGTH)
    with Engine() as engine:
        file = engine.open_file(path, access="rw")
        assert file.length_bytes == LENGTH
        memory = engine.allocate(8 << 20, name="memory", access="rw")
        view = np.frombuffer(memory.memory, dtype=np.uint8)
        for size in SIZES:
            data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
            view[:] = 0xAA
            view[3 : 3 + size] = data
            move(engine, memory, file, "write", [(3, place, size)])
            move(engine, memory, file, "read", [(4 << 20, place, size)])
            assert (view[4 << 20 : (4 << 20) + size] == data).all()
            assert view[(4 << 20) + size] == 0xAA
        with path.open("rb") as stored:
            stored.seek(place)
            assert stored.read(SIZES[-1]) == data.tobytes()
        with pytest.raises(OutOfRangeError):
            move(engine, memory, file, "read", [(0, LENGTH - 10, 11)])
    assert path.stat().st_size == LENGTH
    assert path.stat().st_blocks * 512 < 64 << 20, "the file is not sparse any more"
