"""A small HTTP server inside this process, on 127.0.0.1 and a port of the system's choice."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as usual, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the process that this server lives in."""
        yield


class LoopbackServer:
    """Serves an ASGI application until ``stop()``. Nothing is logged: paths may hold capabilities."""

    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], port: int) -> None:
        self.port = port
        self._server = server
        self._serving = serving

    @classmethod
    async def start(cls, application: ASGIApp) -> "LoopbackServer":
        """Listen, and return when requests are taken."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        config = uvicorn.Config(
            application,
            access_log=False,
            log_config=None,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,  # seconds; a pooled connection should outlive a pause between requests
            server_header=False,
        )
        server = _QuietServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="loopback")
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if serving.done():
            listener.close()
            await serving
        return cls(server, serving, listener.getsockname()[1])

    async def stop(self) -> None:
        """Take no more requests, give the running ones a second, then end them. Idempotent."""
        self._server.should_exit = True
        await self._serving
