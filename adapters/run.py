"""One run from the outside: mirror, workspace, box, bridge, thread, turn (``services.ports.Run``).

Everything here is torn down by ``close``: the box first, so that nothing of it writes while the rest is taken away.
"""

import asyncio
import dataclasses
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from adapters.box_locks import WorkspaceLock, lock_workspace
from adapters.box_spec import BRIDGE, CODEX_HOME, CODEX_HOME_PARTS, WORKSPACE, Bind, BoxFile, BoxSpec
from adapters.boxes import Box, Boxes, box_python
from adapters.codex.binary import AgentProgram
from adapters.codex.client import CodexClient
from adapters.codex.home import ModelProvider, config_toml
from adapters.codex.protocol import McpServer, ThreadSettings, TurnEvent, TurnResult
from adapters.codex.relay import Grant, ModelRelay
from adapters.git.mirror import Mirror
from adapters.git.names import repo_path
from adapters.git.publish import BranchPublisher, Publication
from adapters.git.workspace import Blocked, Left, WorkspacePlan, Workspaces
from adapters.gitea.mcp import GiteaMcp
from adapters.gitea.rest import GiteaRest
from adapters.mcp import stub
from adapters.mcp.server import McpServer as BridgeServer
from adapters.mcp.server import ToolHost
from domain.faults import Fault
from domain.publications import PublishOrder
from domain.runs import Boxed, LaidOut, Mirrored, Obstructed, Opened, RunPlan, Seen, TurnOutcome

_STUB = "/run/turnkeeper/bridge-stub.py"


