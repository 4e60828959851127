"""The client against a hand-played app-server: what the real one does too rarely to be waited for."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.codex.client import CodexClient
from adapters.codex.protocol import McpServer, ThreadSettings, TurnEvent, TurnResult
from adapters.codex.turns import DELTAS_QUEUED
from domain.faults import Fault

SETTINGS = ThreadSettings(cwd="/workspace", model="m")
OPENED = {
    "thread": {"id": "T"},
    "model": "m",
    "cwd": "/workspace",
    "approvalPolicy": "never",
    "sandbox": {"type": "dangerFullAccess"},
}
GITEA = McpServer(command="bridge", startup_timeout=0.2)


class Server:
    """The other end: every message is played by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, **message: Any) -> None:
        """Write one message."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.say(method=method, params=params)

    async def expect(self, method: str) -> dict[str, Any]:
        """Read the next message, which must be this method."""
        message: dict[str, Any] = json.loads(await asyncio.wait_for(self.reader.readline(), 10))
        assert message.get("method") == method, message
        return message

    async def answer(self, method: str, result: Any) -> dict[str, Any]:
        """Expect a request and answer it."""
        message = await self.expect(method)
        self.say(id=message["id"], result=result)
        return message

    async def refuse(self, method: str, code: int, text: str) -> None:
        """Expect a request and refuse it."""
        message = await self.expect(method)
        self.say(id=message["id"], error={"code": code, "message": text})

    async def greet(self, version: str = "0.171.0") -> None:
        """Play the handshake and the probes."""
        await self.answer("initialize", {"userAgent": f"x/{version} (linux)"})
        await self.expect("initialized")
        await self.refuse(
            "experimentalFeature/enablement/set", -32600, "unsupported feature enablement `goals`"
        )
        await self.answer("collaborationMode/list", {"data": [{"name": "Plan", "mode": "plan"}]})

    async def begin(self, turn: str) -> None:
        """Answer turn/start and say that the turn began."""
        await self.answer("turn/start", {"turn": {"id": turn, "status": "inProgress"}})
        self.tell("turn/started", threadId="T", turn={"id": turn})

    def end(self, turn: str, status: str = "completed") -> None:
        """Say that a turn ended."""
        self.tell("turn/completed", threadId="T", turn={"id": turn, "status": status, "error": None})


class Stage:
    """A client, its server, and what the client reported."""

    def __init__(self, server: Server, client: CodexClient, unsolicited: list[tuple[str, str]]) -> None:
        self.server = server
        self.client = client
        self.unsolicited = unsolicited
        self.events: list[TurnEvent] = []

    async def note(self, event: TurnEvent) -> None:
        """Keep an event."""
        self.events.append(event)

    def turn(self, **more: Any) -> asyncio.Task[TurnResult]:
        """Begin a turn in the background."""
        arguments = {"stall_after": 20.0, "interrupt_timeout": 5.0} | more
        flow = self.client.run_turn("T", "x", client_message_id="c", on_event=self.note, **arguments)
        return asyncio.create_task(flow)

    async def open(self) -> None:
        """Shake hands and start the thread T."""
        await asyncio.gather(self.client.initialize(), self.server.greet())
        await asyncio.gather(self.client.start_thread(SETTINGS), self.server.answer("thread/start", OPENED))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    one, two = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=one)
    server = Server(*await asyncio.open_connection(sock=two))
    unsolicited: list[tuple[str, str]] = []
    client = CodexClient(reader, writer, on_unsolicited=lambda *which: unsolicited.append(which))
    yield Stage(server, client, unsolicited)
    await client.close()
    server.writer.close()


@pytest.mark.parametrize(
    ("agent", "code"),
    [("x/0.129.9 (linux)", "codex_too_old"), ("x/0.77.0", "codex_too_old"), ("x", "codex_version_unknown")],
)
async def test_an_old_version_is_refused_before_anything_else_is_said(
    stage: Stage, agent: str, code: str
) -> None:
    """Below 0.130, or without a version, nothing follows the handshake."""
    answering = asyncio.create_task(stage.server.answer("initialize", {"userAgent": agent}))
    with pytest.raises(Fault, match=code):
        await stage.client.initialize()
    await answering
    await stage.client.close()
    assert await stage.server.reader.read() == b""


async def test_refused_probes_are_notes_not_failures(stage: Stage) -> None:
    """What an older version does not know is noted, and the client goes on."""
    info, _ = await asyncio.gather(stage.client.initialize(), stage.server.greet("0.130.0"))
    assert info.version_text == "0.130.0"
    assert stage.client.capabilities.goals is False
    assert stage.client.capabilities.collaboration_modes == ("plan",)
    assert "unsupported feature" in stage.client.capabilities.notes[0]


@pytest.mark.parametrize("thread_id", [None, "T"])
@pytest.mark.parametrize("before", [True, False])
async def test_the_word_of_the_mcp_server_counts_before_and_after_the_answer(
    stage: Stage, thread_id: str | None, *, before: bool
) -> None:
    """Ready may be said first (0.171) or later and without a thread (0.130); the thread is given out only then."""
    await asyncio.gather(stage.client.initialize(), stage.server.greet())
    opening = asyncio.create_task(
        stage.client.start_thread(ThreadSettings(cwd="/workspace", mcp_server=GITEA))
    )
    request = await stage.server.expect("thread/start")
    word = {"name": "gitea", "status": "ready"} | ({"threadId": thread_id} if thread_id else {})
    if before:
        stage.server.tell("mcpServer/startupStatus/updated", **word)
    stage.server.say(id=request["id"], result=OPENED)
    if not before:
        stage.server.tell("mcpServer/startupStatus/updated", **word)
    assert (await opening).thread_id == "T"


async def test_a_thread_whose_process_ends_while_its_mcp_server_starts_is_a_fault(stage: Stage) -> None:
    """EOF while waiting for ready is told at once."""
    await asyncio.gather(stage.client.initialize(), stage.server.greet())
    opening = asyncio.create_task(
        stage.client.start_thread(ThreadSettings(cwd="/workspace", mcp_server=GITEA))
    )
    await stage.server.answer("thread/start", OPENED)
    stage.server.writer.close()
    with pytest.raises(Fault, match="agent_exited"):
        await opening


async def test_a_turn_that_nobody_asked_for_is_interrupted_and_reported(stage: Stage) -> None:
    """An active goal's own turn is ended before ours starts, and its events are none of ours."""
    await stage.open()
    stage.server.tell("turn/started", threadId="T", turn={"id": "goal"})
    asked = await stage.server.answer("turn/interrupt", {})
    assert asked["params"]["turnId"] == "goal"
    running = stage.turn()
    second = await stage.server.answer("turn/interrupt", {})
    assert second["params"]["turnId"] == "goal"
    stage.server.tell(
        "item/completed", threadId="T", turnId="goal", item={"id": "g", "type": "agentMessage", "text": "g"}
    )
    stage.server.end("goal", "interrupted")
    await stage.server.begin("ours")
    stage.server.end("ours")
    result = await running
    assert (result.outcome, result.codex_turn_id, result.final_message) == ("completed", "ours", None)
    assert stage.unsolicited == [("T", "goal")]
    assert [event.method for event in stage.events] == ["turn/started", "turn/completed"]


