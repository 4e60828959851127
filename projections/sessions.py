"""Sessions, one document each (seed §4.3), by session key."""

from domain.log import Recorded
from domain.sessions import SessionOpened, SessionTaskAdmitted, ThreadBound, ThreadReplaced
from domain.tasks import TaskTransitioned
from domain.turns import TurnStarted
from projections.view import Document, Documents, stamp

RUNTIME = {"app": "codexapp", "mode": "yolo"}
MCP = {"server": "gitea", "transport": "stdio", "hostRef": "gitea-main"}


class Sessions:
    """``version`` is that of the session's stream; ``waiting_user`` while a task of it waits for an answer."""

    name = "sessions"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its session."""
        match recorded.event:
            case (
                SessionOpened() | SessionTaskAdmitted() | ThreadBound() | ThreadReplaced() | TurnStarted()
            ) as event:
                return event.session_key
            case TaskTransitioned() as event if "waiting_user" in (event.from_state, event.to_state):
                return event.session_key
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the session's."""
        event = recorded.event
        at = stamp(recorded.recorded_at)
        if isinstance(event, SessionOpened):
            return {event.session_key: _opened(event, recorded)}
        change: Document
        match event:
            case SessionTaskAdmitted():
                key, change = event.session_key, {"lastTaskId": event.task_id}
            case ThreadBound():
                key = event.session_key
                change = {
                    "threadId": event.thread_id,
                    "lastTurnId": event.turn_id,
                    "runnerId": event.runner_id,
                }
            case ThreadReplaced():
                key, change = event.session_key, {"threadId": None, "replacedThreadId": event.replaced}
            case TurnStarted():
                key, change = event.session_key, {"lastTurnId": event.turn_id}
            case TaskTransitioned():
                status = "waiting_user" if event.to_state == "waiting_user" else "active"
                key, change = event.session_key, {"status": status}
            case _:
                return {}
        before = rows.get(key)
        if before is None:
            return {}
        if recorded.stream == f"session:{key}":
            change["version"] = recorded.version
        return {key: {**before, **change, "updatedAt": at}}


def _opened(event: SessionOpened, recorded: Recorded) -> Document:
    at = stamp(recorded.recorded_at)
    return {
        "sessionKey": event.session_key,
        "resourceKey": event.session_key,
        "repoKey": event.repo_key,
        "kind": event.kind,
        "number": event.number,
        "threadId": None,
        "replacedThreadId": None,
        "runnerId": None,
        "runtime": RUNTIME,
        "mcp": MCP,
        "status": "active",
        "lastTaskId": None,
        "lastTurnId": None,
        "createdAt": at,
        "updatedAt": at,
        "version": recorded.version,
    }
