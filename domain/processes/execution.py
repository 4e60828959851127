"""What follows from a fact of an execution: transitions and intents, derived inside the append.

``follow`` is the whole process manager: facts in, facts and what they entail out, all of it pure. A runner only
carries out the open intents of the task and records what came of them:

    TaskClaimed ─ mirror.sync ─ workspace.checkout ─ box.start ─ thread.start|resume ─ turn.start
                ─ (turn) TurnEnded ─ (look) ReplyObserved ─ ReplyConfirmed, succeeded

A failure of any step is classified by its code (``domain.failures``). What a lost turn may have said is looked up
before anything is done again (architecture, Intents and results).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from domain import comments, ids, tasks, transitions
from domain.effects import EffectConcluded, EffectIntended, Operation, ToolCalled
from domain.events import Event
from domain.failures import MAX_EXECUTION_RETRIES, retried
from domain.log import Draft, QueueDrop, QueuePut
from domain.repositories import RepositoryBlocked
from domain.tasks import (
    IllegalTransition,
    ReplyConfirmed,
    ReplyObserved,
    RunInterrupted,
    Task,
    TaskCancelled,
    TaskClaimed,
    TaskTransitioned,
    TriggerObserved,
    WorkspaceFoundBlocked,
)
from domain.turns import TurnEnded, TurnStarted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings that decide. ``retry_delay_s``: seconds before the one execution retry."""

    retry_delay_s: float = 30.0
    locale: str = "en"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Followed:
    """The task after the facts, and everything to append: drafts in order, with the queue they entail."""

    task: Task
    drafts: tuple[Draft, ...]
    queue: tuple[QueuePut | QueueDrop, ...]


_NEXT: dict[Operation, Operation] = {
    "mirror.sync": "workspace.checkout",
    "workspace.checkout": "box.start",
}

_ENDED_BY_US: dict[str, str] = {
    "stalled": "turn_stalled",
    "deadline": "turn_deadline",
    "drain": "drained",
    "agent_exited": "agent_exited",
}


def later(at: str, seconds: float) -> str:
    """``at`` (ISO 8601, UTC) and ``seconds``, in the same form."""
    moment = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def turn_id_of(task: Task) -> str:
    """Our id of the task's next turn: stable, unique, known before the turn starts."""
    return f"{task.task_id}-turn-{len(task.turns) + 1}"


def _intent(
    task: Task,
    operation: Operation,
    version: int,
    *,
    target: str,
    executor: str = "runner",
    key: str | None = None,
    turn_id: str | None = None,
    body_hash: str | None = None,
    comment_kind: str | None = None,
    comment_key: str | None = None,
    tool: str | None = None,
    ordinal: int = 0,
) -> EffectIntended:
    intent_id = ids.intent_id(ids.task_stream(task.task_id), version, operation, ordinal)
    return EffectIntended(
        intent_id=intent_id,
        operation=operation,
        executor=executor,  # type: ignore[arg-type]
        task_id=task.task_id,
        target=target,
        key=key or intent_id,
        attempt=task.attempt,
        turn_id=turn_id,
        body_hash=body_hash,
        comment_key=comment_key,
        comment_kind=comment_kind,  # type: ignore[arg-type]
        tool=tool,
        fence=f"{ids.lease_scope(task.received.repo_key)}@{task.epoch}"
        if task.received and task.epoch is not None
        else None,
    )


def receipt_intent(task: Task, status: str, version: int, *, locale: str, code: str | None) -> EffectIntended:
    """The intent of one receipt: for a queued task, or an abnormal end."""
    received = task.received
    if received is None:
        raise LookupError("a receipt needs a task")
    text = comments.receipt_text(status, locale=locale, code=code)
    key = comments.receipt_key(received.task_id, status)
    return _intent(
        task,
        "receipt.create",
        version,
        target=received.resource_key,
        executor="receipts",
        key=key,
        body_hash="sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        comment_kind="status",
        comment_key=key,
        ordinal=1,
    )


def _failed(task: Task, code: str, error: str | None, at: str, rules: Rules) -> TaskTransitioned:
    """The one execution retry, shared by all causes, or the end."""
    if retried(code) and task.attempt < MAX_EXECUTION_RETRIES:
        return tasks.transition(
            task,
            "retry_wait",
            trigger="execution_failed",
            attempt=task.attempt + 1,
            error_code=code,
            error=error,
            next_retry_at=later(at, rules.retry_delay_s),
            resume_state="verifying_reply" if task.may_have_answered else "preparing",
            after_look="preparing" if task.may_have_answered else None,
        )
    return tasks.transition(task, "failed", trigger="execution_failed", error_code=code, error=error)


