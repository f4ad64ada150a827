"""Passes a decode server's event stream on to the client, event by event, as it arrives."""

from __future__ import annotations

import time

from aiohttp import web

from kvferry.errors import KVFerryError
from kvferry.router.decode import Answer
from kvferry.router.metrics import RouterMetrics
from kvferry.router.upstream import read_part

# An event larger than this is passed on in pieces rather than held until it is complete.
LONGEST_HELD_BYTES = 1 << 20
_EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_DONE = (b"data: [DONE]", b"data:[DONE]")
# Inside an event's JSON the quotes of a text are escaped, so this cannot be part of an answer.
_ERROR_EVENT = b'data: {"error"'


class StreamBrokenError(KVFerryError):
    """The decode server's stream did not end as it should."""

    code = "unavailable"


class EventRelay:
    """Relays one stream.

    Bytes are passed on unchanged and at once, except that an incomplete event waits for its rest: should the
    decode server die, the client's stream then ends between two events, where an error event can follow.
    """

    def __init__(self, metrics: RouterMetrics, endpoint: str) -> None:
        self._gaps = metrics.histogram("inter_token_seconds", endpoint)
        self._held = b""
        self._tail = b""
        self.error_seen = False

    @property
    def between_events(self) -> bool:
        """Whether what the client has got so far ends with a complete event."""
        return self._tail.endswith(_EVENT_ENDS)

    async def run(self, answer: Answer, out: web.StreamResponse) -> None:
        """Relay until the stream's regular end.

        Raises `UpstreamError` if the connection breaks, `StreamBrokenError` if it ends without `[DONE]`.
        """
        part = answer.body
        last = time.perf_counter()
        while part:
            ready = self._complete_events(part)
            if ready:
                self._look_at(ready)
                await out.write(ready)
            part = await read_part(answer.response, answer.instance)
            now = time.perf_counter()
            if part and not part.startswith(_DONE):
                self._gaps.observe(now - last)
            last = now
        if self._held:
            self._look_at(self._held)
        if not any(done in self._tail for done in _DONE):
            raise StreamBrokenError(f"decode server {answer.instance.name} ended the stream before [DONE]")
        if self._held:
            await out.write(self._held)

    def _complete_events(self, part: bytes) -> bytes:
        """Return what may be passed on now, and hold the rest."""
        data = self._held + part if self._held else part
        if data.endswith(_EVENT_ENDS) or len(data) > LONGEST_HELD_BYTES:
            self._held = b""
            return data
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _EVENT_ENDS)
        self._held = data[cut:]
        return data[:cut]

    def _look_at(self, data: bytes) -> None:
        if _ERROR_EVENT in data:
            self.error_seen = True
        self._tail = (self._tail + data)[-64:] if len(data) < 64 else data[-64:]
