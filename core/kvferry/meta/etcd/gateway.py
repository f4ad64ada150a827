"""Calls to etcd's HTTP/JSON gateway: one loop thread, failover between the members, log-in.

What the gateway does: 64-bit numbers are text, keys and values base64, false and zero fields are left out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import aiohttp

from kvferry.errors import (
    AccessDeniedError,
    CancelledError,
    InvalidArgumentError,
    KVFerryError,
    NotFoundError,
    ProtocolError,
    ResourceExhaustedError,
    UnavailableError,
)

ATTEMPT_TIMEOUT_S = 1.5  # for one member to answer
CALL_TIMEOUT_S = 5.0  # for any of them
_MIN_ATTEMPT_S = 0.05  # with less time left none is begun
_BACKSTOP_S = 2.0  # beyond that the loop itself is stuck
_MAX_ANSWER_BYTES = 16 << 20
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)  # after each round over all members

_STEPS_TO_CLOSE = 10  # turns of the loop until an aborted TLS connection has closed its socket

# asyncio does not close a TLS connection that breaks at the wrong moment (python/cpython#118960).
_TLS_MAY_NOT_CLOSE = sys.version_info < (3, 12, 7)

_INVALID_ARGUMENT, _NOT_FOUND, _DENIED, _EXHAUSTED, _PRECONDITION, _UNAUTHENTICATED = 3, 5, 7, 8, 9, 16
_ERRORS: dict[int, type[KVFerryError]] = {
    _INVALID_ARGUMENT: InvalidArgumentError,
    _NOT_FOUND: NotFoundError,
    _DENIED: AccessDeniedError,
    _EXHAUSTED: ResourceExhaustedError,
    _UNAUTHENTICATED: AccessDeniedError,
}
_AWAY = (aiohttp.ClientError, OSError, asyncio.TimeoutError)

Message = dict[str, Any]
Result = TypeVar("Result")


class Login(NamedTuple):
    """User and password for etcd."""

    user: str
    password: str


class RefusedError(KVFerryError):
    """What etcd answered instead of a result; `grpc` is its code."""

    def __init__(self, grpc: int, text: str) -> None:
        super().__init__(text)
        self.grpc = grpc


class Gateway:
    """The way to one etcd cluster. `run` may be called by any thread; coroutines run on the loop thread.

    `urls`: one per member, as `http://host:port`. The one that answered last is asked first.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        login: Login | None = None,
        tls: ssl.SSLContext | None = None,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self.name = "at " + ",".join(urls)
        self._urls = tuple(urls)
        self._login = login
        self._tls = tls
        self._attempt_s = attempt_timeout_s
        self._call_s = call_timeout_s
        self._current = 0
        self._token = ""
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[aiohttp.ClientResponse] = set()
        self._guard = threading.Lock()  # nothing is handed to the loop once it was told to stop
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="kvferry-meta-etcd", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop thread and return its result.

        `timeout_s`: what it needs at most, by default the time of one call. Raises CancelledError if closed.
        """
        future = self.start(work)
        try:
            return self.result_of(future, self._call_s if timeout_s is None else timeout_s)
        except UnavailableError:
            future.cancel()
            raise

    def result_of(self, future: concurrent.futures.Future[Result], timeout_s: float) -> Result:
        """Wait for what `start` began and return its result. Raises UnavailableError if it takes longer than
        it should, and CancelledError if closed."""
        try:
            return future.result(timeout_s + _BACKSTOP_S)
        except concurrent.futures.TimeoutError:
            raise UnavailableError(f"the metadata store {self.name} did not answer in time") from None
        except concurrent.futures.CancelledError:
            raise CancelledError(f"the metadata store {self.name} was closed") from None

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop thread until its future is cancelled, or we are closed.

        Raises CancelledError if closed.
        """
        with self._guard:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise CancelledError(f"the metadata store {self.name} was closed")

    def soon(self, action: Callable[[], None]) -> None:
        """Call `action` on the loop thread, unless closed."""
        with self._guard:
            if not self._closed:
                self._loop.call_soon_threadsafe(action)

    def close(self) -> None:
        """End all calls and streams, and the thread. Idempotent."""
        with self._guard:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def call(self, path: str, message: Message, *, repeatable: bool = True) -> Message:
        """Send one request, to another member if one does not answer.

        `repeatable`: doing it twice does no harm. Otherwise it is sent again only if it surely was not done.
        Raises UnavailableError when no member answered in time; what etcd refuses is another KVFerryError.
        """
        deadline = self._loop.time() + self._call_s
        tried, problem = 0, "no time was left"
        while self._loop.time() < deadline - _MIN_ATTEMPT_S:
            index = self._current
            try:
                async with asyncio.timeout(min(self._attempt_s, deadline - self._loop.time())):
                    return await self._ask(index, path, message)
            except RefusedError as refused:
                if refused.grpc in _ERRORS:
                    raise self._explain(index, refused) from None
                problem = str(refused)
                if not repeatable:
                    break
            except KVFerryError:
                raise  # some of them are of _AWAY, too
            except aiohttp.ClientConnectorCertificateError as error:
                raise UnavailableError(
                    f"{self._urls[index]} shows a certificate that is not trusted here ({_why(error)}); see "
                    "cluster.ca_file"
                ) from error
            except _AWAY as error:
                problem = _why(error)
                if not repeatable and not isinstance(error, aiohttp.ClientConnectorError):
                    break
            if len(self._urls) > 1:  # else it is named below
                problem = f"the last one, {self._urls[index]}: {problem}"
            self._turn_from(index)
            tried += 1
            if tried % len(self._urls) == 0:
                await asyncio.sleep(_PAUSES_S[min(tried // len(self._urls), len(_PAUSES_S)) - 1])
        raise UnavailableError(
            f"the metadata store {self.name} does not answer ({problem}): look whether etcd runs there, and "
            "whether cluster.store names the port for clients (2379 by default)"
        )

    async def stream(self, path: str, message: Message) -> AsyncIterator[Message]:
        """Yield the messages of a streaming call by the current member, until it ends.

        Raises UnavailableError when the member does not answer or breaks off.
        """
        index = self._current
        try:
            async with asyncio.timeout(self._attempt_s):
                response = await self._post(index, path, message)
        except _AWAY as error:
            self._turn_from(index)
            raise UnavailableError(f"{self._urls[index]}: {_why(error)}") from error
        self._streams.add(response)
        try:
            while line := await response.content.readline():
                yield _result(line)
        except (*_AWAY, ValueError) as error:
            raise UnavailableError(f"{self._urls[index]}: {_why(error)}") from error
        finally:
            self._streams.discard(response)
            _cut(response)

    def _turn_from(self, index: int) -> None:
        """Ask the next member from now on. Streams of this one may hang, so they end."""
        if self._current == index:
            self._current = (index + 1) % len(self._urls)
            for response in list(self._streams):
                _cut(response)

    def _explain(self, index: int, refused: RefusedError) -> KVFerryError:
        """Return the error for what repeating cannot change."""
        if self._login is None and refused.grpc == _INVALID_ARGUMENT and "user name" in str(refused):
            return AccessDeniedError(
                f"etcd {self._urls[index]} wants a log-in; set cluster.user and cluster.password_file"
            )
        return _ERRORS[refused.grpc](f"etcd {self._urls[index]}: {refused}")

    async def _ask(self, index: int, path: str, message: Message) -> Message:
        if self._login is not None and not self._token:
            await self._log_in(index, self._login)
        try:
            return await self._exchange(index, path, message)
        except RefusedError as refused:
            if refused.grpc != _UNAUTHENTICATED or self._login is None:
                raise
        await self._log_in(index, self._login)  # a token ends, and a restarted member knows none
        return await self._exchange(index, path, message)

    async def _log_in(self, index: int, login: Login) -> None:
        self._token = ""
        body = {"name": login.user, "password": login.password}
        try:
            answer = await self._exchange(index, "/v3/auth/authenticate", body)
        except RefusedError as refused:
            if refused.grpc == _PRECONDITION:
                return  # etcd has no authentication turned on: nothing to prove
            if refused.grpc == _INVALID_ARGUMENT:
                raise AccessDeniedError(
                    f"etcd {self._urls[index]} does not accept the password of user {login.user!r}: {refused}"
                ) from None
            raise
        self._token = str(answer.get("token", ""))

    async def _exchange(self, index: int, path: str, message: Message) -> Message:
        response = await self._post(index, path, message)
        try:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > _MAX_ANSWER_BYTES:
                    raise ProtocolError(f"{self._urls[index]} answers more than {_MAX_ANSWER_BYTES} bytes")
        finally:
            response.release()
        try:
            return _result(bytes(content) or b"{}")
        except ValueError:
            raise RefusedError(0, f"status {response.status} and no JSON") from None

    async def _post(self, index: int, path: str, message: Message) -> aiohttp.ClientResponse:
        if self._session is None:
            # Proxies and the like are not for us: the environment is not asked.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=self._tls or True, enable_cleanup_closed=_TLS_MAY_NOT_CLOSE
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
                auto_decompress=False,
                read_bufsize=_MAX_ANSWER_BYTES,
            )
        headers = {"Grpc-Metadata-Hasleader": "true"}  # a member without a leader ends its streams
        if self._token:
            headers["Authorization"] = self._token
        return await self._session.post(
            self._urls[index] + path, json=message, headers=headers, allow_redirects=False
        )

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await self._session.close()
        for _ in range(_STEPS_TO_CLOSE):
            await asyncio.sleep(0)


def _cut(response: aiohttp.ClientResponse) -> None:
    """End a stream at once: a farewell by TLS would wait for the other side, which may hang."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _why(error: Exception) -> str:
    """Return what went wrong, for a person."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        # Python's own text of a refused connection repeats the address.
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__


def _result(raw: bytes) -> Message:
    """Return the result in an answer. Raises RefusedError; ValueError if it is none of etcd's."""
    try:
        message = json.loads(raw)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None
    if not isinstance(message, dict):
        raise ValueError("no JSON object")
    error = message.get("error")
    if error is not None:
        details: Mapping[str, Any] = error if isinstance(error, dict) else message
        code = details.get("grpc_code", details.get("code", 0))
        text = str(details.get("message") or error)
        raise RefusedError(code if isinstance(code, int) else 0, text[:500])
    result = message.get("result", message)
    if not isinstance(result, dict):
        raise ValueError("no JSON object")
    return result
