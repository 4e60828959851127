"""The client against the scripted agent and, where they are installed, the real binaries."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.codex.client import CodexClient
from adapters.codex.home import ModelProvider, config_toml
from adapters.codex.protocol import Answered, McpServer, ThreadSettings, TurnDelta, TurnEvent, TurnResult
from adapters.codex.relay import Grant, ModelRelay
from adapters.simulated import agent as scripted
from adapters.simulated.model import SimulatedModel
from domain.faults import Fault

MODEL = "stand-in-model"
PLACE = "repository: acme/widget\nresource: issue 42\n"
MCP = Path(__file__).with_name("codex_mcp_server.py")
BINARIES = {"codex": "TURNKEEPER_TEST_CODEX", "codex-old": "TURNKEEPER_TEST_CODEX_OLD"}


def _kinds() -> list[object]:
    kinds: list[object] = ["scripted"]
    for kind, variable in BINARIES.items():
        absent = pytest.mark.skipif(
            not os.environ.get(variable), reason=f"{variable} does not name a codex binary"
        )
        kinds.append(pytest.param(kind, marks=[pytest.mark.codex, absent]))
    return kinds


@dataclass
class Bench:
    """A CODEX_HOME, a workspace, a model behind a relay, and the agents started on them."""

    kind: str
    folder: Path
    model: SimulatedModel
    relay: ModelRelay
    grant: Grant
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    clients: list[CodexClient] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    events: list[TurnEvent] = field(default_factory=list)
    deltas: list[TurnDelta] = field(default_factory=list)

    @property
    def cwd(self) -> str:
        """The workspace."""
        return str(self.folder / "workspace")

    def settings(self, mode: str = "ok", **more: object) -> ThreadSettings:
        """Thread settings with the MCP server in a mode."""
        server = McpServer(
            command=sys.executable,
            args=("-I", "-S", str(MCP)),
            env={"MODE": mode, "CALLS": str(self.folder / "calls.jsonl")},
            startup_timeout=2.0 if mode == "hang" else 20.0,
        )
        whole: dict[str, object] = {"cwd": self.cwd, "model": MODEL, "mcp_server": server} | more
        return ThreadSettings(**whole)  # type: ignore[arg-type]

    def calls(self) -> list[dict[str, object]]:
        """What the MCP server was called with."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def connect(self) -> CodexClient:
        """Start an agent and shake hands."""
        home = self.folder / "home"
        command = [sys.executable, "-I", "-S", scripted.__file__]
        if self.kind in BINARIES:
            command = [os.environ[BINARIES[self.kind]]]
        process = await asyncio.create_subprocess_exec(
            *command,
            "app-server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"CODEX_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]},
            cwd=self.cwd,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        client = CodexClient(process.stdout, process.stdin, on_answered=self.answered.append)
        self.processes.append(process)
        self.clients.append(client)
        await client.initialize()
        return client

    async def kill(self) -> None:
        """End the last agent and its children with SIGKILL."""
        process = self.processes[-1]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def on_event(self, event: TurnEvent) -> None:
        """Keep an event."""
        self.events.append(event)

    async def turn(self, client: CodexClient, thread: str, text: str, **more: object) -> TurnResult:
        """Run a turn with limits of a test."""
        arguments: dict[str, object] = {"stall_after": 60.0, "deadline": 90.0} | more
        return await client.run_turn(
            thread,
            text,
            client_message_id="our-1",
            on_event=self.on_event,
            on_delta=self.deltas.append,
            **arguments,  # type: ignore[arg-type]
        )


@pytest.fixture(params=_kinds())
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    model = await SimulatedModel.start()
    relay = await ModelRelay.start(model.base_url, "sk-of-the-relay")
    for name in ("home", "workspace"):
        (tmp_path / name).mkdir()
    grant = relay.grant()
    provider = ModelProvider(base_url=grant.base_url, request_max_retries=0, stream_max_retries=0)
    (tmp_path / "home" / "config.toml").write_text(config_toml(provider=provider, model=MODEL))
    bench = Bench(kind=request.param, folder=tmp_path, model=model, relay=relay, grant=grant)
    yield bench
    for client in bench.clients:
        await client.close()
    for process in bench.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    await relay.stop()
    await model.stop()


