"""Which decode servers are not worth a try just now."""

from __future__ import annotations

import time
from collections.abc import Callable

RETRY_S = 5.0


class LostSessions(set[str]):
    """SGLang's set of failed sessions, of which requests are refused at once, with two differences.

    Only a server that cannot be reached gets in, so that a request that failed for another reason harms no
    other one; and it counts for some seconds only, after which a request tries again. `lost` says whether a
    server cannot be reached. The caller holds SGLang's lock.
    """

    def __init__(self, lost: Callable[[str], bool], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lost = lost
        self._clock = clock
        self._until_s: dict[str, float] = {}

    def add(self, session: str) -> None:
        """Note that a request to `session` failed."""
        if self._lost(session):
            super().add(session)
            self._until_s[session] = self._clock() + RETRY_S

    def discard(self, session: object) -> None:
        """Note that `session` can be reached."""
        super().discard(session)
        self._until_s.pop(str(session), None)

    def __contains__(self, session: object) -> bool:
        return super().__contains__(session) and self._clock() < self._until_s.get(str(session), 0.0)
