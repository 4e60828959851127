"""Receipts: short comments for a queued task and for each abnormal end, posted from their intents.

An outbox, not part of a task's run: no lease is needed, and a receipt that fails changes no task (seed §5.2.5).
Each receipt carries a marker with ``status=``: an answer that was lost is found by listing, never repeated blindly.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import structlog

from domain import comments as lines
from domain import deliveries, ids, markers, repositories, tasks
from domain.commands import CommandGiven
from domain.effects import EffectConcluded, EffectIntended
from domain.failures import AWAY
from domain.faults import Fault, Unavailable
from domain.policy import Rules
from domain.processes import words
from domain.processes.intake_effects import refusal_text
from domain.runs import Comment
from services.gitea_watch import GiteaWatch
from services.ledger import Ledger
from services.ports import EventLog, GiteaSide

log = structlog.get_logger(__name__)


OpenReceipts = Callable[[], Awaitable[Sequence[tuple[str, str]]]]
"""``(stream, intent id)`` of receipts without a result, oldest first: how they are found again after a restart."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReceiptSettings:
    """``templates``: a text by status that replaces ours. ``grace``: seconds between listings of a lost answer."""

    bot_id: int
    locale: str = "en"
    templates: dict[str, str] = dataclasses.field(default_factory=dict)
    grace: tuple[float, ...] = (0.0, 2.0, 10.0)


MAX_TRIES = 3
"""How often a receipt is tried again with a Gitea that answers otherwise."""