async def until(condition: Callable[[], bool], wake: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await wake()


async def test_a_fresh_thread_takes_every_setting(bench: Bench) -> None:
    """What was sent at thread/start is what the thread has, and the MCP server is ready."""
    client = await bench.connect()
    assert client.server is not None
    assert client.server.version >= (0, 130, 0)
    thread = await client.start_thread(bench.settings(effort="low", developer_instructions="be brief"))
    assert thread.deviations == ()
    assert (thread.model, thread.effort, thread.resumed) == (MODEL, "low", False)


async def test_a_turn_without_a_directive_comments_once_and_tells_its_events_in_order(bench: Bench) -> None:
    """One turn: one comment by the tool as it is offered, events numbered from 1 without gaps, one final answer."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    result = await bench.turn(client, thread.thread_id, f"Please look.\n{PLACE}")
    assert (result.outcome, result.final_message) == ("completed", "Answered with one comment.")
    assert [event.seq for event in bench.events] == list(range(1, result.events + 1))
    assert bench.events[0].method == "turn/started"
    assert bench.events[-1].method == "turn/completed"
    tools = [event.method for event in bench.events if event.item_type == "mcpToolCall"]
    assert tools == ["item/started", "item/completed"]
    assert "".join(delta.text for delta in bench.deltas) == result.final_message
    assert result.usage is not None
    assert result.usage.total_tokens > 0
    [call] = bench.calls()
    arguments = call["arguments"]
    assert isinstance(arguments, dict)
    assert (arguments["owner"], arguments["repo"], arguments["index"]) == ("acme", "widget", 42)
    assert arguments["method"] == "add_comment"
    meta = call["_meta"]
    assert isinstance(meta, dict)
    assert meta["x-codex-turn-metadata"]["turn_id"] == result.codex_turn_id
    assert meta["x-codex-turn-metadata"]["thread_id"] == thread.thread_id


async def test_several_steps_make_one_turn(bench: Bench) -> None:
    """A script of a shell command and two tool calls leaves its file, its calls, and one turn."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    script = [
        {"do": "exec", "cmd": "echo hello > made.txt"},
        {"do": "comment", "body": "first"},
        {"do": "comment", "body": "second"},
        {"do": "text", "text": "All done."},
    ]
    result = await bench.turn(client, thread.thread_id, f"[[mock:steps {json.dumps(script)}]]\n{PLACE}")
    assert (result.outcome, result.final_message) == ("completed", "All done.")
    assert (Path(bench.cwd) / "made.txt").read_text() == "hello\n"
    assert [call["arguments"]["body"] for call in bench.calls()] == ["first", "second"]  # type: ignore[index]


async def test_a_thread_takes_turns_one_after_the_other(bench: Bench) -> None:
    """Two turns of one thread have two ids, and the second's tokens are its own."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    first = await bench.turn(client, thread.thread_id, '[[mock:text {"text": "one"}]]')
    second = await bench.turn(client, thread.thread_id, '[[mock:text {"text": "two"}]]')
    assert (first.final_message, second.final_message) == ("one", "two")
    assert first.codex_turn_id != second.codex_turn_id
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.total_tokens == second.usage.total_tokens == 120


async def test_a_second_turn_at_once_is_refused(bench: Bench) -> None:
    """A turn asked for during a turn never becomes a silent steer of the running one."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    running = asyncio.create_task(bench.turn(client, thread.thread_id, "[[mock:hang]]"))
    await until(lambda: bool(bench.events), lambda: asyncio.sleep(0.01))
    with pytest.raises(Fault, match="turn_active"):
        await bench.turn(client, thread.thread_id, "again")
    assert await client.interrupt(thread.thread_id)
    assert (await running).outcome == "interrupted"


