"""Receipts: short comments for a queued task and for each abnormal end, posted from their intents.

An outbox, not part of a task's run: no lease is needed, and a receipt that fails changes no task (seed §5.2.5).
Each receipt carries a marker with ``status=``: an answer that was lost is found by listing, never repeated blindly.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import structlog

from domain import comments as texts
from domain import ids, markers, repositories
from domain.effects import EffectConcluded, EffectIntended
from domain.faults import Fault, Unavailable
from domain.runs import Comment
from domain.tasks import Task
from services.ledger import Ledger
from services.ports import EventLog, GiteaSide

log = structlog.get_logger(__name__)


class OpenIntents(Protocol):
    """Where open intents are found again after a restart (the ``intents`` view)."""

    async def open_receipts(self) -> Sequence[tuple[str, str]]:
        """``(task id, intent id)`` of receipts without a result, oldest first, and the position they are true for."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReceiptSettings:
    """``templates``: a text by status that replaces ours. ``grace``: seconds between listings of a lost answer."""

    bot_id: int
    locale: str = "en"
    templates: dict[str, str] = dataclasses.field(default_factory=dict)
    grace: tuple[float, ...] = (0.0, 2.0, 10.0)


NO_TURN = "none"
"""The ``turnId`` of a receipt's marker: a receipt belongs to no turn."""


class Receipts:
    """Posts receipts in order of their intents."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        gitea: GiteaSide,
        open_intents: OpenIntents,
        settings: ReceiptSettings,
    ) -> None:
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._open = open_intents
        self._settings = settings

    async def run(self) -> None:
        """Post until cancelled: first what was left open, then what the log brings."""
        after: int | None = None
        while True:
            try:
                if after is None:
                    after = await self._log.head()
                    for task_id, intent_id in await self._open.open_receipts():
                        await self.post(task_id, intent_id, left_open=True)
                async for batch in self._log.tail(after=after):
                    for row in batch:
                        if row.type == EffectIntended.__name__:
                            event = row.event
                            if isinstance(event, EffectIntended) and event.executor == "receipts":
                                await self.post(event.task_id, event.intent_id)
                        after = row.position
            except Unavailable as fault:
                log.warning("receipts wait for the database", code=fault.code)
                await asyncio.sleep(1.0)

    async def post(self, task_id: str, intent_id: str, *, left_open: bool = False) -> None:
        """Post one receipt and record what became of it. Never raises what Gitea answers."""
        task = await self._ledger.task(task_id)
        intent = task.intents.get(intent_id)
        if intent is None or intent_id in task.results:
            return
        try:
            result = await self._posted(task, intent, left_open=left_open)
        except Fault as fault:
            result = _Result(status="failed", code=fault.code, http_status=_status(fault))
        await self._ledger.record(
            task_id,
            [
                EffectConcluded(
                    intent_id=intent_id,
                    operation=intent.operation,
                    task_id=task_id,
                    status=result.status,
                    at=await self._ledger.at(),
                    outside_id=str(result.comment_id) if result.comment_id else None,
                    http_status=result.http_status,
                    error_code=result.code,
                    reconciled=result.reconciled,
                )
            ],
            only_if=lambda found: intent_id not in found.results,
        )

    async def _posted(self, task: Task, intent: EffectIntended, *, left_open: bool) -> "_Result":
        received = task.received
        if received is None:
            raise LookupError("no such task")
        rows = await self._log.read_stream(ids.repo_stream(received.repo_key))
        repository = repositories.fold(row.event for row in rows)
        number = int(received.resource["number"])
        status = intent.key.rsplit(":", 1)[-1]
        if left_open:
            found = await self._found(repository.owner, repository.name, number, task.task_id, status)
            if found is not None:
                return _Result(status="succeeded", comment_id=found.id, reconciled=True)
        body = markers.with_marker(
            self._text(status, task.error_code),
            markers.format_marker(task_id=task.task_id, turn_id=NO_TURN, status=status),
        )
        try:
            posted = await self._gitea.create_comment(repository.owner, repository.name, number, body)
        except Fault as fault:
            if fault.params.get("outcome") != "unknown":
                raise
            found = await self._found(repository.owner, repository.name, number, task.task_id, status)
            if found is not None:
                return _Result(status="succeeded", comment_id=found.id, reconciled=True)
            return _Result(status="unknown", code=fault.code, http_status=_status(fault))
        return _Result(status="succeeded", comment_id=posted.id, http_status=201)

    async def _found(self, owner: str, name: str, number: int, task_id: str, status: str) -> Comment | None:
        """The receipt that is there already; absence counts after the grace."""
        before = 0.0
        for wait in self._settings.grace:
            await asyncio.sleep(wait - before)
            before = wait
            try:
                listed = await self._gitea.comments(owner, name, number)
            except Fault:
                continue
            for comment in listed:
                marker = (
                    markers.our_marker(comment.body) if comment.author_id == self._settings.bot_id else None
                )
                if marker is not None and marker.task_id == task_id and marker.status == status:
                    return comment
        return None

    def _text(self, status: str, code: str | None) -> str:
        template = self._settings.templates.get(status)
        if template is not None:
            return template.replace("{code}", code or "-")
        return texts.receipt_text(status, locale=self._settings.locale, code=code)


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