async def test_a_turn_of_its_own_during_ours_is_interrupted_too(stage: Stage) -> None:
    """A foreign turn that begins while ours runs is stopped; ours is left alone."""
    await stage.open()
    running = stage.turn()
    await stage.server.begin("ours")
    stage.server.tell("turn/started", threadId="T", turn={"id": "goal"})
    asked = await stage.server.answer("turn/interrupt", {})
    assert asked["params"]["turnId"] == "goal"
    stage.server.end("goal", "interrupted")
    stage.server.end("ours")
    assert (await running).outcome == "completed"
    assert stage.unsolicited == [("T", "goal")]


async def test_a_turn_of_a_sub_agents_thread_is_left_alone(stage: Stage) -> None:
    """Threads that we did not open belong to the agent: their turns are neither stopped nor stored."""
    await stage.open()
    running = stage.turn()
    await stage.server.begin("ours")
    stage.server.tell("turn/started", threadId="child", turn={"id": "c1"})
    stage.server.tell("turn/completed", threadId="child", turn={"id": "c1", "status": "completed"})
    stage.server.end("ours")
    result = await running
    assert (result.events, stage.unsolicited) == (2, [])


async def test_an_interrupt_is_tried_again_until_codex_takes_it(stage: Stage) -> None:
    """Refused as too early, it is repeated; only turn/completed ends the waiting."""
    await stage.open()
    running = stage.turn()
    await stage.server.begin("ours")
    stopping = asyncio.create_task(stage.client.interrupt("T", timeout=10))
    await stage.server.refuse("turn/interrupt", -32600, "no active turn to interrupt")
    await stage.server.answer("turn/interrupt", {})
    assert not stopping.done()
    stage.server.end("ours", "interrupted")
    assert await stopping
    await stage.server.answer("thread/backgroundTerminals/clean", {})
    assert (await running).outcome == "interrupted"


async def test_an_interrupt_without_an_end_is_an_abort_timeout(stage: Stage) -> None:
    """A server that takes the interrupt and never confirms it is told as abort_timeout."""
    await stage.open()
    running = stage.turn(interrupt_timeout=0.05)
    await stage.server.begin("ours")
    stopping = asyncio.create_task(stage.client.interrupt("T", timeout=0.05))
    await stage.server.answer("turn/interrupt", {})
    with pytest.raises(Fault, match="abort_timeout"):
        await stopping
    stage.server.end("ours")
    assert (await running).outcome == "completed"


