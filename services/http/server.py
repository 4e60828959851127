"""One ASGI application on one address, inside the process's own loop; signals stay the process's own."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from domain.faults import Fault


class _Server(uvicorn.Server):
    """A server that leaves the process's signals alone and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class HttpServer:
    """Listens from ``start`` to ``stop``; ``url`` is its address then."""

    def __init__(self, app: ASGIApp, *, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen; ``Fault`` ``address_in_use`` if the address is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
        except OSError as error:
            listener.close()
            raise Fault(
                f"cannot listen on {self._host}:{self._port} ({error.strerror}): set TURNKEEPER_PORT",
                code="address_in_use",
            ) from None
        name = f"[{self._host}]" if family is socket.AF_INET6 else self._host
        self.url = f"http://{name}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name="http")
        await self._server.listening.wait()

    async def stop(self) -> None:
        """Answer what is being asked, then stop listening."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = self._task = None
