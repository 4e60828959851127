"""Comments of ours, one document each (seed §4.5), by comment key: folded from intents, results, confirmations.

``pending``: intended, outcome not known; ``sent``: Gitea acknowledged it; ``confirmed``: read back; ``failed``.
"""

from domain.comments import final_key
from domain.effects import EffectConcluded, EffectIntended
from domain.log import Recorded
from domain.tasks import ReplyConfirmed
from projections.view import Document, Documents, stamp


class Comments:
    """``commentId`` is the first, ``commentIds`` all parts of one reply.

    All comments of a task stand on its own resource, which the first one, its receipt, names by its key; later ones
    may be told to the outside in other words.
    """

    name = "comments"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its task."""
        match recorded.event:
            case EffectIntended() as event if event.comment_key:
                return event.task_id
            case (
                EffectConcluded(
                    operation="comment.create" | "comment.edit" | "receipt.create" | "mcp.write"
                ) as event
            ):
                return event.task_id
            case ReplyConfirmed() as event:
                return event.task_id
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """The comment that the event speaks of, found by its key, its intent or Gitea's id."""
        at = stamp(recorded.recorded_at)
        match recorded.event:
            case EffectIntended() as event if event.comment_key:
                resource = next((row["resourceKey"] for row in rows.values()), event.target)
                return {event.comment_key: _intended(rows.get(event.comment_key), event, resource, at)}
            case EffectConcluded() as event:
                return {
                    key: {**row, **_concluded(row, event), "updatedAt": at}
                    for key, row in rows.items()
                    if event.intent_id in row["_intents"]
                }
            case ReplyConfirmed() as event:
                return _confirmed(rows, event, at)
            case _:
                return {}


def _intended(before: Document | None, event: EffectIntended, resource: str, at: str) -> Document:
    if before is not None:
        return {
            **before,
            "bodyHash": event.body_hash or before["bodyHash"],
            "status": before["status"] if before["status"] == "confirmed" else "pending",
            "_intents": [*before["_intents"], event.intent_id],
            "updatedAt": at,
        }
    return {
        "commentKey": event.comment_key,
        "taskId": event.task_id,
        "kind": event.comment_kind,
        "resourceKey": resource,
        "turnId": event.turn_id,
        "commentId": None,
        "commentIds": [],
        "bodyHash": event.body_hash,
        "status": "pending",
        "errorCode": None,
        "_intents": [event.intent_id],
        "createdAt": at,
        "updatedAt": at,
    }


def _concluded(row: Document, event: EffectConcluded) -> Document:
    if event.status == "unknown":
        return {"errorCode": event.error_code}
    if event.status == "failed":
        status = row["status"] if row["commentIds"] else "failed"
        return {"status": status, "errorCode": event.error_code}
    found = [int(event.outside_id)] if event.outside_id and event.outside_id.isdigit() else []
    every = list(dict.fromkeys([*row["commentIds"], *found]))
    status = row["status"] if row["status"] == "confirmed" else "sent"
    return {
        "status": status,
        "errorCode": None,
        "commentIds": every,
        "commentId": every[0] if every else None,
    }


def _confirmed(rows: Documents, event: ReplyConfirmed, at: str) -> Documents:
    ids = list(event.comment_ids)
    final = [row for row in rows.values() if row["kind"] in ("mcp_final", "rest_fallback")]
    known = [row for row in final if set(row["commentIds"]) & set(ids)]
    known = known or [row for row in final if row["turnId"] == event.turn_id]
    if known:
        chosen = known[-1]
    else:
        target = next((row["resourceKey"] for row in rows.values()), None)
        chosen = {
            "commentKey": final_key(event.task_id, event.turn_id),
            "taskId": event.task_id,
            "kind": "mcp_final",
            "resourceKey": target,
            "turnId": event.turn_id,
            "bodyHash": None,
            "_intents": [],
            "createdAt": at,
        }
    change: Document = {
        "status": "confirmed",
        "errorCode": None,
        "commentIds": ids,
        "commentId": ids[0] if ids else None,
    }
    return {chosen["commentKey"]: {**chosen, **change, "updatedAt": at}}
