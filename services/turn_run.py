"""One turn of a carried task: its prompt, its start, its items, its end, each recorded as it comes."""

import asyncio
import secrets

from domain import contents, ids, prompts, sessions
from domain.effects import EffectIntended
from domain.events import Event
from domain.faults import NotFound
from domain.runs import Seen, TurnOutcome
from domain.sessions import ThreadBound, ThreadReplaced
from domain.tasks import BoxEnded, InterruptRequested
from domain.turns import CapabilityDowngraded, TurnEnded, TurnStarted, UnsolicitedTurnInterrupted
from services.carried import ERROR_LIMIT, Carried, concluded
from services.items import TurnItems
from services.ledger import Beside, Ledger
from services.ports import EventLog, GiteaSide


class TurnRun:
    """Runs turns for the runner, which decides when."""

    def __init__(self, *, event_log: EventLog, ledger: Ledger, gitea: GiteaSide, runner_id: str) -> None:
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._runner_id = runner_id

    async def run(self, carried: Carried, intent: EffectIntended) -> None:
        """Carry out one ``turn.start``: from the prompt to the recorded end, the box dead."""
        turn_id = intent.turn_id or ""
        text = await self._prompt(carried)
        items = TurnItems(
            self._log,
            task_id=intent.task_id,
            turn_id=turn_id,
            fence=carried.fence,
            runner_id=self._runner_id,
        )

        async def started(codex_turn_id: str) -> None:
            carried.codex_turn_id = codex_turn_id
            await self._started(carried, intent, codex_turn_id, prompts.prompt_hash(text))
            carried.turn_recorded.set()

        async def seen(event: Seen) -> None:
            await items.add(event)

        async def interrupting(cause: str) -> None:
            await self.interrupt_requested(carried, cause)

        carried.active_turn_id, carried.turn_recorded = turn_id, asyncio.Event()
        try:
            outcome = await carried.run.run_turn(
                turn_id=turn_id, text=text, on_started=started, on_seen=seen, on_interrupt=interrupting
            )
        finally:
            carried.active_turn_id = None
            carried.turn_recorded.set()
        await carried.run.end_box()
        await self._ended(carried, turn_id, outcome)

    async def _started(
        self, carried: Carried, intent: EffectIntended, codex_turn_id: str, prompt_hash: str
    ) -> None:
        task = carried.task
        received = task.received
        if received is None or task.thread_id is None:
            raise RuntimeError("a turn needs a thread")
        at = await self._ledger.at()
        stream = ids.session_stream(received.session_key)
        session = sessions.fold(row.event for row in await self._log.read_stream(stream))
        beside: list[Beside] = []
        turn_id = intent.turn_id or ""
        if session.thread_id not in (None, task.thread_id):
            replaced = ThreadReplaced(
                session_key=received.session_key,
                thread_id=task.thread_id,
                replaced=session.thread_id or "",
                task_id=task.task_id,
                error_code="thread_not_found",
            )
            beside.append(Beside(stream=stream, event=replaced))
        if session.thread_id != task.thread_id:
            bound = ThreadBound(
                session_key=received.session_key,
                thread_id=task.thread_id,
                task_id=task.task_id,
                turn_id=turn_id,
                runner_id=self._runner_id,
            )
            beside.append(Beside(stream=stream, event=bound))
        began = TurnStarted(
            task_id=task.task_id,
            session_key=received.session_key,
            turn_id=turn_id,
            codex_turn_id=codex_turn_id,
            thread_id=task.thread_id,
            kind="reply_retry" if task.reply_retrying else "normal",
            ordinal=len(task.turns) + 1,
            prompt_hash=prompt_hash,
            at=at,
        )
        await carried.conclude(
            intent, "succeeded", at, outside_id=codex_turn_id, facts=[began], beside=beside
        )

    async def _ended(self, carried: Carried, turn_id: str, outcome: TurnOutcome) -> None:
        carried.accept(await self._ledger.task(carried.plan.task_id))  # an abort may have come from elsewhere
        at = await self._ledger.at()
        texts = []
        message = None
        if outcome.message is not None:
            item, message = contents.content(
                f"turn:{turn_id}:message", outcome.message[:65536], secrets.token_bytes(16)
            )
            texts.append(item)
        task_id = carried.task.task_id
        facts: list[Event] = [
            UnsolicitedTurnInterrupted(
                task_id=task_id, thread_id=carried.task.thread_id or "", codex_turn_id=codex_turn_id
            )
            for codex_turn_id in outcome.unsolicited
        ]
        if outcome.downgrades:
            detail = "; ".join(outcome.downgrades)[:ERROR_LIMIT]
            facts.append(
                CapabilityDowngraded(
                    task_id=task_id, turn_id=turn_id, capability="collaboration_mode", detail=detail
                )
            )
        unconfirmed = outcome.error_code == "abort_timeout"
        facts += [
            concluded(intent, "unknown" if unconfirmed else "succeeded", at)
            for intent in carried.task.intents_of("runner")
            if intent.operation == "turn.interrupt"
        ]
        facts.append(BoxEnded(task_id=carried.task.task_id, cause=outcome.cause or outcome.status, at=at))
        facts.append(
            TurnEnded(
                task_id=carried.task.task_id,
                turn_id=turn_id,
                status=outcome.status,
                at=at,
                event_seq=outcome.events,
                error_code=outcome.error_code,
                error=(outcome.error or "")[:ERROR_LIMIT] or None,
                cause=outcome.cause,
                message=message,
                usage=dict(outcome.usage) if outcome.usage is not None else None,
            )
        )
        carried.accept(
            await self._ledger.record(
                carried.task.task_id,
                facts,
                fence=carried.fence,
                beside=await carried.left(),
                contents=texts,
            )
        )

    async def _prompt(self, carried: Carried) -> str:
        task = carried.task
        received = task.received
        if received is None:
            raise NotFound("there is no such task", code="task_not_found")
        plan = carried.plan
        if task.reply_retrying:
            return await self._reply_retry_prompt(carried)
        reference = task.instruction or received.instruction
        login = contents.login_id(received.author_id)
        texts = await self._log.contents([reference["content"], login])
        background = await self._gitea.background(plan.owner, plan.name, plan.kind, plan.number)
        return prompts.turn_text(
            plan,
            author=texts.get(login, f"user {received.author_id}"),
            instruction=texts.get(reference["content"], "[erased]"),
            background=background,
            head=carried.head or "unknown",
            interrupted=any(turn.ended is None or turn.ended.status != "completed" for turn in task.turns)
            or task.attempt > 0,
            behind=carried.behind,
            answered=task.answered,
        )

    async def _reply_retry_prompt(self, carried: Carried) -> str:
        task = carried.task
        author_id = task.received.author_id if task.received else 0
        login = contents.login_id(author_id)
        message = str((task.last_message or {}).get("content", ""))
        texts = await self._log.contents([login, message])
        return prompts.reply_retry_text(
            carried.plan, author=texts.get(login, f"user {author_id}"), message=texts.get(message)
        )

    async def interrupt_requested(self, carried: Carried, cause: str) -> None:
        """The intent to interrupt, before the turn is interrupted."""
        turn_id = carried.active_turn_id
        if turn_id is None or not carried.turn_recorded.is_set():
            return
        await carried.record(
            InterruptRequested(
                task_id=carried.plan.task_id, turn_id=turn_id, cause=cause, at=await self._ledger.at()
            )
        )
