"""A stand-in Gitea: real HTTP, real git, everything computed from its own state.

``SimulatedGitea`` runs in the event loop of whoever starts it. Seed it through ``state`` (users, tokens, teams,
repositories, hooks, issues, comments, pull requests, reviews) or by REST; watch deliveries in ``hooks``; switch
faults on in ``faults``; ``unknown_calls`` holds what was asked of it that it does not know.
"""

import asyncio
import secrets
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adapters.simulated import gitea_rest_issues, gitea_rest_pulls, gitea_rest_repos
from adapters.simulated.gitea_events import GiteaEvents
from adapters.simulated.gitea_faults import GiteaFaults
from adapters.simulated.gitea_git import GitStore
from adapters.simulated.gitea_hooks import GiteaHooks
from adapters.simulated.gitea_http_git import GiteaHttpGit
from adapters.simulated.gitea_pulls import GiteaPulls
from adapters.simulated.gitea_rest import GiteaRest
from adapters.simulated.gitea_shapes import GiteaShapes
from adapters.simulated.gitea_state import utc_now

log = structlog.get_logger(__name__)

HANDLERS = (gitea_rest_issues, gitea_rest_pulls, gitea_rest_repos)


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class SimulatedGitea:
    """The stand-in. ``version``: 1.27.0 or 1.22.6; ``public_url``: what its answers call it (default: ``url``)."""

    def __init__(
        self,
        *,
        root: Path,
        version: str = "1.27.0",
        public_url: str | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        if not version.startswith(("1.22", "1.27")):
            raise ValueError(f"no recorded dialect of Gitea {version}: 1.22.6 and 1.27.0 are known")
        self.version = version
        self.url = ""
        self.state = GiteaPulls(clock=clock)
        self.state.git = GitStore(root)
        self.state.shapes = GiteaShapes(self.state, self.state.git, version=version)
        self.hooks = GiteaHooks(self.state, version=version)
        self.state.hook_queue = self.hooks
        self.state.events = GiteaEvents(self.state, self.state.git, self.state.shapes, self.hooks)
        self.faults = GiteaFaults()
        self.rest = GiteaRest(self.state)
        self._git = GiteaHttpGit(self.rest)
        self._public_url = public_url
        self._transports: dict[tuple[str, int], asyncio.BaseTransport] = {}
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def unknown_calls(self) -> list[str]:
        """Calls that the stand-in refused because it does not know them."""
        return self.rest.unknown_calls

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen (port 0: any free one) and begin to deliver; ``url`` is set when this returns."""
        # Named as TCP, else asyncio leaves Nagle on and every answer waits 40 ms for an acknowledgement.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        self.state.shapes.base_url = (self._public_url or self.url).rstrip("/")
        transports = self._transports

        class _Protocol(HttpToolsProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is not None:
                    transports[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client is not None:
                    transports.pop(self.client, None)
                super().connection_lost(exc)

        config = uvicorn.Config(
            self,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name="simulated-gitea")
        await self._server.ready.wait()
        self.hooks.start()

    async def stop(self) -> None:
        """Stop delivering and listening."""
        await self.hooks.stop()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            for transport in list(self._transports.values()):
                transport.close()
            await self._task
            self._server = self._task = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        fault = self.faults.strike(request.method, request.url.path)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault is not None and fault.status is not None:
            swagger = f"{self.state.shapes.base_url}/api/swagger"
            response: Response = JSONResponse(
                {"message": fault.message, "url": swagger}, status_code=fault.status
            )
        else:
            response = await self._answer(request)
        if fault is not None and fault.drop_answer_after_handling:
            self._drop(scope)
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.url.path.startswith("/api/v1/"):
            return await self.rest.answer(request)
        answered = await self._git.answer(request)
        if answered is not None:
            return answered
        self.unknown_calls.append(f"{request.method} {request.url.path}")
        log.error("simulated_gitea_unknown_call", method=request.method, path=request.url.path)
        return Response(f"the stand-in Gitea does not know {request.method} {request.url.path}\n", 501)

    def _drop(self, scope: Scope) -> None:
        transport = self._transports.get(tuple(scope["client"]))
        if isinstance(transport, asyncio.Transport):
            transport.abort()


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoWorld:
    """Names and freshly made tokens of the demo; ``tokens`` by login."""

    url: str
    repository: str
    repository_id: int
    issue: int
    owner: str
    reader: str
    bot: str
    bot_id: int
    tokens: dict[str, str] = field(repr=False)


def seed_demo(sim: SimulatedGitea) -> DemoWorld:
    """Fill an empty stand-in: alice owns alice/widget with one issue, bob reads, turnkeeper-bot may write."""
    state = sim.state
    for login in ("alice", "bob", "turnkeeper-bot"):
        state.add_user(login)
    repo = state.add_repo("alice", "widget", files=_DEMO_FILES, description="A small widget")
    state.collaborator("alice/widget", "bob", "read")
    state.collaborator("alice/widget", "turnkeeper-bot", "write")
    issue = state.open_issue(
        "bob", repo, "Prices are rounded down", "price(2.999) gives 2.99, it should give 3.00.\n"
    )
    scopes = ("write:issue", "write:repository", "read:user")
    return DemoWorld(
        url=sim.url,
        repository="alice/widget",
        repository_id=repo.id,
        issue=issue.number,
        owner="alice",
        reader="bob",
        bot="turnkeeper-bot",
        bot_id=state.user("turnkeeper-bot").id,
        tokens={
            "alice": state.add_token("alice", ("all",)),
            "bob": state.add_token("bob", scopes),
            "turnkeeper-bot": state.add_token("turnkeeper-bot", scopes),
        },
    )


async def serve_simulated(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    version: str = "1.27.0",
    root: Path | None = None,
    ready: Callable[[SimulatedGitea, DemoWorld], None] | None = None,
) -> None:
    """Run a seeded stand-in until cancelled; ``ready`` is called once it answers. No ``root``: a temporary one."""
    with tempfile.TemporaryDirectory(prefix=f"simulated-gitea-{secrets.token_hex(4)}-") as scratch:
        sim = SimulatedGitea(root=root or Path(scratch), version=version)
        await sim.start(host=host, port=port)
        try:
            world = seed_demo(sim)
            if ready is not None:
                ready(sim, world)
            await asyncio.Event().wait()
        finally:
            await sim.stop()


_DEMO_FILES = {
    "README.md": "# widget\n\nPrices for a small shop.\n",
    "price.py": (
        '"""Prices."""\n\n\ndef price(value: float) -> float:\n'
        '    """A price with two digits."""\n    return int(value * 100) / 100\n'
    ),
    "test_price.py": "from price import price\n\n\ndef test_price() -> None:\n    assert price(2.994) == 2.99\n",
}
