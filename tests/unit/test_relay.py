"""The model relay, in front of small upstream servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from adapters.codex.loopback import LoopbackServer
from adapters.codex.relay import Grant, ModelRelay

KEY = "sk-very-secret"


class Upstream:
    """Tells what it got; ``/v1/stream`` sends one event and waits for ``go`` before the next."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.left = asyncio.Event()
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request (ASGI)."""
        request = Request(scope, receive)
        body = (await request.body()).decode()
        self.seen.append(
            {"path": request.url.path, "query": request.url.query, "headers": dict(request.headers)}
        )
        response: Response = JSONResponse({"body": body})
        if request.url.path == "/v1/stream":
            response = StreamingResponse(self.events(), media_type="text/event-stream")
        elif request.url.path == "/v1/refuse":
            text = request.headers.get("authorization", "")
            response = JSONResponse({"error": {"message": f"bad key {text}"}}, status_code=401)
        await response(scope, receive, send)

    async def events(self) -> AsyncIterator[bytes]:
        """Two events, the second when told to."""
        try:
            yield b"data: one\n\n"
            await self.go.wait()
            yield b"data: two\n\n"
        finally:
            self.left.set()


@pytest.fixture
async def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def relay(upstream: Upstream) -> AsyncIterator[ModelRelay]:
    server = await LoopbackServer.start(upstream)
    relay = await ModelRelay.start(f"http://127.0.0.1:{server.port}/v1", KEY)
    yield relay
    upstream.go.set()
    await relay.stop()
    await server.stop()


@pytest.fixture
async def grant(relay: ModelRelay) -> Grant:
    return relay.grant()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


async def test_the_key_is_the_relays_whatever_the_agent_sends(
    upstream: Upstream, grant: Grant, http: httpx.AsyncClient
) -> None:
    """The agent's own Authorization and cookies stop here; the model sees the relay's key and the whole request."""
    answer = await http.post(
        f"{grant.base_url}/responses?a=b",
        content=b'{"x": 1}',
        headers={"authorization": "Bearer of-the-agent", "cookie": "c=1", "openai-beta": "yes"},
    )
    assert answer.json() == {"body": '{"x": 1}'}
    [seen] = upstream.seen
    assert (seen["path"], seen["query"]) == ("/v1/responses", "a=b")
    assert seen["headers"]["authorization"] == f"Bearer {KEY}"
    assert seen["headers"]["openai-beta"] == "yes"
    assert "cookie" not in seen["headers"]


async def test_a_stream_arrives_piece_by_piece(
    upstream: Upstream, grant: Grant, http: httpx.AsyncClient
) -> None:
    """The first event is there before the model has made the second."""
    async with http.stream("GET", f"{grant.base_url}/stream") as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"data: one\n\n"
        assert answer.headers["content-type"].startswith("text/event-stream")
        upstream.go.set()
        assert await anext(chunks) == b"data: two\n\n"


async def test_revoking_cuts_a_running_stream_and_refuses_the_next_request(
    upstream: Upstream, grant: Grant, http: httpx.AsyncClient
) -> None:
    """After revoke() nothing more of the model reaches the agent."""
    async with http.stream("GET", f"{grant.base_url}/stream") as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"data: one\n\n"
        grant.revoke()
        upstream.go.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(chunks)
    assert (await http.get(f"{grant.base_url}/models")).status_code == 401


async def test_only_a_granted_capability_and_the_models_interface_are_served(
    upstream: Upstream, grant: Grant, http: httpx.AsyncClient
) -> None:
    """Unknown capabilities, other paths and ways out of /v1 are 404 and never reach the model."""
    root = grant.base_url.removesuffix("/v1")
    origin = "/".join(root.split("/")[:3])
    for address in (
        f"{origin}/{'x' * 43}/v1/models",
        f"{origin}/v1/models",
        f"{root}/admin/keys",
        f"{root}/v1",
        f"{root}/v1/%2e%2e/admin",
        f"{root}/v1/a%2f..%2f..%2fadmin",
    ):
        assert (await http.get(address)).status_code == 404
    assert upstream.seen == []


async def test_capabilities_are_each_runs_own(relay: ModelRelay, http: httpx.AsyncClient) -> None:
    """Revoking one run's capability leaves another's working."""
    one, two = relay.grant(), relay.grant()
    assert one.base_url != two.base_url
    one.revoke()
    assert (await http.post(f"{two.base_url}/responses", content=b"x")).status_code == 200


async def test_an_error_of_the_model_passes_without_the_key(grant: Grant, http: httpx.AsyncClient) -> None:
    """The model's status and words come through, even if it echoes the key: that is removed."""
    answer = await http.post(f"{grant.base_url}/refuse", content=b"{}")
    assert answer.status_code == 401
    assert answer.json() == {"error": {"message": "bad key Bearer [key]"}}


async def test_an_absent_model_is_a_502_that_tells_no_address(http: httpx.AsyncClient) -> None:
    """Where nothing listens, the agent hears 502 and neither address nor key."""
    relay = await ModelRelay.start("http://127.0.0.1:9/v1", KEY)
    answer = await http.post(f"{relay.grant().base_url}/responses", content=b"{}")
    await relay.stop()
    assert answer.status_code == 502
    assert KEY not in answer.text
    assert "127.0.0.1" not in json.dumps(answer.json())


async def test_the_relay_never_shows_what_it_holds(relay: ModelRelay, grant: Grant) -> None:
    """Neither the key nor a capability is part of anything that may be logged."""
    capability = grant.base_url.split("/")[3]
    assert KEY not in repr(relay)
    assert capability not in repr(grant)


async def test_a_client_that_leaves_ends_the_models_work(
    upstream: Upstream, grant: Grant, http: httpx.AsyncClient
) -> None:
    """When the agent goes away in mid-stream, the model's connection is closed too, not read on for nobody."""
    async with http.stream("GET", f"{grant.base_url}/stream") as answer:
        assert await anext(answer.aiter_raw()) == b"data: one\n\n"
    async with asyncio.timeout(10):
        await upstream.left.wait()
