"""An MCP client over a pair of streams: handshake, the list of tools, calls. JSON-RPC itself is ``adapters.jsonrpc``.

Raises what ``Peer.request`` raises: ``PeerClosed``, ``RequestTimeout``, ``RemoteError``; and ``Invalid`` (code
``mcp_protocol``) when the other side answers what is no MCP.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from adapters.jsonrpc import MethodUnknown, Params, Peer
from domain.faults import Invalid
from domain.tools import ToolSchema

PROTOCOL_VERSION = "2025-06-18"
MAX_PAGES = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Called:
    """The result of ``tools/call``: its text blocks joined by line feeds."""

    text: str
    is_error: bool


class McpClient:
    """One conversation with an MCP server. Timeouts are seconds per request."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        name: str,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._peer = Peer(reader, writer, name=name, on_request=_serve, on_close=on_close, versioned=True)
        self.server_name = ""
        self.server_version = ""

    @property
    def closed(self) -> bool:
        """Whether the conversation is over."""
        return self._peer.closed

    async def initialize(self, *, timeout: float) -> None:  # noqa: ASYNC109 - a deadline per request
        """Shake hands; ``server_name`` and ``server_version`` are known then."""
        self._peer.start()
        answer = _object(
            await self._peer.request(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {},
                    "clientInfo": {"name": "turnkeeper", "version": "1"},
                },
                timeout=timeout,
            )
        )
        server = _object(answer.get("serverInfo"))
        self.server_name = str(server.get("name", ""))
        self.server_version = str(server.get("version", ""))
        await self._peer.notify("notifications/initialized")

    async def tools(self, *, timeout: float) -> Sequence[ToolSchema]:  # noqa: ASYNC109 - a deadline per request
        """All tools, page by page."""
        found: list[ToolSchema] = []
        cursor: object = None
        for _page in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            answer = _object(await self._peer.request("tools/list", params, timeout=timeout))
            page = answer.get("tools")
            if not isinstance(page, list):
                break
            found += [tool for tool in page if isinstance(tool, Mapping)]
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return found
        raise Invalid("the MCP server's list of tools cannot be read", code="mcp_protocol")

    async def call(self, name: str, arguments: Mapping[str, object], *, timeout: float) -> Called:  # noqa: ASYNC109 - a deadline per request
        """Call a tool."""
        params = {"name": name, "arguments": dict(arguments)}
        answer = _object(await self._peer.request("tools/call", params, timeout=timeout))
        content = answer.get("content")
        blocks = content if isinstance(content, list) else []
        texts = [
            block["text"]
            for block in blocks
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        ]
        return Called(text="\n".join(texts), is_error=answer.get("isError") is True)

    async def close(self) -> None:
        """End the conversation; pending calls raise ``PeerClosed``."""
        await self._peer.close()


async def _serve(method: str, _params: Params) -> object:
    if method == "ping":
        return {}
    raise MethodUnknown(method)


def _object(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise Invalid("the MCP server answered with something else than an object", code="mcp_protocol")
