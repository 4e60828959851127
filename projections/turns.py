"""Turns, one document each (seed §4.5), by our turn id; Codex's own id stands beside it."""

from domain.log import Recorded
from domain.turns import TurnEnded, TurnItemSeen, TurnStarted
from projections.view import Document, Documents, content_id, stamp


class Turns:
    """``eventSeq`` is the number of the last event of the turn."""

    name = "turns"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its turn."""
        match recorded.event:
            case TurnStarted() | TurnEnded() | TurnItemSeen() as event:
                return event.turn_id
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the turn's. An item may stand before the start: both are recorded by different hands."""
        match recorded.event:
            case TurnStarted() as event:
                before = rows.get(event.turn_id, {"eventSeq": 0})
                return {event.turn_id: {**_started(event, recorded), "eventSeq": before["eventSeq"]}}
            case TurnItemSeen() as event:
                before = rows.get(event.turn_id, _bare(event, recorded))
                return {
                    event.turn_id: {
                        **before,
                        "eventSeq": max(before["eventSeq"], event.seq),
                        "position": recorded.position,
                    }
                }
            case TurnEnded() as event if event.turn_id in rows:
                before = rows[event.turn_id]
                ended: Document = {
                    "status": event.status,
                    "eventSeq": max(before["eventSeq"], event.event_seq),
                    "completedAt": event.at,
                    "errorCode": event.error_code,
                    "error": event.error,
                    "cause": event.cause,
                    "usage": event.usage,
                    "_message": content_id(event.message),
                    "position": recorded.position,
                }
                return {event.turn_id: {**before, **ended}}
            case _:
                return {}


def _started(event: TurnStarted, recorded: Recorded) -> Document:
    return {
        "turnId": event.turn_id,
        "codexTurnId": event.codex_turn_id,
        "taskId": event.task_id,
        "threadId": event.thread_id,
        "sessionKey": event.session_key,
        "kind": event.kind,
        "ordinal": event.ordinal,
        "status": "started",
        "eventSeq": 0,
        "promptHash": event.prompt_hash,
        "startedAt": event.at,
        "completedAt": None,
        "errorCode": None,
        "error": None,
        "cause": None,
        "usage": None,
        "_message": None,
        "createdAt": stamp(recorded.recorded_at),
        "position": recorded.position,
    }


def _bare(event: TurnItemSeen, recorded: Recorded) -> Document:
    return {
        "turnId": event.turn_id,
        "codexTurnId": None,
        "taskId": event.task_id,
        "threadId": None,
        "sessionKey": None,
        "kind": "normal",
        "status": "started",
        "eventSeq": 0,
        "startedAt": None,
        "completedAt": None,
        "createdAt": stamp(recorded.recorded_at),
    }