async def test_a_killed_agent_fails_the_turn_and_its_thread_resumes(bench: Bench) -> None:
    """SIGKILL in mid-turn is agent_exited; a new process resumes the thread with everything sent again."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    assert (
        await bench.turn(client, thread.thread_id, '[[mock:text {"text": "one"}]]')
    ).outcome == "completed"
    bench.events.clear()
    running = asyncio.create_task(bench.turn(client, thread.thread_id, "[[mock:hang]]"))
    await until(lambda: bool(bench.events), lambda: asyncio.sleep(0.01))
    await bench.kill()
    with pytest.raises(Fault, match="agent_exited"):
        await running
    again = await bench.connect()
    resumed = await again.resume_thread(thread.thread_id, bench.settings())
    assert (resumed.thread_id, resumed.resumed, resumed.deviations) == (thread.thread_id, True, ())
    result = await bench.turn(again, thread.thread_id, f"Please look.\n{PLACE}")
    assert result.outcome == "completed"
    assert len(bench.calls()) == 1


async def test_an_interrupt_right_after_the_start_is_not_lost(bench: Bench) -> None:
    """An interrupt asked for before Codex takes one still ends the turn, and the thread stays usable."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    running = asyncio.create_task(bench.turn(client, thread.thread_id, "[[mock:hang]]"))
    await asyncio.sleep(0)
    assert await client.interrupt(thread.thread_id)
    assert (await running).outcome == "interrupted"
    assert (
        await bench.turn(client, thread.thread_id, '[[mock:text {"text": "fine"}]]')
    ).final_message == "fine"
    assert not await client.interrupt(thread.thread_id)


async def test_silence_is_a_stall(bench: Bench) -> None:
    """A turn without a sign of life is interrupted and says so."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    result = await bench.turn(client, thread.thread_id, "[[mock:hang]]", stall_after=1.0)
    assert result.outcome == "stalled"


async def test_a_lively_turn_still_has_a_deadline(bench: Bench) -> None:
    """A turn that goes on talking past its deadline is interrupted and says so."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    text = '[[mock:slow {"seconds": 60}]]'
    result = await bench.turn(client, thread.thread_id, text, stall_after=1.5, deadline=2.5)
    assert result.outcome == "deadline_exceeded"


@pytest.mark.parametrize(
    ("directive", "code"),
    [
        ('[[mock:status {"code": 500}]]', "model_unavailable"),
        ('[[mock:status {"code": 401}]]', "model_unauthorised"),
        ('[[mock:status {"code": 400}]]', "model_invalid_request"),
        ('[[mock:status {"code": 429}]]', "model_rate_limited"),
        ('[[mock:failed {"code": "context_length_exceeded"}]]', "model_context_full"),
        ('[[mock:failed {"code": "insufficient_quota"}]]', "model_quota"),
        ("[[mock:cut]]", "model_stream_cut"),
        ("[[mock:incomplete]]", "model_incomplete"),
    ],
)
async def test_the_models_failures_have_codes(bench: Bench, directive: str, code: str) -> None:
    """Each way in which a model fails ends the turn as failed, with our code and no address in the message."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    result = await bench.turn(client, thread.thread_id, directive)
    assert result.outcome == "failed"
    assert result.error is not None
    assert result.error.code == code
    assert "127.0.0.1" not in result.error.message


@pytest.mark.parametrize("mode", ["exit", "hang", "missing"])
async def test_a_required_mcp_server_that_fails_refuses_the_thread(bench: Bench, mode: str) -> None:
    """Missing, exiting and hanging MCP servers are mcp_start_failed before any turn."""
    client = await bench.connect()
    settings = bench.settings(mode)
    if mode == "missing":
        settings = bench.settings(mcp_server=McpServer(command="/nonexistent/gitea-mcp"))
    with pytest.raises(Fault, match="mcp_start_failed"):
        await client.start_thread(settings)


async def test_an_optional_mcp_server_that_fails_is_told_by_its_status(bench: Bench) -> None:
    """Without required, thread/start succeeds, and the client still refuses by the status that is told."""
    client = await bench.connect()
    optional = McpServer(command=sys.executable, args=(str(MCP),), env={"MODE": "exit"}, required=False)
    with pytest.raises(Fault, match="mcp_start_failed"):
        await client.start_thread(bench.settings(mcp_server=optional))


async def test_a_failing_tool_is_an_event_and_the_turn_goes_on(bench: Bench) -> None:
    """A tool's error fails its item; the turn completes."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    call = {"namespace": "mcp__gitea", "name": "fail", "arguments": {}, "text": "went on"}
    result = await bench.turn(client, thread.thread_id, f"[[mock:call {json.dumps(call)}]]")
    assert (result.outcome, result.final_message) == ("completed", "went on")
    [done] = [e for e in bench.events if e.item_type == "mcpToolCall" and e.method == "item/completed"]
    assert done.payload["status"] == "failed"


