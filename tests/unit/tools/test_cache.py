"""Cache entries are whole or absent, also after an interrupted build and between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools import cache

ROOT = Path(__file__).resolve().parents[3]
KEY = "0123456789ab"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path))
    return tmp_path


def write_one(folder: Path) -> None:
    (folder / "one").write_text("1")


@pytest.mark.parametrize("in_place", [False, True])
def test_entry_is_built_once(in_place: bool) -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        write_one(folder)

    first = cache.ensure("thing", KEY, build, in_place=in_place)
    assert cache.ensure("thing", KEY, build, in_place=in_place) == first
    assert (first / "one").read_text() == "1"
    assert len(calls) == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_interrupted_build_is_done_again_from_nothing(in_place: bool) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.ensure("thing", KEY, interrupted, in_place=in_place)
    entry = cache.ensure("thing", KEY, write_one, in_place=in_place)
    assert (entry / "one").exists()
    assert not (entry / "half").exists()


def test_digest_separates_its_parts() -> None:
    assert cache.digest("ab", "c") != cache.digest("a", "bc")


def test_digest_follows_file_contents(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text("a==1")
    first = cache.digest(file)
    file.write_text("a==2")
    assert cache.digest(file) != first


def test_entries_unused_for_long_are_dropped(own_cache: Path) -> None:
    old = cache.ensure("thing", KEY, write_one)
    other = cache.ensure("thing-two", KEY, write_one)
    long_ago = time.time() - 30 * 86400
    for entry in (old, other):
        os.utime(entry / ".kvferry-complete", (long_ago, long_ago))
    cache.ensure("thing", "ba9876543210", write_one)
    assert not old.exists()
    assert other.exists()


def test_two_processes_build_one_entry(own_cache: Path) -> None:
    code = (
        "import time\nfrom tools import cache\n"
        "def build(folder):\n"
        "    with open(cache.cache_root() / 'built', 'a') as file: file.write('x')\n"
        "    time.sleep(0.5)\n"
        f"cache.ensure('thing', {KEY!r}, build)\n"
    )
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (own_cache / "built").read_text() == "x"
