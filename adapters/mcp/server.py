"""The bridge's endpoint: an MCP server on a unix socket, one socket per run.

The socket's folder is 0700 and the socket 0600, both ours: in the box the mapped user is the same user of the host
(``--unshare-user`` maps the caller), and the folder is bound in read-only. The app-server may start several stubs;
every connection is a conversation of its own, and all share the run's limits. What a tool does is the handler's.

Limits: bytes per line (a longer one ends that connection), calls at work at once (further ones wait), connections.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import structlog

from adapters.jsonrpc import MethodUnknown, Params, Peer, Refusal
from domain.faults import Fault, Unavailable
from domain.tools import ToolCall, ToolResult, ToolSchema

SOCKET_NAME = "mcp.sock"
PROTOCOL_VERSION = "2025-06-18"
INVALID_PARAMS = -32602
LINE_LIMIT = 8 * 1024 * 1024

log = structlog.get_logger(__name__)


class ToolHost(Protocol):
    """What is offered to the agent (``services.bridge.Bridge``)."""

    async def tools(self) -> Sequence[ToolSchema]:
        """List the tools that the agent may use."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Do one call. A ``Fault`` becomes a tool error."""
        ...


class McpServer:
    """Serves ``host`` on ``directory/mcp.sock`` from ``start()`` to ``close()``."""

    def __init__(
        self,
        directory: Path,
        host: ToolHost,
        *,
        version: str = "0",
        line_limit: int = LINE_LIMIT,
        concurrent_calls: int = 8,
        max_connections: int = 16,
    ) -> None:
        self.path = directory / SOCKET_NAME
        self._host = host
        self._version = version
        self._line_limit = line_limit
        self._calls = asyncio.Semaphore(concurrent_calls)
        self._max_connections = max_connections
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Create the folder where it is missing, and listen. ``Unavailable`` if that fails."""
        directory = self.path.parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            self._server = await asyncio.start_unix_server(self._accept, sock=_listen(directory))
        except OSError as error:
            raise Unavailable(
                f"the bridge's socket cannot be made: {error.strerror}", code="bridge_unavailable"
            ) from None

    async def close(self) -> None:
        """Stop listening, end all connections and remove the socket. Calls at work are cancelled."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close."""
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._max_connections:
            log.warning("a connection to the bridge was refused: too many", connections=len(self._open))
            writer.close()
            return
        task = asyncio.create_task(self._converse(reader, writer), name="bridge-connection")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(
            reader,
            writer,
            name="bridge",
            on_request=self._answer,
            versioned=True,
            line_limit=self._line_limit,
        )
        peer.start()
        try:
            await peer.wait_closed()
        finally:
            await peer.close()

    async def _answer(self, method: str, params: Params) -> object:
        match method:
            case "initialize":
                version = params.get("protocolVersion")
                return {
                    "protocolVersion": version if isinstance(version, str) else PROTOCOL_VERSION,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "turnkeeper", "version": self._version},
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [dict(tool) for tool in await self._host.tools()]}
            case "tools/call":
                return _wire(await self._call(params))
            case _:
                raise MethodUnknown(method)

    async def _call(self, params: Params) -> ToolResult:
        name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
        if not isinstance(name, str) or not isinstance(arguments if arguments is not None else {}, Mapping):
            raise Refusal(INVALID_PARAMS, "tools/call needs a name, and arguments as an object")
        call = ToolCall(
            name=name,
            arguments=arguments if isinstance(arguments, Mapping) else {},
            meta=meta if isinstance(meta, Mapping) else {},
        )
        async with self._calls:
            try:
                return await self._host.call(call)
            except Fault as fault:
                return ToolResult(texts=(str(fault),), is_error=True)
            except Exception as error:
                log.exception("a tool call failed", tool=name, error=type(error).__name__)
                return ToolResult(texts=("internal_error: the call failed inside the bridge",), is_error=True)


def _wire(result: ToolResult) -> dict[str, object]:
    return {"content": [{"type": "text", "text": text} for text in result.texts], "isError": result.is_error}


def _listen(directory: Path) -> socket.socket:
    """Bind through the folder's descriptor: a socket's address holds 107 bytes, a state folder's path may not fit."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = directory / SOCKET_NAME
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
        sock.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        path.chmod(0o600)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