async def test_an_mcp_server_that_dies_in_mid_call_fails_the_item(bench: Bench) -> None:
    """The call of a dying MCP server is a failed item; the turn completes, and the client learns no more of it."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    call = {"namespace": "mcp__gitea", "name": "die", "arguments": {}, "text": "went on"}
    result = await bench.turn(client, thread.thread_id, f"[[mock:call {json.dumps(call)}]]")
    assert (result.outcome, result.final_message) == ("completed", "went on")
    [done] = [e for e in bench.events if e.item_type == "mcpToolCall" and e.method == "item/completed"]
    assert done.payload["status"] == "failed"
    assert "Transport closed" in str(done.payload["error"])


async def test_an_approval_that_is_asked_for_is_declined_at_once(bench: Bench) -> None:
    """Under a policy that asks, the question is answered and recorded as an event, and the turn ends."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings(approval_policy="untrusted"))
    directive = '[[mock:exec {"cmd": "touch made.txt", "text": "went on"}]]'
    if bench.kind == "scripted":
        method = "item/commandExecution/requestApproval"
        directive = (
            f'[[mock:ask {{"method": "{method}", "params": {{"command": "touch"}}, "text": "went on"}}]]'
        )
    result = await bench.turn(client, thread.thread_id, directive)
    assert (result.outcome, result.final_message) == ("completed", "went on")
    [answered] = bench.answered
    assert (answered.decision, answered.thread_id) == ("declined", thread.thread_id)
    [event] = [event for event in bench.events if event.method == "serverRequest"]
    assert event.payload["request"] == answered.method
    assert not (Path(bench.cwd) / "made.txt").exists()


async def test_a_sink_that_fails_ends_the_turn(bench: Bench) -> None:
    """When an event cannot be stored the turn is interrupted, and the reason reaches the caller."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())

    async def refuse(_event: TurnEvent) -> None:
        raise Fault("the lease is lost", code="lease_stale")

    with pytest.raises(Fault, match="lease_stale"):
        await client.run_turn(thread.thread_id, "[[mock:hang]]", client_message_id="x", on_event=refuse)
    assert (
        await bench.turn(client, thread.thread_id, '[[mock:text {"text": "fine"}]]')
    ).outcome == "completed"


async def test_a_thread_without_a_turn_is_not_found(bench: Bench) -> None:
    """Resuming what was never written is the proven loss, thread_not_found."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    await bench.kill()
    again = await bench.connect()
    with pytest.raises(Fault, match="thread_not_found"):
        await again.resume_thread(thread.thread_id, bench.settings())


