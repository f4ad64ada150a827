"""Loads in several parts, from the pool and from a prefill engine: ended when the last part has."""

from __future__ import annotations

from collections.abc import Iterable


class LoadParts:
    """Counts the parts of each request's load. Not thread-safe: it belongs to a worker's loop."""

    def __init__(self) -> None:
        self._pending: dict[str, int] = {}
        self._failed: set[str] = set()

    def begin(self, request_ids: Iterable[str]) -> None:
        """Expect one more part for each."""
        for request_id in request_ids:
            self._pending[request_id] = self._pending.get(request_id, 0) + 1

    @property
    def pending(self) -> bool:
        """Whether a part is expected."""
        return bool(self._pending)

    def end(self, parts: Iterable[tuple[str, bool]]) -> tuple[set[str], set[str]]:
        """Take ended parts, each with whether it failed; return the requests whose load has ended, and which
        of these failed, in whatever part.
        """
        ended = set()
        for request_id, failed in parts:
            if failed:
                self._failed.add(request_id)
            left = self._pending.get(request_id, 1) - 1
            if left:
                self._pending[request_id] = left
            else:
                self._pending.pop(request_id, None)
                ended.add(request_id)
        failures = ended & self._failed
        self._failed -= failures
        return ended, failures