def _claimed(task: Task, version: int) -> list[Event]:
    if task.state == "retry_wait" and task.resume_state == "verifying_reply":
        return [
            tasks.transition(
                task,
                "verifying_reply",
                trigger="claimed",
                error_code=task.error_code,
                after_look=task.after_look,
            )
        ]
    moved = tasks.transition(task, "preparing", trigger="claimed", error_code=task.error_code)
    received = task.received
    target = received.repo_key if received else ""
    return [moved, _intent(task, "mirror.sync", version, target=target)]


def _concluded(task: Task, fact: EffectConcluded, version: int, rules: Rules) -> list[Event]:
    intent = task.intents.get(fact.intent_id)
    if intent is None or intent.executor != "runner":
        return []
    received = task.received
    target = received.repo_key if received else ""
    if fact.status != "succeeded":
        if intent.operation == "thread.resume" and fact.error_code == "thread_not_found":
            return [_intent(task, "thread.start", version, target=target)]
        if (
            intent.operation == "turn.interrupt"
            or fact.reconciled
            or task.state not in ("preparing", "running")
        ):
            return []
        if fact.error_code == "workspace_dirty":
            return []  # the fact beside it, WorkspaceFoundBlocked, decides
        return [_failed(task, fact.error_code or "unexpected_error", fact.error, fact.at, rules)]
    if task.state != "preparing":
        return []
    if intent.operation in _NEXT:
        return [_intent(task, _NEXT[intent.operation], version, target=target)]
    if intent.operation == "box.start":
        operation: Operation = "thread.resume" if task.thread_id else "thread.start"
        return [_intent(task, operation, version, target=task.thread_id or target)]
    if intent.operation in ("thread.start", "thread.resume"):
        turn_id = turn_id_of(task)
        return [
            _intent(task, "turn.start", version, target=task.thread_id or "", turn_id=turn_id, key=turn_id)
        ]
    return []


def _turn_ended(task: Task, fact: TurnEnded, rules: Rules) -> list[Event]:
    if task.state == "aborting":
        return [tasks.transition(task, "aborted", trigger="abort_confirmed")]
    if task.state != "running":
        return []
    code = _ENDED_BY_US.get(fact.cause or "") or fact.error_code
    if fact.status == "completed" and code is None:
        return [tasks.transition(task, "verifying_reply", trigger="turn_ended")]
    code = code or ("turn_failed" if fact.status == "failed" else "turn_interrupted")
    if task.may_have_answered:
        again = retried(code) and task.attempt < MAX_EXECUTION_RETRIES
        return [
            tasks.transition(
                task,
                "verifying_reply",
                trigger="turn_ended",
                error_code=code,
                error=fact.error,
                after_look="preparing" if again else None,
            )
        ]
    return [_failed(task, code, fact.error, fact.at, rules)]


def _interrupted(task: Task, fact: RunInterrupted) -> list[Event]:
    """A run without its process (seed §5.5, read as facts/seeds-read.md §1.7 items 7 and 8)."""
    if task.state == "aborting":
        return [tasks.transition(task, "aborted", trigger="abort_confirmed")]
    if task.state == "verifying_reply":
        return [
            tasks.transition(
                task,
                "retry_wait",
                trigger="retry_due",
                error_code=task.error_code or fact.error_code,
                next_retry_at=fact.at,
                resume_state="verifying_reply",
                after_look=task.after_look,
            )
        ]
    if task.state not in ("preparing", "running"):
        return []
    ran = task.state == "running" or any(intent.operation == "turn.start" for intent in task.open_intents)
    again = task.attempt < MAX_EXECUTION_RETRIES
    if not again and not ran:
        return [tasks.transition(task, "failed", trigger="execution_failed", error_code=fact.error_code)]
    return [
        tasks.transition(
            task,
            "retry_wait",
            trigger="execution_failed",
            attempt=min(task.attempt + 1, MAX_EXECUTION_RETRIES),
            error_code=fact.error_code,
            next_retry_at=fact.at,
            resume_state="verifying_reply" if ran else "preparing",
            after_look="preparing" if ran and again else None,
        )
    ]


def _observed(task: Task, fact: ReplyObserved, rules: Rules) -> list[Event]:
    if task.state != "verifying_reply":
        return []
    if fact.outcome == "found":
        confirmed = ReplyConfirmed(
            task_id=task.task_id, turn_id=fact.turn_id or "", comment_ids=fact.comment_ids
        )
        return [confirmed, tasks.transition(task, "succeeded", trigger="reply_found")]
    if fact.outcome == "missing" and task.after_look == "preparing":
        return [
            tasks.transition(
                task,
                "retry_wait",
                trigger="retry_due",
                attempt=MAX_EXECUTION_RETRIES,
                error_code=task.error_code,
                next_retry_at=later(fact.at, rules.retry_delay_s),
                resume_state="preparing",
            )
        ]
    code = "mcp_reply_missing" if fact.outcome == "missing" else "reply_unknown"
    return [tasks.transition(task, "failed_reply", trigger="reply_lost", error_code=code)]