NO_TURN = "none"
"""The ``turnId`` of a receipt's marker: a receipt belongs to no turn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Letter:
    """One receipt or question: where it goes and what it says; ``on_task``: on whose stream it stands."""

    intent: EffectIntended
    stream: str
    owner: str
    name: str
    number: int
    repository_id: int | None
    status: str
    text: str
    on_task: bool

    @property
    def mark(self) -> tuple[str | None, str | None, str]:
        """Kind, status and turn of its marker, by which it is found again."""
        if self.intent.comment_kind == "question":
            return "question", None, self.intent.turn_id or NO_TURN
        return None, self.status, NO_TURN


class Receipts:
    """Posts receipts in order of their intents, which stand on a task's stream or, for a refusal, a delivery's."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        gitea: GiteaSide,
        watch: GiteaWatch,
        open_receipts: OpenReceipts,
        rules: Callable[[], Rules],
        settings: ReceiptSettings,
    ) -> None:
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._watch = watch
        self._open = open_receipts
        self._rules = rules
        self._settings = settings

    async def run(self) -> None:
        """Post until cancelled: first what was left open, then what the log brings."""
        after: int | None = None
        while True:
            try:
                if after is None:
                    head = await self._log.head()
                    for stream, intent_id in await self._open():
                        await self.post(stream, intent_id, left_open=True)
                    after = head
                async for batch in self._log.tail(after=after):
                    for row in batch:
                        if row.type == EffectIntended.__name__:
                            event = row.event
                            if isinstance(event, EffectIntended) and event.executor == "receipts":
                                await self.post(row.stream, event.intent_id)
                        after = row.position
            except Unavailable as fault:
                log.warning("receipts wait for the database", code=fault.code)
                await asyncio.sleep(1.0)

    async def post(self, stream: str, intent_id: str, *, left_open: bool = False) -> None:
        """Post one receipt and record what became of it. What Gitea answers never raises."""
        letter = await self._letter(stream, intent_id)
        if letter is None:
            return
        result = await self._delivered(letter, left_open=left_open)
        concluded = EffectConcluded(
            intent_id=intent_id,
            operation=letter.intent.operation,
            task_id=letter.intent.task_id,
            status=result.status,
            at=await self._ledger.at(),
            outside_id=str(result.comment_id) if result.comment_id else None,
            http_status=result.http_status,
            error_code=result.code,
            reconciled=result.reconciled,
        )
        if letter.on_task:
            await self._ledger.record(
                letter.intent.task_id, [concluded], only_if=lambda found: intent_id not in found.results
            )
        else:
            await self._ledger.note(stream, concluded, correlation=letter.intent.task_id)

    async def _delivered(self, letter: _Letter, *, left_open: bool) -> "_Result":
        """Posted, or refused. While Gitea is away the receipt waits, and is looked for before it is posted again."""
        tries = 0
        while True:
            try:
                return await self._posted(letter, left_open=left_open)
            except Fault as fault:
                if fault.code not in AWAY:
                    return _Result(status="failed", code=fault.code, http_status=_status(fault))
                left_open = left_open or fault.params.get("outcome") == "unknown"
                if await self._watch.reachable():
                    tries += 1
                    if tries > MAX_TRIES:
                        return _Result(status="unknown" if left_open else "failed", code=fault.code)
                    await asyncio.sleep(self._settings.grace[-1])
                    continue
                self._watch.suspect()
                await self._watch.wait_back()

    async def _letter(self, stream: str, intent_id: str) -> _Letter | None:
        """The receipt as its stream tells it; None if it has its result already."""
        events = [row.event for row in await self._log.read_stream(stream)]
        if any(isinstance(event, EffectConcluded) and event.intent_id == intent_id for event in events):
            return None
        intent = next(
            (event for event in events if isinstance(event, EffectIntended) and event.intent_id == intent_id),
            None,
        )
        if intent is None:
            return None
        status = intent.key.rsplit(":", 1)[-1]
        task = tasks.fold(events)
        if task.received is not None:
            rows = await self._log.read_stream(ids.repo_stream(task.received.repo_key))
            repository = repositories.fold(row.event for row in rows)
            return _Letter(
                intent=intent,
                stream=stream,
                owner=repository.owner,
                name=repository.name,
                number=int(task.received.resource["number"]),
                repository_id=repository.registered.repository_id if repository.registered else None,
                status=status,
                text=await self._words(intent, task, status),
                on_task=True,
            )
        given = next((event for event in events if isinstance(event, CommandGiven)), None)
        received = deliveries.fold(events).received
        if received is None or received.resource is None:
            return None
        return _Letter(
            intent=intent,
            stream=stream,
            owner=received.repository["owner"],
            name=received.repository["name"],
            number=int(received.resource["number"]),
            repository_id=received.repository["id"],
            status=status,
            text=self._said(status, given),
            on_task=False,
        )

    def _said(self, status: str, given: CommandGiven | None) -> str:
        """What a delivery gets that made no task: the answer to a word, or why it was refused."""
        if given is None or given.word != status:
            return refusal_text(status, rules=self._rules())
        own = self._settings.templates.get(status)
        return own or words.answer_text(status, details=given.details, locale=self._settings.locale)

    async def _posted(self, letter: _Letter, *, left_open: bool) -> "_Result":
        if left_open:
            found = await self._found(letter)
            if found is not None:
                return _Result(status="succeeded", comment_id=found.id, reconciled=True)
        kind, status, turn_id = letter.mark
        body = markers.with_marker(
            letter.text,
            markers.format_marker(
                task_id=letter.intent.task_id,
                turn_id=turn_id,
                kind="question" if kind == "question" else None,
                status=status,
            ),
        )
        try:
            posted = await self._gitea.create_comment(
                letter.owner, letter.name, letter.number, body, repository_id=letter.repository_id
            )
        except Fault as fault:
            if fault.params.get("outcome") != "unknown":
                raise
            found = await self._found(letter)
            if found is not None:
                return _Result(status="succeeded", comment_id=found.id, reconciled=True)
            raise  # proved absent: it may be posted again, once it was looked for again
        return _Result(status="succeeded", comment_id=posted.id, http_status=201)

    async def _found(self, letter: _Letter) -> Comment | None:
        """The receipt that is there already; absence counts after the grace, and only what was listed counts."""
        before = 0.0
        unlisted: Fault | None = None
        for wait in self._settings.grace:
            await asyncio.sleep(wait - before)
            before = wait
            try:
                listed = await self._gitea.comments(letter.owner, letter.name, letter.number)
            except Fault as fault:
                unlisted = fault
                continue
            unlisted = None
            for comment in listed:
                ours = comment.author_id == self._settings.bot_id
                marker = markers.our_marker(comment.body) if ours else None
                if marker is None or marker.task_id != letter.intent.task_id:
                    continue
                if (marker.kind, marker.status, marker.turn_id) == letter.mark:
                    return comment
        if unlisted is not None:
            raise unlisted
        return None

    async def _words(self, intent: EffectIntended, task: tasks.Task, status: str) -> str:
        """A receipt's line, or the question itself."""
        if intent.comment_kind != "question":
            return self._text(status, task.error_code)
        asked = next(
            (event for event in task.questions if event.turn_id == intent.turn_id),
            None,
        )
        if asked is None:
            raise LookupError("a question without its event")
        texts = await self._log.contents([str(asked.question["content"])])
        return markers.strip_markers(texts.get(str(asked.question["content"]), "[erased]"))[0]

    def _text(self, status: str, code: str | None) -> str:
        template = self._settings.templates.get(status)
        if template is not None:
            return template.replace("{code}", code or "-")
        return lines.receipt_text(status, locale=self._settings.locale, code=code)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Result:
    status: Literal["succeeded", "failed", "unknown"]
    comment_id: int | None = None
    code: str | None = None
    http_status: int | None = None
    reconciled: bool = False


def _status(fault: Fault) -> int | None:
    status = fault.params.get("http_status")
    return status if isinstance(status, int) else None
