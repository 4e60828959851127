"""Tasks, one document each (seed §4.4), by task id."""

from domain.effects import EffectConcluded
from domain.log import Recorded
from domain.tasks import BoxEnded, BoxStarted, InstructionAmended, TaskClaimed, TaskReceived, TaskTransitioned
from domain.transitions import LEASED
from domain.turns import TurnStarted
from projections.view import Document, Documents, content_id, stamp


class Tasks:
    """``author`` and ``instruction`` are looked up by ``authorId`` and ``_instruction`` when somebody asks."""

    name = "tasks"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its task."""
        match recorded.event:
            case (
                TaskReceived()
                | TaskTransitioned()
                | TaskClaimed()
                | InstructionAmended()
                | TurnStarted()
                | BoxStarted()
                | BoxEnded()
            ) as event:
                return event.task_id
            case EffectConcluded(operation="thread.start" | "thread.resume", status="succeeded") as event:
                return event.task_id
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the task's."""
        event = recorded.event
        if isinstance(event, TaskReceived):
            return {event.task_id: _received(event, recorded)}
        change: Document
        match event:
            case TaskTransitioned():
                task_id, change = event.task_id, _transitioned(event)
            case TaskClaimed():
                change = {"leaseId": event.lease_id, "runnerId": event.runner_id}
                if event.thread_id:
                    change["threadId"] = event.thread_id
                task_id = event.task_id
            case InstructionAmended():
                task_id, change = event.task_id, {"_instruction": content_id(event.instruction)}
            case TurnStarted():
                task_id = event.task_id
                change = {
                    "turnId": event.turn_id,
                    "codexTurnId": event.codex_turn_id,
                    "threadId": event.thread_id,
                }
            case BoxStarted():
                task_id, change = event.task_id, {"isolation": event.isolation, "agent": event.agent}
            case EffectConcluded():
                task_id, change = event.task_id, {"threadId": event.outside_id}
            case BoxEnded():
                task_id, change = event.task_id, {}
            case _:
                return {}
        before = rows.get(task_id)
        if before is None:
            return {}
        times = {"updatedAt": stamp(recorded.recorded_at), "position": recorded.position}
        return {task_id: {**before, **change, **times}}


def _received(event: TaskReceived, recorded: Recorded) -> Document:
    at = stamp(recorded.recorded_at)
    return {
        "taskId": event.task_id,
        "deliveryKey": event.delivery_key,
        "repoKey": event.repo_key,
        "resourceKey": event.resource_key,
        "sessionKey": event.session_key,
        "commentId": event.comment_id,
        "trigger": event.trigger,
        "authorId": event.author_id,
        "_instruction": content_id(event.instruction),
        "kind": event.resource.get("kind"),
        "number": event.resource.get("number"),
        "title": event.resource.get("title"),
        "url": event.trigger.get("url") or event.resource.get("url"),
        "refs": event.refs,
        "retryOf": event.retry_of,
        "state": "received",
        "stateVersion": 0,
        "attempt": 0,
        "replyAttempt": 0,
        "threadId": None,
        "turnId": None,
        "codexTurnId": None,
        "leaseId": None,
        "runnerId": None,
        "isolation": None,
        "agent": None,
        "nextRetryAt": None,
        "resumeState": None,
        "errorCode": None,
        "error": None,
        "createdAt": at,
        "updatedAt": at,
        "position": recorded.position,
    }


def _transitioned(event: TaskTransitioned) -> Document:
    change: Document = {
        "state": event.to_state,
        "stateVersion": event.state_version,
        "attempt": event.attempt,
        "replyAttempt": event.reply_attempt,
        "errorCode": event.error_code,
        "error": event.error,
        "nextRetryAt": event.next_retry_at,
        "resumeState": event.resume_state,
    }
    if event.to_state not in LEASED:
        change |= {"leaseId": None, "runnerId": None}
    return change