async def test_retry_notices_are_no_sign_of_life_and_name_the_cause(stage: Stage) -> None:
    """A model that is only being retried stalls, and the result says why nothing came."""
    await stage.open()
    running = stage.turn(stall_after=0.2)
    await stage.server.begin("ours")
    notice = {
        "message": "Reconnecting... waiting for network",
        "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": None}},
        "additionalDetails": "Connection failed: error sending request",
    }
    stage.server.tell("error", threadId="T", turnId="ours", error=notice, willRetry=True)
    await stage.server.answer("turn/interrupt", {})
    stage.server.end("ours", "interrupted")
    await stage.server.answer("thread/backgroundTerminals/clean", {})
    result = await running
    assert result.outcome == "stalled"
    assert result.error is not None
    assert result.error.code == "model_unavailable"


async def test_a_turn_that_ends_by_itself_while_being_cut_keeps_its_own_end(stage: Stage) -> None:
    """Completed just as the stall was found, it is completed."""
    await stage.open()
    running = stage.turn(stall_after=0.1)
    await stage.server.begin("ours")
    await stage.server.expect("turn/interrupt")
    stage.server.end("ours")
    assert (await running).outcome == "completed"


@pytest.mark.parametrize(
    "text",
    ["turn/start.collaborationMode requires experimentalApi capability", "Invalid request: unknown variant"],
)
async def test_a_refused_collaboration_mode_starts_a_plain_turn_at_once(stage: Stage, text: str) -> None:
    """The second turn/start has no mode, and the result names the refusal."""
    await stage.open()
    running = stage.turn(collaboration={"mode": "default", "settings": {"model": "m"}})
    await stage.server.refuse("turn/start", -32600, text)
    plain = await stage.server.answer("turn/start", {"turn": {"id": "ours"}})
    assert "collaborationMode" not in plain["params"]
    stage.server.tell("turn/started", threadId="T", turn={"id": "ours"})
    stage.server.end("ours")
    result = await running
    assert (result.downgraded, result.downgrade_reason) == (True, text)


async def test_an_overloaded_server_is_told_as_such(stage: Stage) -> None:
    """-32001 is codex_overloaded: no turn was started, try later."""
    await stage.open()
    running = stage.turn()
    await stage.server.refuse("turn/start", -32001, "overloaded")
    with pytest.raises(Fault, match="codex_overloaded"):
        await running


async def test_the_end_of_the_stream_in_mid_turn_is_agent_exited_after_the_last_event(stage: Stage) -> None:
    """What was said before the end is still delivered."""
    await stage.open()
    running = stage.turn()
    await stage.server.begin("ours")
    stage.server.tell(
        "item/started", threadId="T", turnId="ours", item={"id": "a", "type": "plan", "text": "p"}
    )
    await stage.server.writer.drain()
    stage.server.writer.close()
    with pytest.raises(Fault, match="agent_exited"):
        await running
    assert [event.method for event in stage.events] == ["turn/started", "item/started"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("item/commandExecution/requestApproval", {"decision": "decline"}),
        ("item/fileChange/requestApproval", {"decision": "decline"}),
        ("item/permissions/requestApproval", {"permissions": {}, "scope": "turn"}),
        ("mcpServer/elicitation/request", {"action": "decline", "content": None, "_meta": None}),
        ("item/tool/requestUserInput", {"answers": {}}),
        ("tomorrow/request", None),
    ],
)
async def test_every_question_of_codexs_is_answered_at_once(
    stage: Stage, method: str, expected: dict[str, Any] | None
) -> None:
    """Known questions are declined in the recorded form, unknown ones get -32601; each is an event of the turn."""
    await stage.open()
    running = stage.turn()
    await stage.server.begin("ours")
    stage.server.say(id=0, method=method, params={"threadId": "T", "turnId": "ours", "message": "may I?"})
    answer = json.loads(await stage.server.reader.readline())
    assert answer["id"] == 0
    assert answer.get("result") == expected
    assert ("error" in answer) == (expected is None)
    stage.server.end("ours")
    await running
    [event] = [event for event in stage.events if event.method == "serverRequest"]
    assert (event.payload["request"], event.payload["message"]) == (method, "may I?")


async def test_a_flood_of_deltas_loses_deltas_only(stage: Stage) -> None:
    """While an event is being stored, text piles up to a limit; every event is still delivered, in order."""
    await stage.open()
    go = asyncio.Event()
    pieces: list[str] = []

    async def slow(event: TurnEvent) -> None:
        await go.wait()
        stage.events.append(event)

    flow = stage.client.run_turn(
        "T", "x", client_message_id="c", on_event=slow, on_delta=lambda delta: pieces.append(delta.text)
    )
    running = asyncio.create_task(flow)
    await stage.server.begin("ours")
    for _ in range(DELTAS_QUEUED + 500):
        stage.server.tell("item/agentMessage/delta", threadId="T", turnId="ours", itemId="m", delta="x")
    stage.server.end("ours")
    await stage.server.writer.drain()
    assert not await stage.client.interrupt("other")
    stopping = asyncio.create_task(stage.client.interrupt("T", timeout=10))
    await stopping  # returns when the end has been heard, although nothing was delivered yet
    go.set()
    assert (await running).outcome == "completed"
    assert [event.method for event in stage.events] == ["turn/started", "turn/completed"]
    assert len(pieces) <= DELTAS_QUEUED
