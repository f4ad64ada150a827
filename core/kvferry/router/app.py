"""The router's HTTP application: routes, admission, health and metrics pages."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import msgspec
from aiohttp import web

from kvferry.errors import InvalidArgumentError
from kvferry.router.core import Core, describe
from kvferry.router.exchange import JSON_HEADERS, Exchange
from kvferry.router.health import LOOP_MESSAGE
from kvferry.router.instances import Role
from kvferry.router.linked import LinkedExchange
from kvferry.router.paired import PairedExchange
from kvferry.router.protocol import ParsedRequest, error_body, parse_request
from kvferry.router.scope import Interruption, Scope
from kvferry.router.upstream import UpstreamError, request_headers, response_headers

logger = logging.getLogger(__name__)

SERVING_PATHS = ("/v1/completions", "/v1/chat/completions")
MODELS_TIMEOUT_S = 10.0
# The largest a client's own request id may be; it is passed to the engines and into logs.
LONGEST_REQUEST_ID = 256
_EXCHANGES: dict[str, type[Exchange]] = {
    "vllm": Exchange,
    "sglang": PairedExchange,
    "lmdeploy": LinkedExchange,
}


class Front:
    """The handlers of one router."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scopes: set[Scope] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(
            client_max_size=self._core.options.max_body_bytes, middlewares=[self._refuse_loops, _json_errors]
        )
        for path in SERVING_PATHS:
            app.router.add_post(path, self.serve)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.on_response_prepare.append(_name_server)
        return app

    @web.middleware
    async def _refuse_loops(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse what this router has sent itself: it would be sent again and again without end."""
        if self._core.upstream.is_ours(request.headers.getall("Via", ())):
            return _error(508, "LoopDetectedError", LOOP_MESSAGE)
        response: web.StreamResponse = await handler(request)
        return response

    async def drain(self, timeout_s: float) -> None:
        """Admit nothing more, let what runs finish, and end with an error what has not by then."""
        self.draining = True
        if not self._scopes:
            return
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            if self._scopes:
                logger.warning("ending %d requests that outlast drain_timeout_s", len(self._scopes))
        self.end_all()

    def end_all(self) -> None:
        """End every request under way with an error."""
        for scope in tuple(self._scopes):
            scope.interrupt(Interruption.SHUTDOWN)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve a completion."""
        arrived = time.perf_counter()
        metrics, endpoint = self._core.metrics, request.path
        metrics.count("requests_received", endpoint)
        in_flight = metrics.gauge("requests_in_flight", endpoint)
        in_flight.inc()
        outcome, exchange = "refused", None
        scope = Scope(self._core.options.request_timeout_s)
        self._scopes.add(scope)
        self._idle.clear()
        try:
            with scope:
                exchange = await self._admit(request, scope, arrived)
                if isinstance(exchange, web.Response):
                    return exchange
                return await exchange.run()
        except ConnectionError:
            # Writing to the client failed; to the server that is the same as seeing it leave.
            raise asyncio.CancelledError from None
        except Exception:
            if isinstance(exchange, Exchange):
                exchange.outcome.fail("internal")
            raise
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._idle.set()
            if isinstance(exchange, Exchange):
                outcome = self._account(exchange, arrived)
            elif exchange is None:
                outcome = "cancelled"
                metrics.count("cancellations", "receiving")
            metrics.count("requests", endpoint, outcome)
            in_flight.dec()

    def _account(self, exchange: Exchange, arrived: float) -> str:
        metrics, outcome, endpoint = self._core.metrics, exchange.outcome, exchange.endpoint
        if outcome.name == "failed":
            metrics.count("failures", outcome.reason)
        elif outcome.name == "cancelled":
            metrics.count("cancellations", outcome.phase)
        else:
            metrics.histogram("request_seconds", endpoint).observe(time.perf_counter() - arrived)
        logger.debug(
            "request=%r outcome=%s why=%s handed_off_by=%s decode=%s ms=%.1f",
            exchange.request_id,
            outcome.name,
            outcome.reason or outcome.phase,
            outcome.prefill,
            outcome.decode,
            (time.perf_counter() - arrived) * 1e3,
        )
        return outcome.name

    async def _admit(self, request: web.Request, scope: Scope, arrived: float) -> Exchange | web.Response:
        """Read and check a request; returns what to run, or why not."""
        if self.draining:
            refusal = _error(503, "ServiceUnavailableError", "the router is shutting down")
            refusal.force_close()
            return refusal
        request_id = _request_id(request)
        if len(request_id) > LONGEST_REQUEST_ID:
            return _error(
                400, "BadRequestError", f"X-Request-Id is longer than {LONGEST_REQUEST_ID} characters"
            )
        parsed = await self._read(request, scope)
        if isinstance(parsed, web.Response):
            return parsed
        kind = _EXCHANGES[self._core.options.engine]
        return kind(self._core, request, parsed, scope, request_id=request_id, arrived=arrived)

    async def _read(self, request: web.Request, scope: Scope) -> ParsedRequest | web.Response:
        """Read a request's body; returns what it asks for, or why it is refused."""
        try:
            return parse_request(await request.read())
        except web.HTTPRequestEntityTooLarge:
            limit = self._core.options.max_body_bytes
            return _error(
                413,
                "RequestEntityTooLargeError",
                f"the request body is larger than {limit} bytes (router setting max_body_bytes)",
            )
        except InvalidArgumentError as error:
            return _error(400, "BadRequestError", str(error))
        except web.RequestPayloadError:
            refusal = _error(400, "BadRequestError", "the body is not in the encoding that its headers name")
            refusal.force_close()
            return refusal
        except asyncio.CancelledError:
            if scope.interruption is None:
                raise
            scope.absorb()
            return _error(408, "TimeoutError", "the request body did not arrive in time")

    async def models(self, request: web.Request) -> web.Response:
        """List the models of all decode servers, each once."""
        core = self._core
        request_id = _request_id(request)
        headers = request_headers(request.headers, request_id)
        headers["Accept-Encoding"] = "identity"
        asked = core.usable_decode(set())
        answers = await asyncio.gather(
            *(core.upstream.get(one, "/v1/models", headers, MODELS_TIMEOUT_S) for one in asked),
            return_exceptions=True,
        )
        found: dict[str, Any] = {}
        refusal: web.Response | None = None
        for answer in answers:
            if isinstance(answer, UpstreamError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            status, sent, body = answer
            listed = _model_list(body) if status == 200 else None
            if listed is None:
                refusal = web.Response(status=status, body=body, headers=response_headers(sent, request_id))
                continue
            for model in listed:
                found.setdefault(str(model.get("id")), model)
        if found:
            return _json(200, {"object": "list", "data": list(found.values())})
        if refusal is not None:
            return refusal
        why = describe(core.pool.decode, Role.DECODE)
        return _error(503, "ServiceUnavailableError", f"no decode server can be reached: {why}")

    async def health(self, request: web.Request) -> web.Response:
        """Report the state of the router and of each server: 200 while requests can be served, else 503."""
        pool = self._core.pool
        reasons = [
            f"{one.role.value} server {one.name} is {one.state}: {one.last_error}"
            for one in pool
            if not one.usable
        ]
        if self._core.prefixes is not None:
            reasons += self._core.prefixes.problems()
        serving = any(one.usable for one in pool.decode) and not self.draining
        if self.draining:
            reasons.insert(0, "the router is shutting down")
        status = "unavailable" if not serving else "degraded" if reasons else "healthy"
        instances = [
            {
                "role": one.role.value,
                "url": one.name,
                "state": one.state,
                "in_flight": one.in_flight,
                "last_error": one.last_error or None,
            }
            for one in pool
        ]
        page = {"status": status, "reasons": reasons, "instances": instances}
        return _json(200 if serving else 503, page)

    async def metrics(self, request: web.Request) -> web.Response:
        """Publish all metrics in Prometheus' text format."""
        self._core.publish_health()
        registry = self._core.metrics.registry
        return web.Response(body=registry.export(), headers={"Content-Type": registry.content_type})


def _model_list(body: bytes) -> list[dict[str, Any]] | None:
    try:
        return msgspec.json.decode(body, type=_ModelPage).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _ModelPage(msgspec.Struct):
    data: list[dict[str, Any]]


@web.middleware
async def _json_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Turn aiohttp's own error pages into JSON errors that say what exists."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPNotFound:
        served = ", ".join(f"POST {path}" for path in SERVING_PATHS)
        return _error(
            404,
            "NotFoundError",
            f"{request.path} is not served by the router; it has {served}, GET /v1/models, GET /health and "
            "GET /metrics. Ask an engine directly for the rest.",
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = _error(
            405, "MethodNotAllowedError", f"{request.path} takes {allowed}, not {request.method}"
        )
        refusal.headers["Allow"] = allowed
        return refusal
    return response


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "kvferry-router"


def _request_id(request: web.Request) -> str:
    """Return the client's id for a request, or a new one if it has none that can be passed on and logged."""
    given: str = request.headers.get("X-Request-Id", "")
    return given if given and given.isprintable() else uuid.uuid4().hex


def _json(status: int, content: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(content), headers=JSON_HEADERS)


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.Response(
        status=status, body=error_body(message, status=status, kind=kind), headers=JSON_HEADERS
    )
