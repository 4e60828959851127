"""Intents, one document each, by intent id: every outside write, and what became of it."""

from domain.effects import EffectConcluded, EffectIntended
from domain.log import Recorded
from projections.view import Documents, stamp


class Intents:
    """``status`` is ``open`` until there is a result: ``succeeded``, ``failed`` or ``unknown``."""

    name = "intents"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its own."""
        match recorded.event:
            case EffectIntended() | EffectConcluded() as event:
                return event.intent_id
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the intent's."""
        match recorded.event:
            case EffectIntended() as event:
                return {
                    event.intent_id: {
                        "intentId": event.intent_id,
                        "taskId": event.task_id,
                        "turnId": event.turn_id,
                        "operation": event.operation,
                        "executor": event.executor,
                        "target": event.target,
                        "stream": recorded.stream,
                        "key": event.key,
                        "tool": event.tool,
                        "attempt": event.attempt,
                        "bodyHash": event.body_hash,
                        "commentKey": event.comment_key,
                        "fence": event.fence,
                        "status": "open",
                        "outsideId": None,
                        "httpStatus": None,
                        "errorCode": None,
                        "reconciled": False,
                        "position": recorded.position,
                        "createdAt": stamp(recorded.recorded_at),
                        "completedAt": None,
                    }
                }
            case EffectConcluded() as event if event.intent_id in rows:
                return {
                    event.intent_id: {
                        **rows[event.intent_id],
                        "status": event.status,
                        "outsideId": event.outside_id,
                        "httpStatus": event.http_status,
                        "errorCode": event.error_code,
                        "reconciled": event.reconciled,
                        "completedAt": event.at,
                    }
                }
            case _:
                return {}
