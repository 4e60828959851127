"""The whole HTTP surface: routes, who may ask, and how errors are answered.

Every path needs the bearer, GET too (an agent shares the loopback), except the webhook, which has its own
signature, and the probes ``/healthz`` and ``/readyz``. Errors are ``{code, message, params, traceId}``; what is no
``Fault`` is a 500 ``internal_error``, logged once with its trace id. Nothing is cached.
"""

import hmac
import time
import uuid
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from domain.faults import Fault, Invalid, NotFound, Unauthorised, Unavailable
from services.http.query import Json, query_routes
from services.queries import Queries
from services.telemetry import Metrics, chain, logger

log = logger("http")

WEBHOOK = "/api/gitea/webhook"
OPEN = frozenset(("/healthz", "/readyz"))
TRACE = "X-Trace-Id"


class MethodNotAllowed(Fault):
    """The path is right, the method is not."""

    status = 405
    code = "method_not_allowed"


def create_app(
    *,
    ingress: Sequence[BaseRoute],
    queries: Queries,
    admin_token: str,
    metrics: Metrics,
    ready: Callable[[], bool],
    more: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The application. ``ingress``: the webhook's routes; ``ready``: whether the service has started and not ended.

    ``more``: further routes, all of which need the token. Raises ``ValueError`` for an empty token.
    """
    if not admin_token:
        raise ValueError("an API without a token would be open to everybody on this host")

    async def healthz(_request: Request) -> Response:
        return Json({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        if not ready():
            raise Unavailable("the service is starting or stopping", code="not_ready")
        await queries.ping()
        return Json({"status": "ready"})

    async def exposition(_request: Request) -> Response:
        metrics.started.set(1 if ready() else 0)
        return PlainTextResponse(metrics.exposition(), media_type="text/plain; version=0.0.4")

    routes = [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", exposition, methods=["GET"]),
        *ingress,
        *query_routes(queries),
        *more,
    ]
    inner = ExceptionMiddleware(
        Router(routes=routes, redirect_slashes=False),
        handlers={Fault: _answer, HTTPException: _answer},
    )
    return Shell(inner, routes=routes, admin_token=admin_token, metrics=metrics)


class Shell:
    """What stands around every request: trace id, token, headers, the last resort for errors, timing."""

    def __init__(
        self, app: ASGIApp, *, routes: Sequence[BaseRoute], admin_token: str, metrics: Metrics
    ) -> None:
        self._app = app
        self._routes = routes
        self._token = admin_token.encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = uuid.uuid4().hex
        scope.setdefault("state", {})["trace_id"] = trace
        scope["app"] = (
            self  # lets the routes raise for a wrong path or method instead of answering themselves
        )
        begun = time.monotonic()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", []),
                    (b"cache-control", b"no-store"),
                    (b"x-content-type-options", b"nosniff"),
                    (TRACE.lower().encode(), trace.encode()),
                ]
            await send(message)

        with chain(traceId=trace):
            try:
                self._check(scope)
                await self._app(scope, receive, answer)
            except Fault as fault:
                if status:
                    raise
                await fault_answer(fault, trace)(scope, receive, answer)
            except Exception:
                log.exception("request_failed", method=scope["method"], route=self._route(scope))
                if not status:
                    failure = Fault("something went wrong here; the log has more under this trace id")
                    await fault_answer(failure, trace)(scope, receive, answer)
        self._metrics.requests.labels(self._route(scope), str(status)).observe(time.monotonic() - begun)

    def _check(self, scope: Scope) -> None:
        path = scope["path"]
        if path in OPEN or path == WEBHOOK or path.startswith(WEBHOOK + "/"):
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, token = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            self._metrics.auth_denied.inc()
            raise Unauthorised("this needs the header Authorization: Bearer and the admin token")
        if "\x00" in unquote(path) or b"\x00" in scope["query_string"] or b"%00" in scope["query_string"]:
            raise Invalid("a NUL has no place in an address")

    def _route(self, scope: Scope) -> str:
        """The route's pattern, never the address that was asked for: metrics must stay few."""
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"


def fault_answer(fault: Fault, trace: str) -> Response:
    """The one form of errors."""
    headers = {}
    if fault.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if fault.status == 503:
        headers["Retry-After"] = "1"
    body = {"code": fault.code, "message": fault.message, "params": fault.params, "traceId": trace}
    return Json(body, status_code=fault.status, headers=headers)


async def _answer(request: Request, error: Exception) -> Response:
    fault = error if isinstance(error, Fault) else _http_fault(error)
    if fault.status >= 500:
        log.warning("request_refused", code=fault.code)
    answer = fault_answer(fault, request.scope["state"]["trace_id"])
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})
    return answer


def _http_fault(error: Exception) -> Fault:
    status = error.status_code if isinstance(error, HTTPException) else 500
    match status:
        case 404:
            return NotFound("there is nothing at this address")
        case 405:
            return MethodNotAllowed("this address does not take this method")
        case _:
            return Invalid("the request cannot be understood")