class DrainingHost(ToolHost, Protocol):
    """The bridge: it can also wait until its writes have their results."""

    async def drain(self) -> None:
        """Wait until every write at work has its result."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTools:
    """What all runs of a process share. Durations in seconds. Secrets stay in the objects that need them."""

    mirror: Mirror
    workspaces: Workspaces
    boxes: Boxes
    relay: ModelRelay
    rest: GiteaRest
    gitea_url: str
    gitea_token: str = dataclasses.field(repr=False)
    gitea_mcp_command: tuple[str, ...]
    gitea_mcp_environment: Mapping[str, str]
    bot_id: int
    agent: Callable[[], AgentProgram]
    model: str | None
    effort: str | None
    developer_instructions: str
    homes: Path
    bridges: Path
    codex_login_dir: Path | None = None
    collaboration_mode: str | None = None
    model_request_retries: int = 4
    model_stream_retries: int = 5
    mcp_handshake: float = 15.0
    rpc_timeout: float = 30.0
    turn_stall: float = 600.0
    turn_deadline: float = 3600.0
    interrupt_confirm: float = 30.0
    box_grace: float = 5.0
    git_deadline: float = 120.0


class BoxedRun:
    """See the module. Methods are called in the order of ``domain.processes.execution``."""

    def __init__(self, plan: RunPlan, tools: RunTools) -> None:
        self._plan = plan
        self._tools = tools
        self._lock: WorkspaceLock | None = None
        self._touched = False
        self._mcp: GiteaMcp | None = None
        self._host: DrainingHost | None = None
        self._bridge: BridgeServer | None = None
        self._grant: Grant | None = None
        self._box: Box | None = None
        self._spec: BoxSpec | None = None
        self._client: CodexClient | None = None
        self._thread_id: str | None = None
        self._ended_by: str | None = None
        self._unconfirmed = False
        self._unsolicited: list[str] = []

    async def sync_mirror(self) -> Mirrored:
        """Clone or fetch the mirror, and look where the refs of this run stand."""
        plan, mirror = self._plan, self._tools.mirror
        state = await mirror.ensure(plan.repo_key, plan.owner, plan.name)
        heads = {
            ref: await mirror.head(plan.repo_key, ref)
            for ref in dict.fromkeys((plan.base_ref, plan.head_ref))
        }
        return Mirrored(default_branch=state.default_branch or plan.default_branch, heads=heads)

    async def lay_out(self) -> LaidOut | Obstructed:
        """Take the workspace's lock, which the box then keeps, and lay out the session's files."""
        plan, workspaces = self._plan, self._tools.workspaces
        path = workspaces.path(plan.repo_key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = await lock_workspace(path)
        prepared = await workspaces.prepare(
            WorkspacePlan(
                repo_key=plan.repo_key,
                session_key=plan.session_key,
                task_id=plan.task_id,
                base_ref=plan.base_ref,
                head_ref=plan.head_ref,
                previous=Left(**plan.left) if plan.left is not None else None,
                unblocked=plan.unblocked,
            ),
            lock=self._lock,
        )
        if isinstance(prepared, Blocked):
            return Obstructed(
                reasons=tuple(f"{each.code}: {each.detail}".rstrip(": ") for each in prepared.reasons)
            )
        self._touched = True
        left = await self.record_workspace()
        return LaidOut(
            head=prepared.head,
            continued=prepared.continued,
            behind=prepared.behind,
            parked=dataclasses.asdict(prepared.parked) if prepared.parked else None,
            left=left or {},
        )

    async def start_box(self, bridge: Callable[[GiteaMcp], DrainingHost]) -> Boxed:
        """Ask Gitea, try gitea-mcp by a call, open the bridge, then start the agent in its box."""
        tools = self._tools
        agent = tools.agent()
        me = await tools.rest.me()
        if me.id != tools.bot_id:
            raise Fault("the token belongs to another account than the bot's", code="gitea_token_invalid")
        self._mcp = await GiteaMcp.start(
            tools.gitea_mcp_command,
            tools.gitea_url,
            tools.gitea_token,
            timeout=tools.mcp_handshake,
            environment=tools.gitea_mcp_environment,
        )
        await self._mcp.probe(tools.bot_id, timeout=tools.mcp_handshake)
        self._host = bridge(self._mcp)
        folder = tools.bridges / self._plan.task_id.rsplit("-", 1)[-1]
        self._bridge = BridgeServer(folder, self._host)
        await self._bridge.start()
        self._grant = tools.relay.grant()
        self._spec = self._box_spec(agent, folder)
        self._box = await tools.boxes.start(self._spec)
        self._unlock()  # from here on the box alone holds the workspace: who kills it may have it
        if self._box.stdin is None:
            raise Fault("the agent's input is closed", code="box_failed")
        self._client = CodexClient(
            self._box.stdout,
            self._box.stdin,
            on_unsolicited=lambda _thread, turn: self._unsolicited.append(turn),
        )
        try:
            async with asyncio.timeout(tools.rpc_timeout):
                server = await self._client.initialize()
        except TimeoutError:
            raise Fault("the app-server does not answer", code="app_server_timeout") from None
        except Fault as fault:
            raise _named(fault, self._box) from None
        name = "scripted" if agent.scripted else "codex"
        return Boxed(
            identity=self._box.identity.as_json(),
            isolation=tools.boxes.isolation,
            agent=f"{name} {server.version_text}",
        )

    def publication(self, order: PublishOrder) -> AbstractAsyncContextManager[Publication]:
        """Prepare what this run's workspace has committed for a push (``services.bridge_ports.Publisher``)."""
        plan, tools = self._plan, self._tools
        publisher = BranchPublisher(tools.mirror, tools.boxes, deadline=tools.git_deadline)
        workspace = tools.workspaces.path(plan.repo_key)
        return publisher.publication(plan.repo_key, plan.owner, plan.name, workspace, order)

    async def open_thread(self, thread_id: str | None) -> Opened:
        """Start or resume the thread, everything sent again, and wait until its tools are ready."""
        client, spec = self._talking()
        python, _ = box_python()
        path = self._tools.boxes.path
        settings = ThreadSettings(
            cwd=path(spec, WORKSPACE),
            model=self._tools.model,
            effort=self._tools.effort,
            developer_instructions=self._tools.developer_instructions,
            mcp_server=McpServer(
                command=python,
                args=("-I", "-S", path(spec, _STUB), path(spec, f"{BRIDGE}/mcp.sock")),
                startup_timeout=self._tools.mcp_handshake,
            ),
        )
        try:
            async with asyncio.timeout(self._tools.rpc_timeout + self._tools.mcp_handshake):
                if thread_id is None:
                    info = await client.start_thread(settings)
                else:
                    info = await client.resume_thread(thread_id, settings)
        except TimeoutError:
            raise Fault("the app-server does not answer", code="app_server_timeout") from None
        except Fault as fault:
            raise _named(fault, self._box) from None
        self._thread_id = info.thread_id
        return Opened(
            thread_id=info.thread_id,
            resumed=info.resumed,
            deviations=tuple(
                f"{each.name}: wanted {each.wanted}, got {each.got}" for each in info.deviations
            ),
        )

    async def run_turn(
        self,
        *,
        turn_id: str,
        text: str,
        on_started: Callable[[str], Awaitable[None]],
        on_seen: Callable[[Seen], Awaitable[None]],
        on_interrupt: Callable[[str], Awaitable[None]],
    ) -> TurnOutcome:
        """Run one turn to its end; an agent that dies in mid-turn is an outcome, not a fault."""
        client, _ = self._talking()
        started: list[str] = []

        async def accepted(codex_turn_id: str) -> None:
            started.append(codex_turn_id)
            await on_started(codex_turn_id)

        async def stored(event: TurnEvent) -> None:
            await on_seen(
                Seen(
                    seq=event.seq,
                    method=event.method,
                    item_type=event.item_type,
                    item_id=event.item_id,
                    summary=event.payload,
                )
            )

        mode = self._tools.collaboration_mode
        try:
            result = await client.run_turn(
                self._thread_id or "",
                text,
                client_message_id=turn_id,
                on_started=accepted,
                on_event=stored,
                on_interrupt=on_interrupt,
                collaboration=self._collaboration(mode) if mode and self._tools.model else None,
                stall_after=self._tools.turn_stall,
                deadline=self._tools.turn_deadline,
                interrupt_timeout=self._tools.interrupt_confirm,
            )
        except Fault as fault:
            if not started or fault.code not in ("agent_exited", "abort_timeout"):
                raise _named(fault, self._box) from None
            return self._broken(started[0], fault)
        return self._outcome(result)

    async def interrupt(self, cause: str) -> None:
        """Interrupt the running turn, where there is one."""
        self._ended_by = self._ended_by or cause
        if self._client is None or self._thread_id is None:
            return
        try:
            await self._client.interrupt(self._thread_id, timeout=self._tools.interrupt_confirm)
        except Fault as fault:
            if fault.code == "abort_timeout" and self._box is not None:
                self._unconfirmed = True
                await self._box.kill(0)  # the turn dies with its box, and run_turn returns

    async def end_box(self) -> None:
        """Kill the box, then let the bridge finish what it had begun."""
        box, self._box = self._box, None
        if self._client is not None:
            await self._client.close()
            self._client = None
        if box is not None:
            await box.kill(self._tools.box_grace)
        if self._bridge is not None:
            await self._bridge.close()
            self._bridge = None
        if self._host is not None:
            await self._host.drain()
        if self._mcp is not None:
            await self._mcp.stop()
            self._mcp = None
        if self._grant is not None:
            self._grant.revoke()
            self._grant = None

    async def record_workspace(self) -> Mapping[str, Any] | None:
        """What the workspace holds, if this run touched it; the box must be dead."""
        if not self._touched:
            return None
        left = await self._tools.workspaces.record(
            self._plan.repo_key, self._plan.session_key, self._plan.task_id, lock=self._lock
        )
        return dataclasses.asdict(left)

    async def close(self) -> None:
        """Give everything back."""
        await self.end_box()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _talking(self) -> tuple[CodexClient, BoxSpec]:
        if self._client is None or self._spec is None:
            raise Fault("the agent is gone", code="agent_exited")
        return self._client, self._spec

    def _box_spec(self, agent: AgentProgram, bridge: Path) -> BoxSpec:
        tools = self._tools
        home = repo_path(tools.homes, self._plan.repo_key)
        for part in CODEX_HOME_PARTS:
            (home / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._grant is None:
            raise RuntimeError("the relay comes before the box")
        config = config_toml(
            provider=ModelProvider(
                base_url=self._grant.base_url,
                request_max_retries=tools.model_request_retries,
                stream_max_retries=tools.model_stream_retries,
            ),
            model=tools.model,
            effort=tools.effort,
        )
        _, python_binds = box_python()
        binds = [*agent.binds, *python_binds, Bind(source=Path(stub.__file__).resolve(), target=_STUB)]
        if tools.codex_login_dir is not None:
            binds.append(Bind(source=tools.codex_login_dir / "auth.json", target=f"{CODEX_HOME}/auth.json"))
        return BoxSpec(
            argv=agent.argv,
            workspace=tools.workspaces.path(self._plan.repo_key),
            codex_home=home,
            bridge=bridge,
            binds=tuple(dict.fromkeys(binds)),
            files=(BoxFile(target=f"{CODEX_HOME}/config.toml", content=config.encode()),),
            lock=self._lock,
            keep_stdin=True,
        )

    def _collaboration(self, mode: str) -> dict[str, object]:
        return {
            "mode": mode,
            "settings": {
                "model": self._tools.model,
                "reasoning_effort": self._tools.effort,
                "developer_instructions": self._tools.developer_instructions,
            },
        }

    def _broken(self, codex_turn_id: str, fault: Fault) -> TurnOutcome:
        """A turn that ended with its agent: killed by us, or dead by itself."""
        overrun = self._box.overrun if self._box is not None else ""
        if overrun:
            return TurnOutcome(
                status="interrupted",
                codex_turn_id=codex_turn_id,
                events=0,
                error_code="box_limit",
                error=overrun,
                unsolicited=tuple(self._unsolicited),
            )
        cause: Any = self._ended_by or "agent_exited"
        code = "abort_timeout" if self._unconfirmed or fault.code == "abort_timeout" else "agent_exited"
        return TurnOutcome(
            status="cancelled" if cause == "abort" else "interrupted",
            codex_turn_id=codex_turn_id,
            events=0,
            cause=cause,
            error_code=code if cause in ("abort", "agent_exited") else None,
            error=_named(fault, self._box).message,
            unsolicited=tuple(self._unsolicited),
        )

    def _outcome(self, result: TurnResult) -> TurnOutcome:
        cause: Any = {"stalled": "stalled", "deadline_exceeded": "deadline"}.get(result.outcome)
        status: Any = "interrupted" if cause else result.outcome
        if status == "interrupted" and cause is None:
            cause = self._ended_by
        if cause == "abort":
            status = "cancelled"
        usage = result.usage
        deviations = [f"{each.name}: wanted {each.wanted}, got {each.got}" for each in result.deviations]
        return TurnOutcome(
            status=status,
            codex_turn_id=result.codex_turn_id,
            events=result.events,
            cause=cause,
            error_code=result.error.code if result.error else None,
            error=result.error.message if result.error else None,
            message=result.final_message,
            usage={
                "inputTokens": usage.input_tokens,
                "cachedInputTokens": usage.cached_input_tokens,
                "outputTokens": usage.output_tokens,
                "reasoningOutputTokens": usage.reasoning_output_tokens,
                "totalTokens": usage.total_tokens,
            }
            if usage
            else None,
            unsolicited=tuple(self._unsolicited),
            downgrades=tuple(deviations)
            + ((result.downgrade_reason or "refused",) if result.downgraded else ()),
        )


async def agent_version(agent: AgentProgram, boxes: Boxes, *, deadline: float = 20.0) -> str:
    """Start the agent in an empty box and ask its version; raises what ``start_box`` would."""
    with tempfile.TemporaryDirectory(prefix="turnkeeper-version-") as scratch:
        home = Path(scratch)
        for part in CODEX_HOME_PARTS:
            (home / part).mkdir(mode=0o700)
        python_binds = box_python()[1]
        spec = BoxSpec(
            argv=agent.argv,
            codex_home=home,
            binds=tuple(dict.fromkeys((*agent.binds, *python_binds))),
            files=(BoxFile(target=f"{CODEX_HOME}/config.toml", content=b""),),
            keep_stdin=True,
        )
        box = await boxes.start(spec)
        try:
            if box.stdin is None:
                raise Fault("the agent's input is closed", code="box_failed")
            client = CodexClient(box.stdout, box.stdin)
            try:
                async with asyncio.timeout(deadline):
                    server = await client.initialize()
            except TimeoutError:
                raise Fault("the app-server does not answer", code="app_server_timeout") from None
            except Fault as fault:
                raise _named(fault, box) from None
            finally:
                await client.close()
        finally:
            await box.kill(1.0)
    return f"{'scripted agent' if agent.scripted else 'codex'} {server.version_text}"


_CODES = {
    "request_timeout": "app_server_timeout",
    "mcp_start_failed": "bridge_failed",
    "thread_start_failed": "thread_failed",
    "thread_resume_failed": "thread_failed",
    "thread_not_loaded": "thread_failed",
    "turn_start_failed": "turn_failed",
    "abort_timeout": "turn_interrupted",
}
"""The client's codes as a task's: what is retried, and what is not, is decided there (``domain.failures``)."""


def _named(fault: Fault, box: Box | None) -> Fault:
    """``fault`` under the code that a task keeps; the same kind of fault, so that proof stays proof."""
    code = _CODES.get(fault.code, fault.code)
    message = fault.message
    if fault.code == "agent_exited" and box is not None and box.stderr:
        last = box.stderr.decode(errors="replace").strip().splitlines()[-1:]
        message = f"{message}: {last[0][:200]}" if last else message
    made = type(fault)(message, code=code, params=fault.params)
    made.status = fault.status
    return made
