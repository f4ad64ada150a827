"""Jumps of the wall clock change nothing: what waits, expires or is suspected goes by the monotonic clock."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PYTHON = ("store", "node", "meta", "transfer", "handoff")
WALL_CLOCKS = re.compile(
    r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\((nullptr|0|NULL)\)|time\.time\(|datetime\.(now|utcnow)"
)
# An object on SSD outlives the clock of the machine's run: when it expires is kept there by the wall clock.
EXCUSED = {"native/src/store/object_attributes.cc"}


def test_the_store_has_no_wall_clock() -> None:
    folders = ("native/src", "native/include/kvferry", *(f"core/kvferry/{part}" for part in PYTHON))
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    sources = [path for path in files if path.suffix in {".cc", ".h", ".py"}]
    assert len(sources) > 100
    found = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if WALL_CLOCKS.search(path.read_text(encoding="utf-8"))
    }
    assert found == EXCUSED
