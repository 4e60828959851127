"""How an execution ends: failures and their one retry, the end of a turn, and the ladder of a reply (seed §5.4, §8).

The ladder: looked for and found is success. Missing: one ``reply_retry`` turn that only posts the text again; missing
still: one comment by REST with the same marker; missing still: ``failed_reply``. Unknown is not missing: nothing is
written. Gitea itself away: the task waits without a lease and without an attempt, up to a limit.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from domain import tasks
from domain.events import Event
from domain.failures import AWAY, MAX_EXECUTION_RETRIES, MAX_REPLY_RETRIES, retried
from domain.tasks import ReplyConfirmed, ReplyObserved, Task, TaskTransitioned
from domain.transitions import State
from domain.turns import TurnEnded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings that decide, in seconds.

    ``retry_delay_s``: before the one execution retry. ``away_pause_s``: between two looks at a Gitea that is away,
    ``away_limit_s``: after which that fails.
    """

    retry_delay_s: float = 30.0
    away_pause_s: float = 30.0
    away_limit_s: float = 86400.0
    locale: str = "en"


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


def failed(task: Task, code: str, error: str | None, at: str, rules: Rules) -> TaskTransitioned:
    """A failure while a run was prepared or ran: a wait for Gitea, the one retry, or the end.

    A reply retry that fails goes back to be verified, never to ``failed``.
    """
    if code in AWAY:
        return _away(task, "gitea_unavailable", error, at, rules)
    if task.reply_retrying:
        return tasks.transition(
            task, "verifying_reply", trigger="turn_ended", error_code=task.error_code or code, error=error
        )
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


def _away(task: Task, code: str, error: str | None, at: str, rules: Rules) -> TaskTransitioned:
    """Gitea does not answer: no attempt is consumed, and the log says since when."""
    since = task.away_since or at
    if later(since, rules.away_limit_s) <= later(at, 0):
        target: State = "failed_reply" if task.state == "verifying_reply" else "failed"
        return tasks.transition(task, target, trigger="execution_failed", error_code=code, error=error)
    resume: State = "preparing"
    if task.state == "verifying_reply":
        resume = "verifying_reply"
    elif task.reply_retrying:
        resume = "running"
    return tasks.transition(
        task,
        "retry_wait",
        trigger="execution_failed",
        error_code=code,
        error=error,
        next_retry_at=later(at, rules.away_pause_s),
        resume_state=resume,
        after_look=task.after_look,
        away_since=since,
    )


def turn_ended(task: Task, fact: TurnEnded, rules: Rules) -> list[Event]:
    """What the end of a turn means; a question that was asked in it comes first."""
    if task.state == "aborting":
        if fact.error_code == "abort_timeout":
            return [tasks.transition(task, "failed", trigger="abort_timeout", error_code="abort_timeout")]
        return [tasks.transition(task, "aborted", trigger="abort_confirmed")]
    if task.state != "running":
        return []
    if task.question is not None and task.question.turn_id == fact.turn_id and fact.status == "completed":
        return [tasks.transition(task, "waiting_user", trigger="question_asked")]
    code = _ENDED_BY_US.get(fact.cause or "") or fact.error_code
    if task.reply_retrying:
        return [
            tasks.transition(
                task,
                "verifying_reply",
                trigger="turn_ended",
                error_code=task.error_code or code,
                error=fact.error,
            )
        ]
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
    return [failed(task, code, fact.error, fact.at, rules)]


def observed(task: Task, fact: ReplyObserved, rules: Rules) -> tuple[list[Event], Mapping[str, Any] | None]:
    """The next rung: what follows from a look, or the text that is to be posted by REST."""
    if task.state != "verifying_reply":
        return [], None
    match fact.outcome:
        case "found":
            return _found(task, fact), None
        case "away":
            return [_away(task, "gitea_unavailable", fact.error_code, fact.at, rules)], None
        case "unknown":
            lost = tasks.transition(
                task, "failed_reply", trigger="reply_lost", error_code="reply_unknown", error=fact.error_code
            )
            return [lost], None
        case "missing":
            return _missing(task, fact, rules)


def _found(task: Task, fact: ReplyObserved) -> list[Event]:
    confirmed = ReplyConfirmed(task_id=task.task_id, turn_id=fact.turn_id or "", comment_ids=fact.comment_ids)
    sent = [result for _, result in task.fallbacks if result is not None and result.status != "failed"]
    by_rest = any(result.outside_id is None or int(result.outside_id) in fact.comment_ids for result in sent)
    if not by_rest:
        return [confirmed, tasks.transition(task, "succeeded", trigger="reply_found")]
    return [
        confirmed,
        tasks.transition(
            task,
            "succeeded_with_rest_fallback",
            trigger="fallback_found",
            error_code=task.error_code or "mcp_reply_missing",
            error=task.error,
        ),
    ]


def _missing(task: Task, fact: ReplyObserved, rules: Rules) -> tuple[list[Event], Mapping[str, Any] | None]:
    if task.after_look == "preparing":
        again = tasks.transition(
            task,
            "retry_wait",
            trigger="retry_due",
            attempt=MAX_EXECUTION_RETRIES,
            error_code=task.error_code,
            error=task.error,
            next_retry_at=later(fact.at, rules.retry_delay_s),
            resume_state="preparing",
        )
        return [again], None
    code = task.error_code or "mcp_reply_missing"
    if task.reply_attempt < MAX_REPLY_RETRIES and task.thread_id is not None and task.turns:
        retry = tasks.transition(
            task,
            "retry_wait",
            trigger="retry_due",
            reply_attempt=task.reply_attempt + 1,
            error_code=code,
            error=task.error,
            next_retry_at=fact.at,
            resume_state="running",
        )
        return [retry], None
    unsent = all(result is not None and result.status == "failed" for _, result in task.fallbacks)
    if task.last_message is not None and unsent:
        return [], task.last_message
    lost = tasks.transition(task, "failed_reply", trigger="reply_lost", error_code=code, error=task.error)
    return [lost], None
