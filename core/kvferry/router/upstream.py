"""HTTP towards the engines: one session, header rules, and errors sorted by what may be done about them."""

from __future__ import annotations

import asyncio
import enum
import re
import secrets
from collections.abc import Mapping, Sequence

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from kvferry.errors import KVFerryError
from kvferry.router.instances import Instance
from kvferry.router.scope import Interruption, Scope

# An engine closes connections that were idle for 5 s (uvicorn's default). Ours go first, so that no request
# is ever sent into a connection that the other end is closing.
KEEPALIVE_S = 4.0
LARGEST_ANSWER_BYTES = 256 << 20

_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# Set anew for the request that we send: the body was decoded, may be longer, and goes to another host.
_NOT_SENT_ON = _HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect", "x-request-id"}
_NOT_SENT_BACK = _HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}


class Trouble(enum.StrEnum):
    """Why an engine gave no usable answer."""

    UNREACHABLE = "unreachable"  # no connection: the engine never saw the request
    LOST = "lost"  # the connection broke after the request was sent
    TIMEOUT = "timeout"
    MALFORMED = "malformed"


class UpstreamError(KVFerryError):
    """An engine gave no usable answer; `trouble` says which kind, the text names the engine and the cause."""

    code = "unavailable"

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


def classify(error: BaseException, instance: Instance) -> UpstreamError:
    """Sort an exception of the HTTP client."""
    text = f"{instance.role.value} server {instance.name}: {_describe(error)}"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return UpstreamError(Trouble.UNREACHABLE, text)
    if isinstance(error, asyncio.TimeoutError):
        return UpstreamError(Trouble.TIMEOUT, f"{text} (no answer in the time allowed)")
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return UpstreamError(Trouble.MALFORMED, text)
    return UpstreamError(Trouble.LOST, text)


# Parts of the HTTP client's texts that say nothing about the cause: `ssl:default` stands there without TLS,
# too, and the status 400 of a broken answer is the client's own, not the server's.
_TLS_NOTE = re.compile(r" ssl:(default|True|False)\b")
_NESTED = re.compile(r"<\w+: \d+, message=(['\"])(.*)\1>", re.DOTALL)


def _describe(error: BaseException) -> str:
    """Return the HTTP client's text in one line, without what is only of use to its developers."""
    if isinstance(error, aiohttp.ClientResponseError):
        text = f"the answer is not valid HTTP: {error.message}"
    else:
        text = _NESTED.sub(r"\2", _TLS_NOTE.sub("", str(error)))
    words = text.replace("\\n", " ").split()
    if words and set(words[-1]) == {"^"}:  # it pointed at a column of the line above
        words.pop()
    return " ".join(words) or type(error).__name__


# What the HTTP client raises for the other end's faults; anything else is a bug of ours and must show as one.
CLIENT_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class Upstream:
    """The HTTP client of one router. Created and closed in its event loop.

    Every request carries the router's `via` in its `Via` header (RFC 9110, 7.6.3), by which the router knows
    its own requests should they come back to it.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        self.via = f"kvferry-{secrets.token_hex(8)}"
        self._connect_timeout_s = connect_timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            # One client's cookies must not reach another's request; bodies are passed on as they came.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def post(
        self,
        instance: Instance,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> aiohttp.ClientResponse:
        """Send a request; return once the answer's headers are there. The caller closes the response.

        Raises `UpstreamError`. Cancelling closes the connection, by which the engine aborts the request.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s)
        try:
            return await self._session.post(
                instance.endpoint(path),
                data=body,
                headers=self._sign(headers),
                timeout=timeout,
                allow_redirects=False,
            )
        except CLIENT_ERRORS as error:
            raise classify(error, instance) from error

    async def ask(
        self, instance: Instance, path: str, headers: Mapping[str, str], body: bytes, limit_s: float
    ) -> tuple[int, CIMultiDictProxy[str], bytes]:
        """Send a request and read all of its answer: status, headers, body. Raises `UpstreamError`."""
        with Scope(limit_s) as scope:
            try:
                response = await self.post(instance, path, headers, body)
                try:
                    read = await BodyReader(response, instance).read()
                finally:
                    response.close()
            except asyncio.CancelledError:
                if not scope.is_only_cause or scope.interruption is not Interruption.TIMEOUT:
                    raise
                scope.absorb()
                text = f"{instance.role.value} server {instance.name}: no answer within {limit_s:g} s"
                raise UpstreamError(Trouble.TIMEOUT, text) from None
            return response.status, response.headers, read

    async def get(
        self, instance: Instance, path: str, headers: Mapping[str, str], total_s: float
    ) -> tuple[int, CIMultiDictProxy[str], bytes]:
        """Fetch a small page: status, headers, body. Raises `UpstreamError`."""
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=self._connect_timeout_s)
        try:
            async with self._session.get(
                instance.endpoint(path), headers=self._sign(headers), timeout=timeout, allow_redirects=False
            ) as response:
                body = BodyReader(response, instance, limit_bytes=16 << 20)
                return response.status, response.headers, await body.read()
        except CLIENT_ERRORS as error:
            raise classify(error, instance) from error

    def is_ours(self, via: Sequence[str]) -> bool:
        """Say whether a request with these values of `Via` has passed through this router before."""
        # A member is "[protocol/]version received-by [comment]".
        return any(self.via in member.split()[1:2] for value in via for member in value.split(","))

    def _sign(self, headers: Mapping[str, str]) -> CIMultiDict[str]:
        signed = CIMultiDict(headers)
        signed["Via"] = ", ".join([*signed.popall("Via", ()), f"1.1 {self.via}"])
        return signed


class BodyReader:
    """Reads an answer to its end, with a size limit. A cancelled read can be taken up again."""

    def __init__(
        self, response: aiohttp.ClientResponse, instance: Instance, limit_bytes: int = LARGEST_ANSWER_BYTES
    ) -> None:
        self._response = response
        self._instance = instance
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    async def read(self) -> bytes:
        """Return the whole body; raises `UpstreamError` if it breaks off or is larger than the limit."""
        while True:
            part = await read_part(self._response, self._instance)
            if not part:
                return b"".join(self._parts)
            self._size += len(part)
            if self._size > self._limit_bytes:
                raise UpstreamError(
                    Trouble.MALFORMED, f"{self._instance.name}: answer larger than {self._limit_bytes} bytes"
                )
            self._parts.append(part)


async def read_part(response: aiohttp.ClientResponse, instance: Instance) -> bytes:
    """Return what has arrived of the body, waiting for at least a byte; empty at its regular end."""
    try:
        return await response.content.readany()
    except CLIENT_ERRORS as error:
        raise classify(error, instance) from error


def request_headers(incoming: Mapping[str, str], request_id: str) -> CIMultiDict[str]:
    """Choose the client's headers that go on to an engine, and add the request's id."""
    headers = _filtered(incoming, _NOT_SENT_ON)
    headers["X-Request-Id"] = request_id
    return headers


def response_headers(incoming: Mapping[str, str], request_id: str) -> CIMultiDict[str]:
    """Choose an engine's headers that go back to the client, and add the request's id."""
    headers = _filtered(incoming, _NOT_SENT_BACK)
    headers["X-Request-Id"] = request_id
    return headers


def _filtered(incoming: Mapping[str, str], without: frozenset[str]) -> CIMultiDict[str]:
    # Headers that `Connection` names belong to that connection only (RFC 9110, 7.6.1).
    named = {name.strip().lower() for name in incoming.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in incoming.items()
        if (lowered := name.lower()) not in without and lowered not in named
    )