async def test_a_thread_has_one_writer(bench: Bench) -> None:
    """A second process on a thread is thread_busy, which proves nothing about the thread."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    await bench.turn(client, thread.thread_id, '[[mock:text {"text": "one"}]]')
    if client.server is not None and client.server.version < (0, 150, 0):
        pytest.skip("0.130 lets two processes write one thread: only the lease keeps them apart")
    other = await bench.connect()
    with pytest.raises(Fault, match="thread_busy"):
        await other.resume_thread(thread.thread_id, bench.settings())


async def test_a_collaboration_mode_takes_effect(bench: Bench) -> None:
    """An accepted collaboration mode is no downgrade and leaves no deviation."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    mode = {"mode": "default", "settings": {"model": MODEL, "reasoning_effort": "low"}}
    result = await bench.turn(client, thread.thread_id, '[[mock:text {"text": "x"}]]', collaboration=mode)
    assert (result.outcome, result.downgraded, result.deviations) == ("completed", False, ())


async def test_a_refused_collaboration_mode_becomes_a_plain_turn(bench: Bench) -> None:
    """A mode that Codex refuses costs nothing: the result says so, and a plain turn ran at once."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    result = await bench.turn(
        client,
        thread.thread_id,
        '[[mock:text {"text": "plain"}]]',
        collaboration={"mode": "no-such", "settings": {}},
    )
    assert (result.outcome, result.final_message, result.downgraded) == ("completed", "plain", True)


async def test_the_model_hears_the_relays_key_only(bench: Bench) -> None:
    """What reaches the model carries the relay's key, which the agent never had."""
    if bench.kind == "scripted":
        pytest.skip("the scripted agent asks no model")
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    await bench.turn(client, thread.thread_id, '[[mock:text {"text": "x"}]]')
    assert {exchange.authorization for exchange in bench.model.exchanges} == {"Bearer sk-of-the-relay"}


async def test_a_resume_whose_mcp_server_fails_does_not_lose_the_thread(bench: Bench) -> None:
    """A failing MCP server at resume is mcp_start_failed; the thread resumes when it works again."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    await bench.turn(client, thread.thread_id, '[[mock:text {"text": "one"}]]')
    await bench.kill()
    again = await bench.connect()
    with pytest.raises(Fault, match="mcp_start_failed"):
        await again.resume_thread(thread.thread_id, bench.settings("exit"))
    await bench.kill()
    third = await bench.connect()
    resumed = await third.resume_thread(thread.thread_id, bench.settings())
    assert (resumed.thread_id, resumed.deviations) == (thread.thread_id, ())


async def test_an_interrupted_shell_command_does_not_survive(bench: Bench) -> None:
    """After an interrupt the command that ran in the workspace is gone."""
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    command = "echo $$ > pid.txt.new; mv pid.txt.new pid.txt; exec sleep 300"
    directive = f"[[mock:exec {json.dumps({'cmd': command})}]]"
    running = asyncio.create_task(bench.turn(client, thread.thread_id, directive))
    file = Path(bench.cwd) / "pid.txt"
    await until(file.exists, lambda: asyncio.sleep(0.02))
    assert await client.interrupt(thread.thread_id)
    assert (await running).outcome == "interrupted"
    process = Path("/proc") / file.read_text().strip()
    await until(lambda: not process.exists(), lambda: asyncio.sleep(0.02))


async def test_a_model_that_is_away_is_unavailable(bench: Bench) -> None:
    """Behind a relay whose upstream is gone, the turn fails as model_unavailable."""
    if bench.kind == "scripted":
        pytest.skip("the scripted agent asks no model")
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    await bench.model.stop()
    result = await bench.turn(client, thread.thread_id, "anything")
    assert result.error is not None
    assert (result.outcome, result.error.code) == ("failed", "model_unavailable")


async def test_a_revoked_way_to_the_model_is_unauthorised(bench: Bench) -> None:
    """After the run's capability was revoked, the agent reaches no model."""
    if bench.kind == "scripted":
        pytest.skip("the scripted agent asks no model")
    client = await bench.connect()
    thread = await client.start_thread(bench.settings())
    bench.grant.revoke()
    result = await bench.turn(client, thread.thread_id, "anything")
    assert result.error is not None
    assert (result.outcome, result.error.code) == ("failed", "model_unauthorised")
    assert bench.model.exchanges == []