def _tool_called(task: Task, fact: ToolCalled, version: int) -> list[Event]:
    final = fact.operation in ("comment.create", "comment.edit")
    return [
        _intent(
            task,
            fact.operation,
            version,
            target=fact.target,
            executor="bridge",
            key=fact.key,
            turn_id=fact.turn_id,
            body_hash=fact.body_hash,
            comment_kind="mcp_final" if final else None,
            comment_key=comments.final_key(task.task_id, fact.turn_id) if final else None,
            tool=fact.tool,
        )
    ]


def react(task: Task, fact: Event, version: int, rules: Rules) -> list[Event]:
    """What ``fact``, which stands at ``version`` of the task's stream, entails for ``task`` (already folded in)."""
    match fact:
        case TaskClaimed():
            return _claimed(task, version)
        case EffectConcluded():
            return _concluded(task, fact, version, rules)
        case TurnStarted():
            return [tasks.transition(task, "running", trigger="turn_started")]
        case TurnEnded():
            return _turn_ended(task, fact, rules)
        case RunInterrupted():
            return _interrupted(task, fact)
        case ReplyObserved():
            return _observed(task, fact, rules)
        case WorkspaceFoundBlocked():
            return [
                tasks.transition(
                    task,
                    "blocked_workspace",
                    trigger="workspace_blocked",
                    error_code="workspace_dirty",
                    error="; ".join(fact.reasons),
                )
            ]
        case TriggerObserved(outcome="gone"):
            return [tasks.transition(task, "cancelled", trigger="cancelled", error_code="trigger_deleted")]
        case TriggerObserved(outcome="mismatch"):
            return [tasks.transition(task, "cancelled", trigger="cancelled", error_code="trigger_mismatch")]
        case TaskCancelled():
            return [tasks.transition(task, "cancelled", trigger="cancelled", error_code=fact.reason)]
        case ToolCalled():
            return _tool_called(task, fact, version)
        case _:
            return []


def queue_changes(event: Event) -> list[QueuePut | QueueDrop]:
    """The queue as a fold of transitions, handed to the log as data."""
    if not isinstance(event, TaskTransitioned):
        return []
    if event.to_state in transitions.WAITING:
        due = datetime.fromisoformat(event.next_retry_at) if event.next_retry_at else None
        return [
            QueuePut(task=event.task_id, repo=event.repo_key, session=event.session_key, available_at=due)
        ]
    if event.from_state in transitions.WAITING:
        return [QueueDrop(task=event.task_id)]
    return []


def follow(task: Task, version: int, facts: Sequence[Event], rules: Rules) -> Followed:
    """Append ``facts`` to the task's stream at ``version`` with everything they entail.

    A transition that the table does not allow becomes a ``TransitionRefused`` beside its fact.
    """
    stream = ids.task_stream(task.task_id)
    drafts: list[Draft] = []
    queue: list[QueuePut | QueueDrop] = []

    def put(event: Event, causation: str | None) -> None:
        nonlocal task, version
        if isinstance(event, RepositoryBlocked):
            drafts.append(Draft(stream=ids.repo_stream(event.repo_key), event=event, causation=causation))
            return
        version += 1
        drafts.append(Draft(stream=stream, event=event, causation=causation))
        task = tasks.evolve(task, event)
        queue.extend(queue_changes(event))

    for fact in facts:
        put(fact, None)
        cause_version, cause = version, f"{stream}@{version}"
        try:
            entailed = react(task, fact, cause_version, rules)
        except IllegalTransition as illegal:
            entailed = [illegal.refused]
        for event in entailed:
            put(event, cause)
            entailed_more = _after_transition(task, event, version, rules)
            for more in entailed_more:
                put(more, cause)
    return Followed(task=task, drafts=tuple(drafts), queue=tuple(queue))


def _after_transition(task: Task, event: Event, version: int, rules: Rules) -> list[Event]:
    """Receipts for abnormal ends, and the block of a repository whose workspace needs a person."""
    if not isinstance(event, TaskTransitioned):
        return []
    if event.to_state in comments.RECEIPTED:
        return [receipt_intent(task, event.to_state, version, locale=rules.locale, code=event.error_code)]
    if event.to_state == "blocked_workspace":
        return [RepositoryBlocked(repo_key=event.repo_key, task_id=event.task_id)]
    return []
