import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.mcp.client import McpClient
from adapters.mcp.server import McpServer
from domain.faults import Fault
from domain.tools import ToolCall, ToolResult, ToolSchema
from tests.unit.bridge_stage import Stage

STUB = Path(__file__).parents[2] / "adapters" / "mcp" / "stub.py"


class Host:
    """Tools for the endpoint alone: says what it was asked."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.at_work = 0
        self.most_at_work = 0
        self.release = asyncio.Event()
        self.entered = asyncio.Event()

    async def tools(self) -> Sequence[ToolSchema]:
        """List one tool."""
        return [{"name": "echo", "inputSchema": {"type": "object"}}]

    async def call(self, call: ToolCall) -> ToolResult:
        """Echo, wait, or fail."""
        self.calls.append(call)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            if call.name == "wait":
                self.entered.set()
                await self.release.wait()
            if call.name == "fault":
                raise Fault("it cannot be", code="not_available")
            if call.name == "defect":
                raise ZeroDivisionError
            return ToolResult(texts=(str(call.arguments.get("text")),))
        finally:
            self.at_work -= 1


@asynccontextmanager
async def stub(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(STUB), str(path),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={},
        limit=64 * 1024 * 1024,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ask(process: asyncio.subprocess.Process, message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    await process.stdin.drain()
    answer: dict[str, Any] = json.loads(await process.stdout.readline())
    return answer


async def test_conversation_through_the_stub(tmp_path: Path) -> None:
    """The stub carries a whole conversation: handshake, list, call with ``_meta``, and unknown methods."""
    host = Host()
    async with McpServer(tmp_path / "bridge", host, version="9") as server, stub(server.path) as process:
        hello = await ask(
            process, {"id": 0, "method": "initialize", "params": {"protocolVersion": "2024-11-05"}}
        )
        assert hello["id"] == 0
        assert hello["jsonrpc"] == "2.0"
        assert hello["result"]["protocolVersion"] == "2024-11-05"
        assert hello["result"]["serverInfo"] == {"name": "turnkeeper", "version": "9"}
        assert process.stdin is not None
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        assert (await ask(process, {"id": 1, "method": "ping"}))["result"] == {}
        assert (await ask(process, {"id": 2, "method": "tools/list"}))["result"]["tools"][0]["name"] == "echo"
        meta = {"callId": "item-1", "x-codex-turn-metadata": {"turn_id": "c1", "thread_id": "th"}}
        params = {"name": "echo", "arguments": {"text": "héllo\u2028"}, "_meta": meta}
        called = await ask(process, {"id": "x", "method": "tools/call", "params": params})
        assert called["result"] == {"content": [{"type": "text", "text": "héllo\u2028"}], "isError": False}
        assert host.calls[0].meta == meta
        assert (await ask(process, {"id": 3, "method": "resources/list"}))["error"]["code"] == -32601
        wrong = await ask(process, {"id": 4, "method": "tools/call", "params": {"name": 7}})
        assert wrong["error"]["code"] == -32602


async def test_faults_and_defects_are_tool_errors(tmp_path: Path) -> None:
    """A fault says its code, a defect says nothing of itself; both are answers to the call."""
    async with McpServer(tmp_path, Host()) as server, stub(server.path) as process:
        fault = await ask(process, {"id": 1, "method": "tools/call", "params": {"name": "fault"}})
        assert fault["result"]["isError"] is True
        assert fault["result"]["content"][0]["text"].startswith("not_available")
        defect = await ask(process, {"id": 2, "method": "tools/call", "params": {"name": "defect"}})
        assert defect["result"]["isError"] is True
        assert "ZeroDivision" not in json.dumps(defect)


async def test_large_lines_pass(tmp_path: Path) -> None:
    """Lines of megabytes pass both ways, whole."""
    text = "a" * 3_000_000
    async with McpServer(tmp_path, Host()) as server, stub(server.path) as process:
        called = await ask(
            process,
            {"id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}},
        )
        assert called["result"]["content"][0]["text"] == text


async def test_line_over_the_limit_ends_that_connection_only(tmp_path: Path) -> None:
    """A line beyond the limit ends its connection; the others go on."""
    async with (
        McpServer(tmp_path, Host(), line_limit=10_000) as server,
        stub(server.path) as other,
        stub(server.path) as process,
    ):
        assert (await ask(other, {"id": 1, "method": "ping"}))["result"] == {}
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x" * 400_000)
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
        assert (await ask(other, {"id": 2, "method": "ping"}))["result"] == {}


async def test_stub_ends_with_either_side(tmp_path: Path) -> None:
    """The stub ends when its stdin ends, when the bridge ends, and when there is no bridge."""
    server = McpServer(tmp_path, Host())
    await server.start()
    async with stub(server.path) as first, stub(server.path) as second:
        await ask(first, {"id": 1, "method": "ping"})
        await ask(second, {"id": 1, "method": "ping"})
        assert first.stdin is not None
        first.stdin.close()
        assert await first.wait() == 0
        await server.close()
        assert await second.wait() == 0
    async with stub(server.path) as third:
        assert await third.wait() == 1
        assert third.stderr is not None
        assert b"cannot be reached" in await third.stderr.read()


async def test_last_words_are_passed_on(tmp_path: Path) -> None:
    """Bytes pass as they are, also those that come after stdin has ended."""
    path = tmp_path / "s"
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.write(bytes(range(256)) * 1000)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_unix_server(serve, path=path)
    async with listening, stub(path) as process:
        sent = bytes(reversed(range(256))) * 1000
        out, _err = await process.communicate(sent)
        assert await received == sent
        assert out == bytes(range(256)) * 1000


async def test_calls_at_once_are_bounded(tmp_path: Path) -> None:
    """No more calls are at work at once than allowed, over all connections; the rest waits and is done."""
    host = Host()
    async with McpServer(tmp_path, host, concurrent_calls=2) as server:
        reader, writer = await asyncio.open_unix_connection(server.path)
        client = McpClient(reader, writer, name="test")
        await client.initialize(timeout=20)
        waiting = [asyncio.create_task(client.call("wait", {"text": n}, timeout=20)) for n in range(5)]
        await host.entered.wait()
        # A later request on the same connection is answered while calls wait.
        assert len(await client.tools(timeout=20)) == 1
        assert host.at_work == 2
        host.release.set()
        assert [called.text for called in await asyncio.gather(*waiting)] == ["0", "1", "2", "3", "4"]
        assert host.most_at_work == 2
        await client.close()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    """Beyond the allowed number of connections a new one is closed at once."""
    async with McpServer(tmp_path, Host(), max_connections=1) as server, stub(server.path) as first:
        await ask(first, {"id": 1, "method": "ping"})
        async with stub(server.path) as second:
            assert await second.wait() == 0
        assert (await ask(first, {"id": 2, "method": "ping"}))["result"] == {}


async def test_socket_is_ours_alone_and_may_lie_deep(tmp_path: Path) -> None:
    """Folder 0700, socket 0600, a stale socket is replaced, and the path may exceed a socket's 107 bytes."""
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    server = McpServer(deep, Host())
    await server.start()
    again = McpServer(deep, Host())
    await again.start()
    try:
        assert stat.S_IMODE(deep.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
        folder = os.open(deep, os.O_PATH)
        try:
            async with stub(Path(f"/proc/{os.getpid()}/fd/{folder}/mcp.sock")) as process:
                assert (await ask(process, {"id": 1, "method": "ping"}))["result"] == {}
        finally:
            os.close(folder)
    finally:
        await again.close()
        await server.close()
    assert not server.path.exists()


@pytest.mark.parametrize("dialect", ["2025-06", "2026-03"])
async def test_reply_from_the_box_to_the_ledger(tmp_path: Path, dialect: str) -> None:
    """A comment asked for through the stub stands marked, with its intent and result under Codex's call id."""
    stage = Stage(dialect)
    async with McpServer(tmp_path, stage.bridge) as server, stub(server.path) as process:
        listed = (await ask(process, {"id": 1, "method": "tools/list"}))["result"]["tools"]
        names = {tool["name"] for tool in listed}
        assert "ask_user" in names
        assert not {"publish_branch", "delete_branch", "create_repo"} & names
        verb = stage.backend.dialect.create_comment
        assert verb is not None
        params = {
            "name": verb.tool,
            "arguments": verb.arguments(owner="acme", repo="widget", number=42, body="Done."),
            "_meta": {"callId": "item-3", "x-codex-turn-metadata": {"turn_id": "c1"}},
        }
        called = await ask(process, {"id": 2, "method": "tools/call", "params": params})
    answer = json.loads(called["result"]["content"][0]["text"])
    assert answer == {"accepted": True, "commentId": next(iter(stage.gitea.comments)), "errorCode": None}
    assert [intent["key"] for intent in stage.ledger.intents.values()] == ["item-3"]
    assert stage.ledger.statuses == ["succeeded"]
