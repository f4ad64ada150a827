"""A prefix that was computed before: where it is found, and how long its first token then takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.vllm_bench.peers import example, lmcache, lmcache_server, mooncake_store
from benchmarks.vllm_bench.run import PREFIX, Run, fresh_folder, node

from engines.engine_lab import LabEngine

ENDS = "mooncake"  # its store, with the engine
HITS = 3  # for each prefix that was computed
CHUNK = 64  # tokens, of LMCache's: the prefix is a whole number of them
MIB = 1 << 20


def shared_prefixes(run: Run, python: Path, peers: Collection[str]) -> None:
    """Computed, from vLLM's own cache, from memory of the machine, and after a restart of the engine.

    `peers`: which of LMCache and Mooncake the interpreter has.
    """
    with ExitStack() as stack:
        cluster = fresh_folder(run.folder, "memory")
        room = run.rounds * 4 * _prefix_mib(run) // 3 + 64
        node(stack, cluster, "--dram", f"{room}MiB")
        files = fresh_folder(run.folder, "files")
        make: dict[str, Callable[[], LabEngine]] = {
            "ours": lambda: run.ours(cluster),
            "example": lambda: run.start(example(files)),
        }
        if "lmcache" in peers:
            port = lmcache_server(stack, python, run.folder, gib=2, chunk=CHUNK)
            make["lmcache"] = lambda: run.start(lmcache(port))
        if "mooncake" in peers:
            within, apart = (
                mooncake_store(stack, python, run.folder, room=room * MIB, apart=each)
                for each in (False, True)
            )
            make[ENDS] = lambda: run.start(*within)
            make["mooncake apart"] = lambda: run.start(*apart)
        _rounds(run, make)


def _rounds(run: Run, make: Mapping[str, Callable[[], LabEngine]]) -> None:
    plain = run.start(None)
    engines = {name: start() for name, start in make.items()}
    prefixes = [run.tokens(PREFIX) for _ in range(run.rounds)]
    for number, prefix in enumerate(prefixes):
        turns = list(engines)[number % len(engines) :] + list(engines)[: number % len(engines)]
        run.first_token("cold", plain, prefix, hit=False)
        for name in turns:
            run.first_token(f"{name} cold", engines[name], prefix, hit=False)
            run.forget(engines[name])
        for _ in range(HITS):
            run.first_token("own", plain, prefix, hit=True)
            for name in turns:
                run.first_token(name, engines[name], prefix, hit=True)
                run.forget(engines[name])
        run.forget(plain)
    for engine in (plain, *engines.values()):
        run.lab.stop(engine)
    again = {name: start() for name, start in make.items() if name != ENDS}
    for prefix in prefixes:
        for name, engine in again.items():
            run.first_token(f"{name} again", engine, prefix, hit=True)
    for engine in again.values():
        run.lab.stop(engine)


def from_disk(run: Run, python: Path, peers: Collection[str]) -> None:
    """Prefixes that memory has no room for, on the same disk for all: read from the device."""
    with ExitStack() as stack:
        cluster, disk = fresh_folder(run.folder, "ssd"), fresh_folder(run.folder, "disk")
        small = _prefix_mib(run) * 3 // 2
        flags = ("--dram", f"{small}MiB", "--ssd", f"{disk}:2GiB")
        ours = node(stack, cluster, *flags, environ={"KVFERRY_STORE_SSD_WRITE": "through"})
        store = stack.enter_context(ours.open())

        def written() -> bool:
            counters = store.node_stats().counters
            return bool(counters["ssd_written_total"] >= counters["stored_total"])

        files = fresh_folder(run.folder, "disk-files")
        engines = {"ours": run.ours(cluster), "example": run.start(example(files))}
        if "lmcache" in peers:
            there = fresh_folder(run.folder, "disk-lmcache")
            l2 = {"type": "fs_native", "base_path": str(there), "use_odirect": True}
            port = lmcache_server(stack, python, run.folder, gib=1, chunk=CHUNK, l2=l2)
            engines["lmcache"] = run.start(lmcache(port))
        prefixes = [run.tokens(PREFIX) for _ in range(run.rounds)]
        for prefix in prefixes:
            for name, engine in engines.items():
                run.first_token(f"{name} disk cold", engine, prefix, hit=False)
                run.forget(engine)
            wait_for(written, "the SSD tier did not take the blocks in")
        forget_pages(files)
        for prefix in prefixes:
            for name, engine in engines.items():
                run.first_token(f"{name} disk", engine, prefix, hit=True)
                run.forget(engine)
        for engine in engines.values():
            run.lab.stop(engine)


def forget_pages(folder: Path) -> None:
    """Have the files of a folder on the disk, and not in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait until it is so. Raises TimeoutError with `what`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def _prefix_mib(run: Run) -> int:
    """About how many MiB of KV cache a prefix has, rounded up."""
    return -(-run.token_bytes * PREFIX // MIB)
