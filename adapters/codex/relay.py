"""The model relay: agents reach the model through it, and never see the key.

A loopback reverse proxy. Each run gets a capability, an unguessable part of its base URL; the relay adds
``Authorization: Bearer <key>`` on the way out and drops whatever the agent sent under that name. Only ``/v1`` is
passed on. Requests and responses are streamed in both directions without being gathered.

Answers of its own: 404 for a capability or path that it does not know, 401 for a revoked one, 502 when the model's
address does not answer. Everything else is the model's, its errors too (with the key, should it echo it, removed).
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote

import httpx
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from adapters.codex.loopback import LoopbackServer

CONNECT_TIMEOUT = 15.0  # seconds
WRITE_TIMEOUT = 60.0  # seconds; reading has none, a model may think for long
ERROR_BODY_LIMIT = 1024 * 1024  # bytes of an upstream error that are passed on
REVOKED_REMEMBERED = 10_000
METHODS = frozenset({"GET", "POST", "HEAD", "DELETE"})
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
NOT_FORWARDED = HOP_BY_HOP | {"host", "authorization", "accept-encoding", "cookie", "api-key", "x-api-key"}

log = structlog.get_logger(__name__)


class Grant:
    """A run's way to the model: ``base_url`` ends in ``/v1``; after ``revoke()`` it answers 401."""

    def __init__(self, relay: "ModelRelay", base_url: str, digest: bytes) -> None:
        self.base_url = base_url
        self._relay = relay
        self._digest = digest

    def __repr__(self) -> str:
        return "Grant(<capability>)"

    def revoke(self) -> None:
        """End the capability, for ever; a response that is streaming is cut. Idempotent."""
        self._relay.forget(self._digest)


class ModelRelay:
    """See the module. Make it with ``await ModelRelay.start(...)``, end it with ``await stop()``."""

    def __init__(self, upstream_base_url: str, api_key: str | None) -> None:
        self._upstream = upstream_base_url.rstrip("/")
        self._key = api_key or None
        self._granted: set[bytes] = set()
        self._revoked: OrderedDict[bytes, None] = OrderedDict()
        self._server: LoopbackServer | None = None
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, write=WRITE_TIMEOUT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return "ModelRelay(<key>)"

    @classmethod
    async def start(cls, upstream_base_url: str, api_key: str | None) -> "ModelRelay":
        """Listen on 127.0.0.1. ``upstream_base_url`` includes its ``/v1``; no key, no Authorization."""
        relay = cls(upstream_base_url, api_key)
        relay._server = await LoopbackServer.start(relay)
        return relay

    async def stop(self) -> None:
        """End the relay and every capability."""
        self._granted.clear()
        if self._server is not None:
            await self._server.stop()
        await self._http.aclose()

    def grant(self) -> Grant:
        """Make a capability for one run."""
        if self._server is None:
            raise RuntimeError("the relay was not started")
        capability = secrets.token_urlsafe(32)
        digest = _digest(capability)
        self._granted.add(digest)
        return Grant(self, f"http://127.0.0.1:{self._server.port}/{capability}/v1", digest)

    def forget(self, digest: bytes) -> None:
        """Revoke the capability with this digest."""
        if digest not in self._granted:
            return
        self._granted.discard(digest)
        self._revoked[digest] = None
        while len(self._revoked) > REVOKED_REMEMBERED:
            self._revoked.popitem(last=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._relay(request)
        try:
            await response(scope, receive, send)
        except (httpx.HTTPError, ConnectionAbortedError) as error:
            # The connection is then closed without its end: the agent must see that the stream was cut.
            log.warning("a model's answer broke off", error=type(error).__name__)

    async def _relay(self, request: Request) -> Response:
        raw = request.scope.get("raw_path") or request.url.path.encode()
        parts = raw.decode("ascii", "replace").split("/")
        digest = _digest(parts[1]) if len(parts) > 1 else b""
        if digest in self._revoked:
            return _refusal(401, "capability_revoked", "this run's way to the model was revoked")
        if digest not in self._granted:
            return _refusal(404, "not_found", "there is no such address")
        path = [unquote(part) for part in parts[2:]]
        if len(path) < 2 or path[0] != "v1" or any(part in {"", ".", ".."} or "/" in part for part in path):
            return _refusal(404, "not_found", "only the model's interface is served")
        if request.method not in METHODS:
            return _refusal(405, "method_not_allowed", "this method is not served")
        address = "/".join([self._upstream, *(quote(part, safe=":@!$&'()*+,;=~-._") for part in path[1:])])
        if request.url.query:
            address += f"?{request.url.query}"
        return await self._forward(request, address, digest)

    async def _forward(self, request: Request, address: str, digest: bytes) -> Response:
        named = {name.strip().lower() for name in request.headers.get("connection", "").split(",")}
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in NOT_FORWARDED and name.lower() not in named
        ]
        headers.append(("accept-encoding", "identity"))
        if self._key is not None:
            headers.append(("authorization", f"Bearer {self._key}"))
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        try:
            upstream = await self._http.send(
                self._http.build_request(
                    request.method, address, headers=headers, content=request.stream() if has_body else None
                ),
                stream=True,
            )
        except ClientDisconnect:
            return Response(status_code=499)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("the model's address does not answer", error=type(error).__name__)
            return _refusal(502, "model_unreachable", "the model's address does not answer")
        kept = [
            (name, value)
            for name, value in upstream.headers.multi_items()
            if name.lower() not in HOP_BY_HOP and name.lower() != "set-cookie"
        ]
        if upstream.status_code >= 400:
            return await self._pass_error(upstream, kept)
        response = StreamingResponse(self._stream(upstream, digest), status_code=upstream.status_code)
        response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
        return response

    async def _stream(self, upstream: httpx.Response, digest: bytes) -> AsyncIterator[bytes]:
        try:
            async for chunk in upstream.aiter_raw():
                if digest not in self._granted:
                    raise ConnectionAbortedError("the capability was revoked in mid-stream")
                yield chunk
        finally:
            await upstream.aclose()

    async def _pass_error(self, upstream: httpx.Response, headers: list[tuple[str, str]]) -> Response:
        body = b""
        try:
            async for chunk in upstream.aiter_raw():
                body += chunk
                if len(body) > ERROR_BODY_LIMIT:
                    break
        except httpx.HTTPError:
            return _refusal(502, "model_unreachable", "the model's answer broke off")
        finally:
            await upstream.aclose()
        if self._key is not None:
            body = body.replace(self._key.encode(), b"[key]")
        response = Response(body[:ERROR_BODY_LIMIT], status_code=upstream.status_code)
        for name, value in headers:
            if name.lower() != "content-length":
                response.headers[name] = value
        return response


def _digest(capability: str) -> bytes:
    # Looked up by digest, so that the time of a look-up tells nothing about a capability.
    return hashlib.sha256(capability.encode("utf-8", "replace")).digest()


def _refusal(status: int, code: str, message: str) -> Response:
    return JSONResponse(
        {"error": {"message": message, "type": "relay_error", "code": code}}, status_code=status
    )
