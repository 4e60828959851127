"""The client of ``codex app-server`` over the streams of a process that somebody else started.

It starts or resumes threads with every setting sent again and checked, runs one turn at a time per thread and
follows it event by event, interrupts until Codex confirms it, and answers every request of Codex's at once.
Turn ids of the caller are none of its business: Codex's id is an attribute of the result.

Codes of its faults: ``codex_too_old``, ``codex_version_unknown``, ``agent_exited``, ``request_timeout``,
``thread_not_found`` (proven), ``thread_busy``, ``codex_overloaded``, ``mcp_start_failed``,
``thread_start_failed``, ``thread_resume_failed``, ``thread_not_loaded``, ``turn_start_failed``,
``turn_active``, ``abort_timeout``, ``agent_flood``.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from adapters.codex.answers import AnswerPolicy, DeclineAll, question
from adapters.codex.errors import (
    refuses_collaboration,
    thread_fault,
    turn_start_fault,
    without_links,
)
from adapters.codex.interrupts import INTERRUPT_TIMEOUT, clean_terminals, end_turn
from adapters.codex.protocol import (
    Answered,
    AnsweredSink,
    Capabilities,
    DeltaSink,
    EventSink,
    InterruptSink,
    Outcome,
    ServerInfo,
    StartedSink,
    ThreadInfo,
    ThreadSettings,
    TurnResult,
    UnsolicitedSink,
)
from adapters.codex.threads import McpWatch, deviations
from adapters.codex.turns import (
    ActiveTurn,
    Params,
    TurnLedger,
    as_map,
    delta_of,
    text_or_none,
    turn_id_of,
)
from adapters.jsonrpc import MethodUnknown, Peer, RemoteError, RequestTimeout
from domain.faults import Conflict, Fault, Unavailable

OLDEST_VERSION = (0, 130, 0)
REQUEST_TIMEOUT = 30.0  # seconds; measured answers come within one
PROBE_TIMEOUT = 5.0  # seconds
FOREIGN_LIMIT = 16  # unsolicited turns that are being ended at one time
STALL_AFTER = 15 * 60.0  # seconds without a sign of life
TURN_DEADLINE = 2 * 60 * 60.0  # seconds for a whole turn
log = structlog.get_logger(__name__)


def _forget_answer(_answered: Answered) -> None: ...


def _forget_turn(_thread_id: str, _turn_id: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Sinks:
    on_event: EventSink
    on_delta: DeltaSink | None
    on_interrupt: InterruptSink | None


@dataclass(frozen=True, kw_only=True)
class _Limits:
    stall_after: float
    deadline: float
    interrupt_timeout: float


class CodexClient:
    """One conversation with one app-server process.

    ``on_answered`` hears of each request of Codex's that was answered, ``on_unsolicited(thread_id, turn_id)`` of
    each turn that Codex began by itself and that was interrupted. Both are called by the reader: put aside only.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client_name: str = "turnkeeper",
        client_version: str = "0.1.0",
        policy: AnswerPolicy | None = None,
        on_answered: AnsweredSink = _forget_answer,
        on_unsolicited: UnsolicitedSink = _forget_turn,
    ) -> None:
        self.server: ServerInfo | None = None
        self.capabilities = Capabilities()
        self._client_info = {"name": client_name, "title": "Turnkeeper", "version": client_version}
        self._policy = policy or DeclineAll()
        self._on_answered = on_answered
        self._on_unsolicited = on_unsolicited
        self._threads: set[str] = set()
        self._totals: dict[str, Params] = {}
        self._active: dict[str, ActiveTurn] = {}
        self._foreign: dict[str, ActiveTurn] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._mcp = McpWatch()
        self._peer = Peer(
            reader,
            writer,
            name="codex",
            on_request=self._answer,
            on_notification=self._hear,
            on_close=self._hang_up,
            closed_code="agent_exited",
        )

    async def initialize(self) -> ServerInfo:
        """Shake hands, refuse versions below 0.130, probe what is optional.

        Raises ``codex_too_old`` or ``codex_version_unknown`` before any thread is touched.
        """
        self._peer.start()
        answer = as_map(
            await self._peer.request(
                "initialize",
                {"clientInfo": self._client_info, "capabilities": {"experimentalApi": True}},
                timeout=REQUEST_TIMEOUT,
            )
        )
        agent = str(answer.get("userAgent") or "")
        found = re.search(r"/(\d+)\.(\d+)\.(\d+)", agent)
        if found is None:
            raise Fault(
                "codex does not say its version: install codex 0.130 or newer", code="codex_version_unknown"
            )
        version = (int(found[1]), int(found[2]), int(found[3]))
        self.server = ServerInfo(version=version, user_agent=agent[:200])
        if version < OLDEST_VERSION:
            raise Fault(
                f"codex {self.server.version_text} is too old: install 0.130 or newer",
                code="codex_too_old",
                params={"version": self.server.version_text, "oldest": "0.130.0"},
            )
        await self._peer.notify("initialized")
        self.capabilities = await self._probe()
        return self.server

    async def start_thread(self, settings: ThreadSettings) -> ThreadInfo:
        """Make a new thread and wait for its MCP server. Raises the thread faults named at the top."""
        return await self._open("thread/start", settings, None)

    async def resume_thread(self, thread_id: str, settings: ThreadSettings) -> ThreadInfo:
        """Load a thread again, everything sent again. Only ``thread_not_found`` proves that it is lost."""
        return await self._open("thread/resume", settings, thread_id)

    async def run_turn(
        self,
        thread_id: str,
        text: str,
        *,
        client_message_id: str,
        on_event: EventSink,
        on_started: StartedSink | None = None,
        on_delta: DeltaSink | None = None,
        on_interrupt: InterruptSink | None = None,
        collaboration: Mapping[str, object] | None = None,
        stall_after: float = STALL_AFTER,
        deadline: float = TURN_DEADLINE,
        interrupt_timeout: float = INTERRUPT_TIMEOUT,
    ) -> TurnResult:
        """Run one turn to its end; ``on_event`` is awaited for each stored event, in order.

        ``on_started`` is awaited with Codex's turn id as soon as the turn is accepted, before any event;
        ``on_interrupt`` with ``stalled`` or ``deadline`` before the client interrupts.

        ``collaboration`` is ``{"mode", "settings": {"model", …}}``; if Codex refuses it, a plain turn is started at
        once and the result says ``downgraded``. ``stall_after`` and ``deadline`` are seconds; each interrupts.
        Raises ``turn_active``, ``turn_start_failed``, ``codex_overloaded``, ``agent_exited``, ``abort_timeout``;
        what ``on_event`` raises is raised again after the turn was interrupted. Cancelling the caller leaves
        the turn running: whoever cancels ends the process.
        """
        if thread_id in self._active:
            raise Conflict("a turn of this thread is running", code="turn_active")
        active = self._active[thread_id] = ActiveTurn(thread_id)
        ledger = TurnLedger(collaboration, spent=self._totals.get(thread_id))
        sinks = _Sinks(on_event=on_event, on_delta=on_delta, on_interrupt=on_interrupt)
        limits = _Limits(stall_after=stall_after, deadline=deadline, interrupt_timeout=interrupt_timeout)
        try:
            await self._end_foreign(thread_id, interrupt_timeout)
            params: dict[str, object] = {
                "threadId": thread_id,
                "input": [{"type": "text", "text": text}],
                "clientUserMessageId": client_message_id,
            }
            refused = await self._start(active, params, collaboration)
            if on_started is not None:
                await on_started(active.turn_id or "")
            outcome = await self._follow(active, ledger, sinks, limits)
        except Exception:
            if not active.done.is_set() and not self._peer.closed and active.turn_id is not None:
                with suppress(Fault):
                    await end_turn(self._peer, active, interrupt_timeout)
            raise
        finally:
            del self._active[thread_id]
            active.release()
        if ledger.status == "interrupted":
            await clean_terminals(self._peer, thread_id)
        cut = outcome in {"stalled", "deadline_exceeded"}
        return TurnResult(
            outcome=outcome,
            codex_turn_id=active.turn_id or "",
            final_message=ledger.final_message,
            error=ledger.error or (ledger.retrying if cut else None),
            usage=ledger.usage,
            events=ledger.events,
            downgraded=refused is not None,
            downgrade_reason=refused,
            deviations=() if refused else ledger.deviations,
        )

    async def interrupt(self, thread_id: str, *, timeout: float = INTERRUPT_TIMEOUT) -> bool:  # noqa: ASYNC109 - a deadline of the other side's
        """Interrupt the running turn and wait until Codex confirms its end.

        False if there is none. Raises ``abort_timeout`` if it did not end within ``timeout`` seconds.
        """
        active = self._active.get(thread_id)
        if active is None:
            return False
        await end_turn(self._peer, active, timeout)
        return True

    async def close(self) -> None:
        """End the conversation; the app-server leaves when its stdin ends. Idempotent."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await self._peer.close()

    async def _probe(self) -> Capabilities:
        async def ask(method: str, params: Params) -> Params | str:
            try:
                return as_map(await self._peer.request(method, params, timeout=PROBE_TIMEOUT))
            except RemoteError as error:
                return f"{method}: {without_links(error.text)[:200]}"
            except RequestTimeout:
                return f"{method}: no answer"

        goals = await ask("experimentalFeature/enablement/set", {"enablement": {"goals": True}})
        modes = await ask("collaborationMode/list", {})
        data = modes.get("data") if isinstance(modes, Mapping) else None
        return Capabilities(
            goals=isinstance(goals, Mapping),
            collaboration_modes=tuple(
                str(mode.get("mode"))
                for mode in (data if isinstance(data, list) else [])
                if isinstance(mode, dict)
            ),
            notes=tuple(note for note in (goals, modes) if isinstance(note, str)),
        )

    async def _open(self, method: str, settings: ThreadSettings, thread_id: str | None) -> ThreadInfo:
        params = settings.as_params()
        if thread_id is not None:
            params |= {"threadId": thread_id, "excludeTurns": True}
            self._threads.add(thread_id)
        server = settings.mcp_server
        patience = REQUEST_TIMEOUT + (server.startup_timeout if server else 0.0)
        self._mcp.reset()
        try:
            answer = as_map(await self._peer.request(method, params, timeout=patience))
        except RemoteError as error:
            raise thread_fault(error, resume=thread_id is not None) from None
        thread = as_map(answer.get("thread"))
        opened = str(thread.get("id") or "")
        self._threads.add(opened)
        if thread_id is None:
            self._totals[opened] = {}
        if server is not None:
            await self._mcp.ready(server, opened)
        return ThreadInfo(
            thread_id=opened,
            resumed=thread_id is not None,
            model=str(answer.get("model") or ""),
            effort=text_or_none(answer.get("reasoningEffort")),
            path=text_or_none(thread.get("path")),
            deviations=deviations(settings, answer, wanted_id=thread_id, opened=opened),
        )

    async def _start(
        self, active: ActiveTurn, params: dict[str, object], collaboration: Mapping[str, object] | None
    ) -> str | None:
        """Send ``turn/start``; return why the collaboration mode was refused, None if it was not."""
        refused: str | None = None
        try:
            wanted = params if collaboration is None else params | {"collaborationMode": collaboration}
            answer = await self._peer.request("turn/start", wanted, timeout=REQUEST_TIMEOUT)
        except RemoteError as error:
            if collaboration is None or not refuses_collaboration(error):
                raise turn_start_fault(error) from None
            refused = without_links(error.text)
            try:
                answer = await self._peer.request("turn/start", params, timeout=REQUEST_TIMEOUT)
            except RemoteError as second:
                raise turn_start_fault(second) from None
        turn_id = text_or_none(as_map(as_map(answer).get("turn")).get("id"))
        if turn_id is None:
            raise Fault("codex started a turn without an id", code="turn_start_failed")
        if turn_id in self._foreign:  # it became part of a turn that is being interrupted
            raise Conflict("codex was busy with a turn of its own", code="turn_start_failed")
        for foreign in active.bind(turn_id):
            self._stop_foreign(active.thread_id, foreign)
        return refused

    async def _follow(
        self, active: ActiveTurn, ledger: TurnLedger, sinks: _Sinks, limits: _Limits
    ) -> Outcome:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + limits.deadline
        cut: Outcome | None = None
        while ledger.status is None:
            stalls_at = active.last_progress + limits.stall_after
            if cut is None and clock() >= ends_at:
                cut = "deadline_exceeded"
                if sinks.on_interrupt is not None:
                    await sinks.on_interrupt("deadline")
                await end_turn(self._peer, active, limits.interrupt_timeout)
            elif cut is None and active.queue.empty() and clock() >= stalls_at:
                cut = "stalled"
                if sinks.on_interrupt is not None:
                    await sinks.on_interrupt("stalled")
                await end_turn(self._peer, active, limits.interrupt_timeout)
            wait = limits.interrupt_timeout if cut else max(0.0, min(ends_at, stalls_at) - clock())
            try:
                async with asyncio.timeout(wait):
                    entry = await active.queue.get()
            except TimeoutError:
                continue
            await self._deliver(active, ledger, sinks, entry)
        if cut is not None and ledger.status == "interrupted":
            return cut
        match ledger.status:
            case "completed" | "interrupted" as status:
                return status
            case _:
                return "failed"

    @staticmethod
    async def _deliver(
        active: ActiveTurn, ledger: TurnLedger, sinks: _Sinks, entry: tuple[str, Params] | Answered | None
    ) -> None:
        if active.flooded:
            raise Fault("the agent sends events faster than they can be stored", code="agent_flood")
        if entry is None:
            raise Unavailable("codex ended in mid-turn", code="agent_exited")
        if isinstance(entry, Answered):
            payload = {"request": entry.method, "decision": entry.decision, **entry.payload}
            await sinks.on_event(ledger.number("serverRequest", payload, entry.item_id))
            return
        method, params = entry
        turn_id = turn_id_of(params)
        if turn_id is not None and turn_id != active.turn_id:
            return
        if sinks.on_delta is not None and (delta := delta_of(method, params)) is not None:
            sinks.on_delta(delta)
        if (event := ledger.take(method, params)) is not None:
            await sinks.on_event(event)

    def _stop_foreign(self, thread_id: str, turn_id: str) -> None:
        if turn_id in self._foreign or len(self._foreign) >= FOREIGN_LIMIT:
            return
        foreign = self._foreign[turn_id] = ActiveTurn(thread_id)
        foreign.bind(turn_id)
        foreign.started.set()
        self._on_unsolicited(thread_id, turn_id)

        async def stop() -> None:
            try:
                await end_turn(self._peer, foreign, INTERRUPT_TIMEOUT)
            except Fault as fault:
                log.warning("an unsolicited turn could not be stopped", code=fault.code)

        chore = asyncio.create_task(stop())
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _end_foreign(self, thread_id: str, patience: float) -> None:
        for foreign in [turn for turn in self._foreign.values() if turn.thread_id == thread_id]:
            await end_turn(self._peer, foreign, patience)

    def _hear(self, method: str, params: Params) -> None:
        if method == "mcpServer/startupStatus/updated":
            self._mcp.hear(params)
            return
        thread_id, turn_id = text_or_none(params.get("threadId")), turn_id_of(params)
        if turn_id is not None and (foreign := self._foreign.get(turn_id)) is not None:
            foreign.hear(method, params)
            if foreign.done.is_set():
                del self._foreign[turn_id]
            return
        if method == "thread/tokenUsage/updated" and thread_id is not None:
            self._totals[thread_id] = as_map(as_map(params.get("tokenUsage")).get("total"))
        active = self._active.get(thread_id or "")
        if active is None:
            if thread_id is not None and method != "error":
                for other in self._active.values():
                    other.alive()  # the work of a sub-agent's thread is work of the turn
        elif active.owns(turn_id) or method != "turn/started":
            active.hear(method, params)
        asked_for = active is not None and active.owns(turn_id)
        if method == "turn/started" and thread_id in self._threads and turn_id is not None and not asked_for:
            self._stop_foreign(str(thread_id), turn_id)

    async def _answer(self, method: str, params: Params) -> object:
        thread_id, turn_id = text_or_none(params.get("threadId")), text_or_none(params.get("turnId"))
        try:
            answer = self._policy.answer(method, params)
            decision, result = answer.decision, answer.result
        except MethodUnknown:
            decision, result = "unknown", None
        answered = Answered(
            method=method,
            thread_id=thread_id,
            turn_id=turn_id,
            item_id=text_or_none(params.get("itemId")),
            decision=decision,
            payload=question(params),
        )
        self._on_answered(answered)
        if (active := self._active.get(thread_id or "")) is not None:
            active.alive()
            active.queue.put_nowait(answered)
        if result is None:
            raise MethodUnknown(method)
        return result

    def _hang_up(self) -> None:
        self._mcp.close()
        for active in self._active.values():
            active.queue.put_nowait(None)
            active.release()
        for foreign in self._foreign.values():
            foreign.release()
