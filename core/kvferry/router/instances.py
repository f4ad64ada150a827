"""The engines behind the router: their addresses, their health, and who is in flight where.

Health is passive (errors of real requests) and active (a probe of `/health`). Three things take an instance
out: it cannot be reached (at once, until a probe succeeds), its probe fails (likewise), or several requests
in a row failed on it although it answers (for a back-off that doubles up to a limit). A successful request,
or a probe that succeeds after one that failed, clears all of it: a restarted engine is used again at once.

One event loop owns all of this; nothing here is thread-safe, and nothing here does I/O.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator, Sequence

from yarl import URL

from kvferry.errors import ConfigError

FAILURES_BEFORE_SUSPECT = 3
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
LONGEST_ERROR_TEXT = 300


class Role(enum.StrEnum):
    """Which step of a request an instance serves."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"


def parse_base_url(text: str) -> URL:
    """Turn a server's address as the user wrote it into its base URL, without a trailing slash.

    Raises `ConfigError` with the reason: scheme missing or unknown, no host, a query, or an API path such as
    `/v1` at the end (the router adds the path itself).
    """
    try:
        url = URL(text.strip())
        port = url.port
        (url.host or "").encode("idna")  # what a resolver does with it; raises UnicodeError
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{text!r} is not an http URL: write it like http://127.0.0.1:8100")
    if not port:
        raise ConfigError(f"{text!r} has no usable port")
    if url.query_string or url.fragment:
        raise ConfigError(f"{text!r} has a query or fragment: give the server's base URL only")
    path = url.path.rstrip("/")
    if path.endswith("/v1"):
        raise ConfigError(f"{text!r} ends in /v1: give the server's base URL, the router adds the API path")
    return url.with_path(path or "/")


class Instance:
    """One engine in one role."""

    def __init__(self, url: URL, role: Role, clock: Callable[[], float]) -> None:
        self.url = url
        self.role = role
        self.name = str(url.with_user(None)).rstrip("/")
        self.probe_wanted = asyncio.Event()
        self.when_down: set[Callable[[], None]] = set()  # called when it goes down
        self.in_flight = 0
        self.last_error = ""
        self._clock = clock
        self._reachable = True
        self._failures = 0
        self._suspect_until_s = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._endpoints: dict[str, URL] = {}

    def endpoint(self, path: str) -> URL:
        """Return the URL of one of the router's own API paths on this instance."""
        if path not in self._endpoints:
            self._endpoints[path] = self.url.joinpath(path.lstrip("/"))
        return self._endpoints[path]

    @property
    def usable(self) -> bool:
        """Whether new requests should be placed here."""
        return self._reachable and self._clock() >= self._suspect_until_s

    @property
    def reachable(self) -> bool:
        """Whether the last contact, by a request or a probe, got an answer."""
        return self._reachable

    @property
    def state(self) -> str:
        """`healthy`, `suspect` (answers, but requests keep failing) or `down`."""
        if not self._reachable:
            return "down"
        return "healthy" if self.usable else "suspect"

    def succeeded(self) -> None:
        """Note that a request was answered properly."""
        self._reachable = True
        self._failures = 0
        self._suspect_until_s = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self.last_error = ""

    def unreachable(self, reason: str) -> bool:
        """Note that no answer came at all; return whether this is news."""
        self.probe_wanted.set()
        return self._go_down(reason)

    def _go_down(self, reason: str) -> bool:
        news = self._reachable
        self._reachable = False
        self.last_error = reason[:LONGEST_ERROR_TEXT]
        if news:
            for call in tuple(self.when_down):
                call()
        return news

    def failed(self, reason: str) -> bool:
        """Note a request that failed on an instance that can be reached; return whether it turned suspect."""
        self.probe_wanted.set()
        self.last_error = reason[:LONGEST_ERROR_TEXT]
        self._failures += 1
        if self._failures < FAILURES_BEFORE_SUSPECT:
            return False
        # One more failure after the back-off suffices to go back into a longer one.
        self._failures = FAILURES_BEFORE_SUSPECT - 1
        self._suspect_until_s = self._clock() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, LONGEST_BACKOFF_S)
        return True

    def probed(self, error: str | None) -> bool:
        """Note the outcome of a health probe (None: it answered 200); return whether the state changed."""
        if error is not None:
            return self._go_down(f"health probe: {error}")
        if self._reachable:
            return False
        self.succeeded()
        return True


class Pool:
    """All instances of all roles, in configuration order, and the turns taken on each side."""

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        clock: Callable[[], float],
        encode: Sequence[str] = (),
    ) -> None:
        if not decode:
            raise ConfigError("no decode server given: pass --decode URL[,URL...]")
        self.encode = _instances(encode, Role.ENCODE, clock)
        self.prefill = _instances(prefill, Role.PREFILL, clock)
        self.decode = _instances(decode, Role.DECODE, clock)
        self.encode_turn = 0
        self.prefill_turn = 0
        self.decode_turn = 0

    def __iter__(self) -> Iterator[Instance]:
        yield from self.encode
        yield from self.prefill
        yield from self.decode


def _instances(urls: Sequence[str], role: Role, clock: Callable[[], float]) -> tuple[Instance, ...]:
    found: dict[str, Instance] = {}
    for text in urls:
        instance = Instance(parse_base_url(text), role, clock)
        if instance.name in found:
            raise ConfigError(f"{role.value} server {instance.name} is given twice")
        found[instance.name] = instance
    return tuple(found.values())
