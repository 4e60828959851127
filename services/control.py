"""Operators' acts: decided by ``domain.processes.steering``, appended once, remembered with what was answered.

The stream ``request:<requestId>`` is a premise of every act at version 0, so that a repeat, or sixteen at once, find
the first one's answer instead of having an effect of their own. A refusal is not remembered: asked again, the act is
decided anew.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog

from domain import control, ids, repositories, tasks
from domain.control import RequestRecorded
from domain.events import Event
from domain.faults import Conflict, NotFound, Unavailable, VersionConflict
from domain.log import AppendRequest, Draft, Metadata, Premise, QueueDrop, QueuePut, Recorded
from domain.policy import Rules
from domain.processes import endings, execution, steering
from domain.processes.steering import Command
from domain.tasks import Task
from services.ledger import stamp
from services.patience import append_patiently
from services.ports import EventLog

log = structlog.get_logger(__name__)

_TRIES = 50

Rows = Mapping[str, Sequence[Recorded]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """``answer`` as JSON members, ``position`` of the last event among them."""

    http_status: int
    answer: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Decided:
    """What an accepted act appends, but for the memory of it."""

    http_status: int
    answer: dict[str, Any]
    drafts: tuple[Draft, ...]
    queue: tuple[QueuePut | QueueDrop, ...] = ()
    correlation: str


class Control:
    """Carries out acts. Safe to call at once from many tasks and processes: the log decides who was first.

    ``rules`` gives locale and receipt templates.
    """

    def __init__(
        self,
        event_log: EventLog,
        *,
        rules: Callable[[], Rules],
        runner_id: str,
        new_id: Callable[[], UUID],
    ) -> None:
        self._log = event_log
        self._rules = rules
        self._runner_id = runner_id
        self._new_id = new_id

    async def act(self, command: Command) -> Outcome:
        """Do it once, and give a repeat the first answer.

        Raises ``NotFound`` (``task_not_found``, ``repository_not_found``), ``Conflict`` (``invalid_state``,
        ``repository_disabled``, ``request_conflict``), ``Unavailable``.
        """
        memory = ids.request_stream(command.request_id)
        for _ in range(_TRIES):
            rows = await self._read(command, memory)
            if rows[memory]:
                return _first(command, rows[memory][0])
            decided = self._decided(command, rows, stamp(await self._log.now()))
            recorded = RequestRecorded(
                request_id=command.request_id,
                action=command.act,
                target=command.target,
                digest=command.digest,
                actor=command.actor,
                reason=command.reason,
                http_status=decided.http_status,
                answer=decided.answer,
            )
            drafts = (*decided.drafts, Draft(stream=memory, event=recorded))
            request = AppendRequest(
                request_id=self._new_id(),
                premises=tuple(Premise(name, len(seen)) for name, seen in rows.items()),
                drafts=drafts,
                metadata=Metadata(
                    actor=command.actor, correlation_id=decided.correlation, runner_id=self._runner_id
                ),
                queue=decided.queue,
            )
            try:
                appended = await append_patiently(self._log, request, limit_s=5.0)
            except VersionConflict:
                continue
            log.info("steered", action=command.act, target=command.target, request_id=command.request_id)
            return _outcome(recorded, appended.last)
        raise Unavailable("too many write to the same thing at once: send it again", code="busy")

    async def _read(self, command: Command, memory: str) -> Rows:
        """Every stream that the act decides on or may write, as of one moment."""
        match command.act:
            case "pause" | "resume":
                return await self._log.read_streams([memory, ids.CONTROL_STREAM])
            case "disable" | "enable":
                return await self._log.read_streams([memory, ids.repo_stream(command.target or "")])
            case _:
                stream = ids.task_stream(command.target or "")
                received = tasks.fold(row.event for row in (await self._log.read_stream(stream))[:1]).received
                names = [memory, stream]
                if received is not None:
                    names += [ids.repo_stream(received.repo_key), ids.session_stream(received.session_key)]
                if command.act == "retry":
                    names.append(ids.task_stream(_retry_id(command)))
                return await self._log.read_streams(names)

    def _decided(self, command: Command, rows: Rows, at: str) -> _Decided:
        match command.act:
            case "pause" | "resume":
                return _of_service(command, rows)
            case "disable" | "enable":
                return _of_repository(command, rows)
            case "retry":
                return self._again(command, rows, at)
            case _:
                return self._of_task(command, rows, at)

    def _of_task(self, command: Command, rows: Rows, at: str) -> _Decided:
        stream = ids.task_stream(command.target or "")
        task = _task(command, rows)
        facts = steering.decide(command, task, at=at)
        told_in = endings.Rules(locale=self._rules().locale)  # nothing here depends on a delay
        followed = execution.follow(task, len(rows[stream]), facts, told_in)
        after = followed.task
        return _Decided(
            http_status=202 if after.state == "aborting" else 200,
            answer=_told(command, after),
            drafts=followed.drafts,
            queue=followed.queue,
            correlation=task.task_id,
        )

    def _again(self, command: Command, rows: Rows, at: str) -> _Decided:
        stream = ids.task_stream(command.target or "")
        task = _task(command, rows)
        repo_key = task.received.repo_key if task.received else ""
        repository = repositories.fold(row.event for row in rows[ids.repo_stream(repo_key)])
        instruction = steering.asked(row.event for row in rows[stream])
        rules = self._rules()
        made = steering.again(command, task, repository, instruction, at=at, locale=rules.locale)
        receipt = made.receipt
        own = rules.receipt_templates.get("queued")
        if own is not None:
            text = own.replace("{code}", "-")
            receipt = dataclasses.replace(
                receipt, body_hash="sha256:" + hashlib.sha256(text.encode()).hexdigest()
            )
        cause = f"{stream}@{len(rows[stream])}"
        new_stream = ids.task_stream(made.task_id)
        events: tuple[tuple[str, Event], ...] = (
            (new_stream, made.received),
            (new_stream, made.queued),
            (new_stream, receipt),
            (ids.session_stream(made.received.session_key), made.admitted),
        )
        return _Decided(
            http_status=202,
            answer={**_told(command, made.task), "retryOf": task.task_id},
            drafts=tuple(Draft(stream=name, event=event, causation=cause) for name, event in events),
            queue=tuple(execution.queue_changes(made.queued)),
            correlation=made.task_id,
        )


def _of_service(command: Command, rows: Rows) -> _Decided:
    fact = steering.of_service(command)
    after = control.fold((*(row.event for row in rows[ids.CONTROL_STREAM]), fact))
    shown = {
        "globalPaused": after.paused,
        "pauseReason": after.reason,
        "updatedBy": after.updated_by,
        "version": after.version,
    }
    return _Decided(
        http_status=200,
        answer={"requestId": command.request_id, "action": command.act, "control": shown},
        drafts=(Draft(stream=ids.CONTROL_STREAM, event=fact),),
        correlation=ids.CONTROL_STREAM,
    )


def _of_repository(command: Command, rows: Rows) -> _Decided:
    key = command.target or ""
    stream = ids.repo_stream(key)
    before = [row.event for row in rows[stream]]
    if repositories.fold(before).registered is None:
        raise NotFound(
            "no signed delivery has come from such a repository",
            code="repository_not_found",
            params={"repoKey": key},
        )
    fact = steering.of_repository(command, key)
    after = repositories.fold((*before, fact))
    return _Decided(
        http_status=200,
        answer={
            "requestId": command.request_id,
            "action": command.act,
            "repoKey": key,
            "status": after.status,
            "blockedBy": after.blocked_by,
        },
        drafts=(Draft(stream=stream, event=fact),),
        correlation=stream,
    )


def _retry_id(command: Command) -> str:
    return ids.task_id(ids.deferred_key("retry", command.request_id))


def _task(command: Command, rows: Rows) -> Task:
    target = command.target or ""
    task = tasks.fold(row.event for row in rows[ids.task_stream(target)])
    if task.received is None:
        raise NotFound("there is no such task", code="task_not_found", params={"taskId": target})
    return task


def _told(command: Command, task: Task) -> dict[str, Any]:
    return {
        "requestId": command.request_id,
        "action": command.act,
        "taskId": task.task_id,
        "state": task.state,
        "stateVersion": task.state_version,
        "errorCode": task.error_code,
    }


def _first(command: Command, row: Recorded) -> Outcome:
    """The first answer to this request id, if it was this request."""
    recorded = row.event
    if not isinstance(recorded, RequestRecorded) or recorded.digest != command.digest:
        raise Conflict(
            "this requestId was used for another request: take a new one",
            code="request_conflict",
            params={"requestId": command.request_id},
        )
    return _outcome(recorded, row.position)


def _outcome(recorded: RequestRecorded, position: int) -> Outcome:
    return Outcome(http_status=recorded.http_status, answer={**recorded.answer, "position": position})
