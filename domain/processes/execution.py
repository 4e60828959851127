"""What follows from a fact of an execution: transitions and intents, derived inside the append.

``follow`` is the whole process manager: facts in, facts and what they entail out, all of it pure. A runner only
carries out the open intents of the task and records what came of them:

    TaskClaimed ─ mirror.sync ─ workspace.checkout ─ box.start ─ thread.start|resume ─ turn.start
                ─ (turn) TurnEnded ─ (look) ReplyObserved ─ ReplyConfirmed, succeeded

A reply that is missing climbs the ladder (``domain.processes.endings``): one turn that only posts it again, with the
same steps from mirror.sync on, then one comment by REST, which the runner posts itself.

A failure of any step is classified by its code (``domain.failures``). What a lost turn may have said is looked up
before anything is done again (architecture, Intents and results).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import datetime

from domain import comments, ids, tasks, transitions
from domain.effects import EffectConcluded, EffectIntended, Operation, ToolCalled
from domain.events import Event
from domain.failures import AWAY, MAX_EXECUTION_RETRIES
from domain.log import Draft, QueueDrop, QueuePut
from domain.processes.endings import Rules, failed, observed, turn_ended
from domain.repositories import RepositoryBlocked, RepositoryUnblocked
from domain.sessions import SessionContinued, SessionWaiting
from domain.tasks import (
    AbortConfirmed,
    AbortRequested,
    IllegalTransition,
    InterruptRequested,
    ReplyObserved,
    RunInterrupted,
    Task,
    TaskCancelled,
    TaskClaimed,
    TaskTransitioned,
    TaskUnblocked,
    TimerFired,
    TriggerObserved,
    WorkspaceFoundBlocked,
)
from domain.turns import TurnEnded, TurnStarted


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


def _starting(task: Task) -> bool:
    """Whether the steps towards a turn are being taken."""
    if task.state == "preparing":
        return True
    return task.reply_retrying and (task.turn is None or task.turn.ended is not None)


def _claimed(task: Task, version: int) -> list[Event]:
    target = task.received.repo_key if task.received else ""
    resume = task.resume_state if task.state == "retry_wait" else None
    moved = tasks.transition(
        task,
        resume if resume in ("verifying_reply", "running") else "preparing",
        trigger="claimed",
        error_code=task.error_code,
        after_look=task.after_look,
        away_since=task.away_since,
    )
    if resume == "verifying_reply":
        return [moved]
    return [moved, _intent(task, "mirror.sync", version, target=target)]


def _concluded(task: Task, fact: EffectConcluded, version: int, rules: Rules) -> list[Event]:
    intent = task.intents.get(fact.intent_id)
    if intent is None or intent.executor != "runner":
        return []
    if intent.comment_kind == "rest_fallback":
        return _fallback_concluded(task, fact, rules)
    target = task.received.repo_key if task.received else ""
    if fact.status != "succeeded":
        if intent.operation == "thread.resume" and fact.error_code == "thread_not_found":
            return [_intent(task, "thread.start", version, target=target)]
        if (
            intent.operation == "turn.interrupt"
            or fact.reconciled
            or task.state not in ("preparing", "running")
        ):
            return []
        if fact.error_code == "workspace_dirty" and task.state == "preparing":
            return []  # the fact beside it, WorkspaceFoundBlocked, decides
        return [failed(task, fact.error_code or "unexpected_error", fact.error, fact.at, rules)]
    if not _starting(task):
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


def _fallback_concluded(task: Task, fact: EffectConcluded, rules: Rules) -> list[Event]:
    """A comment by REST that was refused ends the ladder; one that was or may have been sent is looked up."""
    if task.state != "verifying_reply" or fact.status != "failed":
        return []
    if fact.error_code in AWAY:
        return [failed(task, fact.error_code or "", fact.error, fact.at, rules)]
    return [
        tasks.transition(
            task,
            "failed_reply",
            trigger="reply_lost",
            error_code="rest_fallback_failed",
            error=fact.error or fact.error_code,
        )
    ]


def _observed(task: Task, fact: ReplyObserved, version: int, rules: Rules) -> list[Event]:
    entailed, fallback = observed(task, fact, rules)
    if fallback is None:
        return entailed
    turn_id = task.turns[-1].started.turn_id
    return [
        _intent(
            task,
            "comment.create",
            version,
            target=task.received.resource_key if task.received else "",
            key=f"{task.task_id}:fallback",
            turn_id=turn_id,
            body_hash=str(fallback["digest"]),
            comment_kind="rest_fallback",
            comment_key=comments.final_key(task.task_id, turn_id),
        )
    ]


def _turn_over(task: Task, fact: TurnEnded, version: int, rules: Rules) -> list[Event]:
    entailed = turn_ended(task, fact, rules)
    asked = task.question
    if asked is None or not any(
        isinstance(event, TaskTransitioned) and event.to_state == "waiting_user" for event in entailed
    ):
        return entailed
    key = comments.question_key(task.task_id, asked.turn_id)
    return [
        *entailed,
        _intent(
            task,
            "question.create",
            version,
            target=task.received.resource_key if task.received else "",
            executor="receipts",
            key=key,
            turn_id=asked.turn_id,
            body_hash=str(asked.question["digest"]),
            comment_kind="question",
            comment_key=key,
        ),
    ]


def _interrupted(task: Task, fact: RunInterrupted) -> list[Event]:
    """A run without its process (seed §5.5, read as facts/seeds-read.md §1.7 items 7 and 8)."""
    if task.state == "aborting":
        return [tasks.transition(task, "aborted", trigger="abort_confirmed")]
    if task.state == "verifying_reply" or task.reply_retrying:
        look = tasks.transition(
            _as_verifying(task),
            "retry_wait",
            trigger="retry_due",
            error_code=task.error_code or fact.error_code,
            next_retry_at=fact.at,
            resume_state="verifying_reply",
            after_look=task.after_look,
            away_since=task.away_since,
        )
        if task.state == "verifying_reply":
            return [look]
        return [
            tasks.transition(task, "verifying_reply", trigger="turn_ended", error_code=fact.error_code),
            look,
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


def _as_verifying(task: Task) -> Task:
    """The task one transition further: a reply retry that breaks off is verified, never failed."""
    if task.state == "verifying_reply":
        return task
    moved = tasks.transition(task, "verifying_reply", trigger="turn_ended", error_code=task.error_code)
    return tasks.evolve(task, moved)


def _abort(task: Task, version: int) -> list[Event]:
    """Towards ``aborting`` from wherever the task is; without a run it is over at once, without a turn started."""
    steps: list[Event] = []
    state = task
    if state.state in ("preparing", "retry_wait"):
        steps.append(tasks.transition(state, "running", trigger="abort_requested"))
        state = tasks.evolve(state, steps[-1])
    steps.append(tasks.transition(state, "aborting", trigger="abort_requested"))
    state = tasks.evolve(state, steps[-1])
    if task.state == "retry_wait":
        steps.append(tasks.transition(state, "aborted", trigger="abort_confirmed"))
    elif task.state == "running" and task.turn is not None and task.turn.ended is None:
        turn = task.turn.started
        steps.append(
            _intent(task, "turn.interrupt", version, target=turn.codex_turn_id, turn_id=turn.turn_id)
        )
    return steps


def _abort_confirmed(task: Task, fact: AbortConfirmed) -> list[Event]:
    if task.state != "aborting":
        return []
    if fact.outcome == "timeout":
        return [tasks.transition(task, "failed", trigger="abort_timeout", error_code="abort_timeout")]
    return [tasks.transition(task, "aborted", trigger="abort_confirmed")]


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


def _cancelled(task: Task, code: str) -> list[Event]:
    return [tasks.transition(task, "cancelled", trigger="cancelled", error_code=code)]


def react(task: Task, fact: Event, version: int, rules: Rules) -> list[Event]:  # noqa: C901 - one arm per fact
    """What ``fact``, which stands at ``version`` of the task's stream, entails for ``task`` (already folded in)."""
    match fact:
        case TaskClaimed():
            return _claimed(task, version)
        case EffectConcluded():
            return _concluded(task, fact, version, rules)
        case TurnStarted():
            if task.reply_retrying:
                return []
            return [tasks.transition(task, "running", trigger="turn_started")]
        case TurnEnded():
            return _turn_over(task, fact, version, rules)
        case InterruptRequested():
            turn = task.turn
            target = turn.started.codex_turn_id if turn else ""
            return [_intent(task, "turn.interrupt", version, target=target, turn_id=fact.turn_id)]
        case RunInterrupted():
            return _interrupted(task, fact)
        case ReplyObserved():
            return _observed(task, fact, version, rules)
        case WorkspaceFoundBlocked():
            if task.reply_retrying:
                return []
            reasons = "; ".join(fact.reasons)
            return [
                tasks.transition(
                    task,
                    "blocked_workspace",
                    trigger="workspace_blocked",
                    error_code="workspace_dirty",
                    error=reasons,
                )
            ]
        case TriggerObserved(outcome="gone"):
            return _cancelled(task, "trigger_deleted")
        case TriggerObserved(outcome="mismatch"):
            return _cancelled(task, "trigger_mismatch")
        case TaskCancelled():
            return _cancelled(task, fact.reason)
        case TaskUnblocked():
            return [tasks.transition(task, "queued", trigger="unblocked")]
        case AbortRequested():
            return _abort(task, version)
        case AbortConfirmed():
            return _abort_confirmed(task, fact)
        case TimerFired(timer="waiting"):
            return [tasks.transition(task, "failed", trigger="waiting_timeout", error_code="waiting_timeout")]
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
        if isinstance(event, SessionWaiting | SessionContinued):
            session = ids.session_stream(event.session_key)
            drafts.append(Draft(stream=session, event=event, causation=causation))
            return
        if isinstance(event, RepositoryBlocked | RepositoryUnblocked):
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
    """What other streams hear of a transition, and the receipts of abnormal ends."""
    if not isinstance(event, TaskTransitioned):
        return []
    entailed: list[Event] = []
    if event.to_state == "waiting_user":
        entailed.append(SessionWaiting(session_key=event.session_key, task_id=event.task_id))
    if event.from_state == "waiting_user":
        entailed.append(SessionContinued(session_key=event.session_key, task_id=event.task_id))
    if event.to_state == "blocked_workspace":
        entailed.append(RepositoryBlocked(repo_key=event.repo_key, task_id=event.task_id))
    if event.from_state == "blocked_workspace":
        entailed.append(RepositoryUnblocked(repo_key=event.repo_key, task_id=event.task_id))
    if event.to_state in comments.RECEIPTED:
        entailed.append(
            receipt_intent(task, event.to_state, version, locale=rules.locale, code=event.error_code)
        )
    return entailed
