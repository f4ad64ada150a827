"""A client process of the campaign: does what it is told on stdin, one JSON object per line, and answers so.

    python -m tests.faults.store.client STORE_CONFIG_JSON HISTORY_FILE

Everything it asks of the store goes into the history: a row when it begins (the process may be killed in the
middle) and one when it ends. Times are those of CLOCK_MONOTONIC, the same for all processes of the machine.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from tests.faults.store.values import VARIANTS, content, size_of, variant_of

from kvferry.config import load_config
from kvferry.errors import KVFerryError
from kvferry.store import Store, open_store


class Client:
    """The store and the file that says what was asked of it."""

    def __init__(self, store: Store, history: str) -> None:
        self._store = store
        self._history = open(history, "w", encoding="ascii", buffering=1)  # noqa: SIM115 (as long as the process)
        self._count = 0

    def _begin(self, op: str, key: str, variant: int | None = None) -> None:
        self._count += 1
        self._row([self._count, "begin", op, key, variant, time.monotonic()])

    def _end(self, outcome: Any) -> Any:
        self._row([self._count, "end", outcome, time.monotonic()])
        return outcome

    def _row(self, row: list[Any]) -> None:
        self._history.write(json.dumps(row) + "\n")

    def put(self, key: str, variant: int = 0, replicas: int = 1, parent: str | None = None) -> str:
        """Store; "created NUMBER OF REPLICAS", "there", or an error's code."""
        value = content(key, variant)
        self._begin("put", key, variant)
        try:
            done = self._store.put(key, value, replicas=replicas, parent=parent)
        except KVFerryError as error:
            return str(self._end(error.code))
        return str(self._end(f"created {done.replicas}" if done.created else "there"))

    def get(self, key: str) -> Any:
        """Read, in one of the ways; the variant, "absent", "wrong", or an error's code."""
        self._begin("get", key)
        try:
            data = self._store.get(key)
        except KVFerryError as error:
            return self._end(error.code)
        if data is None:
            return self._end("absent")
        seen = variant_of(key, data)
        return self._end("wrong" if seen is None else seen)

    def view(self, key: str) -> Any:
        """Read in place; like `get`, but what has no room here is not an error."""
        self._begin("get", key)
        try:
            with self._store.view(key) as view:
                seen = variant_of(key, bytes(view.data))
        except KVFerryError as error:
            full = error.code == "resource_exhausted"
            return self._end("absent" if error.code == "not_found" else "no room" if full else error.code)
        return self._end("wrong" if seen is None else seen)

    def read_range(self, key: str) -> Any:
        """Read some bytes from within."""
        size = size_of(key)
        target = bytearray(size - size // 3)
        self._begin("get", key)
        try:
            self._store.get_range(key, size // 3, target)
        except KVFerryError as error:
            return self._end("absent" if error.code == "not_found" else error.code)
        seen = [v for v in range(VARIANTS) if content(key, v)[size // 3 :] == target]
        return self._end(seen[0] if seen else "wrong")

    def remove(self, key: str) -> str:
        """Remove; "ok" or an error's code."""
        self._begin("remove", key)
        try:
            self._store.remove(key)
        except KVFerryError as error:
            return str(self._end(error.code))
        return str(self._end("ok"))

    def match(self, keys: list[str]) -> Any:
        """How many of a chain are there."""
        self._begin("match", keys[-1])
        try:
            return self._end(self._store.match_prefix(keys))
        except KVFerryError as error:
            return self._end(error.code)

    def exists(self, key: str) -> Any:
        """Whether it is there."""
        self._begin("exists", key)
        try:
            return self._end(self._store.exists(key))
        except KVFerryError as error:
            return self._end(error.code)

    def run(
        self,
        durable: list[str],
        volatile: list[str],
        raced: list[str],
        writes: bool,
        seconds: float,
        seed: str,
    ) -> None:
        """Mixed traffic for some seconds."""
        rng = random.Random(seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            what = rng.random() if writes else rng.random() * 0.6
            if what < 0.40:
                self._read(rng, rng.choice(durable))
            elif what < 0.60:
                self._read(rng, rng.choice(volatile + raced))
            elif what < 0.78:
                self.put(rng.choice(volatile), replicas=rng.choice([1, 2]))
            elif what < 0.86:
                self.put(rng.choice(raced), rng.randrange(VARIANTS))
            elif what < 0.92:
                self.remove(rng.choice(volatile + raced))
            elif what < 0.96:
                self.match(durable)
            else:
                self.exists(rng.choice(durable + volatile))

    def _read(self, rng: random.Random, key: str) -> None:
        way = rng.choice([self.get, self.get, self.view, self.read_range])
        way(key)

    def read(self, keys: list[str], seconds: float) -> None:
        """Read them one after the other, over and over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for key in keys:
                self.get(key)

    def counter(self, name: str) -> int:
        """One of the store's counters."""
        return self._store.counters[name]

    def hammer(self, key: str) -> None:
        """Put, read and remove one key until killed."""
        while True:
            self.put(key)
            self.get(key)
            self.remove(key)

    def fill(self, keys: list[str]) -> dict[str, int]:
        """Put more than fits; how the puts ended."""
        ends: dict[str, int] = {}
        for key in keys:
            end = self.put(key).split()[0]
            ends[end] = ends.get(end, 0) + 1
        return ends

    def members(self) -> int:
        """How many nodes this client knows."""
        return len(self._store.members)

    def serve(self) -> None:
        """Do what stdin says, until it ends."""
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            answer: Any
            if name == "each":
                method, keys, *rest = arguments
                answer = [getattr(self, method)(key, *rest) for key in keys]
            else:
                answer = getattr(self, name)(*arguments)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def main() -> None:
    """The process."""
    values, history = sys.argv[1:]
    with open_store(load_config(json.loads(values))) as store:
        client = Client(store, history)
        sys.stdout.write('"ready"\n')
        sys.stdout.flush()
        client.serve()


if __name__ == "__main__":
    main()
