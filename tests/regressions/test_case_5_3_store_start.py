"""Case 5.3, the store's side: a node makes the pages of a big pool, and others are answered meanwhile."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path

from kvferry.store import Store
from kvferry.testing.nodes import NodeChild

LONGEST_ANSWER_S = 10.0  # generous: the field case saw minutes
PROBES_PER_S = 50


class Prober:
    """Asks a node for its health, and a store for an object, over and over. A context manager."""

    def __init__(self, node: NodeChild) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe)
        self.answers = 0
        self.slowest_s = 0.0
        self.failure: Exception | None = None

    def _probe(self) -> None:
        try:
            with self._node.open(timeout_s=LONGEST_ANSWER_S) as store:
                store.put("probe", b"value")
                while not self._stop.wait(1 / PROBES_PER_S):
                    self._probe_once(store)
        except Exception as error:  # noqa: BLE001  (told by __exit__)
            self.failure = error

    def _probe_once(self, store: Store) -> None:
        begin = time.monotonic()
        url = f"{self._node.advert.admin}/health"
        with urllib.request.urlopen(url, timeout=LONGEST_ANSWER_S) as answer:
            assert "status" in json.load(answer)
        assert store.get("probe") == b"value"
        self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
        self.answers += 1

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


def test_nodes_and_programs_are_answered_while_a_big_pool_starts(tmp_path: Path, extent) -> None:
    with NodeChild(tmp_path, "--dram", "16MiB") as small, Prober(small) as probed:
        begin = time.monotonic()
        with NodeChild(tmp_path, "--dram", f"{extent.times(512, 8192)}MiB") as big:
            took_s = time.monotonic() - begin
            with big.open() as store:  # it answers as soon as it can be found
                assert store.put("first", b"value").created
    print(f"{took_s:.1f} s to start, slowest of {probed.answers} answers {1e3 * probed.slowest_s:.0f} ms")
    assert probed.answers > 0
    assert probed.slowest_s < 2 * LONGEST_ANSWER_S
