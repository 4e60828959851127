"""Deliveries, one document each (seed §4.1), by delivery key."""

from datetime import timedelta

from domain.deliveries import (
    RETENTION_DAYS,
    DeliveryDecided,
    DeliveryReceived,
    DeliveryRefused,
    DeliveryRepeated,
)
from domain.log import Recorded
from projections.view import Document, Documents, stamp


class Deliveries:
    """``expiresAt`` governs raw data and lists, never dedupe; ``repeats`` counts the same delivery coming again."""

    name = "deliveries"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its delivery."""
        match recorded.event:
            case DeliveryReceived() | DeliveryRefused() | DeliveryDecided() | DeliveryRepeated() as event:
                return event.delivery_key
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the delivery's."""
        match recorded.event:
            case DeliveryReceived() as event:
                repository = event.repository
                repo_key = f"default:{repository.get('owner')}/{repository.get('name')}".lower()
                document = _new(event.delivery_key, event.delivery_id, event.payload_hash, recorded)
                document |= {
                    "eventType": event.event_type or event.event,
                    "event": event.event,
                    "action": event.action,
                    "shape": event.shape,
                    "repoKey": repo_key if repository else None,
                    "authorId": event.sender_id,
                    "commentId": (event.part or {}).get("id"),
                }
                return {event.delivery_key: document}
            case DeliveryRefused() as event:
                document = _new(event.delivery_key, event.delivery_id, event.payload_hash, recorded)
                document |= {
                    "normalized": False,
                    "status": "rejected",
                    "reason": event.error_code,
                    "httpStatus": event.http_status,
                }
                return {event.delivery_key: document}
            case DeliveryDecided() as event if event.delivery_key in rows:
                before = rows[event.delivery_key]
                decided: Document = {
                    "status": event.status,
                    "reason": event.reason,
                    "httpStatus": event.http_status,
                    "taskId": event.task_id,
                    "sessionKey": event.session_key,
                    "resourceKey": event.session_key,
                }
                if event.session_key:
                    decided["repoKey"] = event.session_key.rsplit(":", 2)[0]
                return {event.delivery_key: {**before, **decided}}
            case DeliveryRepeated() as event if event.delivery_key in rows:
                before = rows[event.delivery_key]
                again: Document = {
                    "repeats": before["repeats"] + 1,
                    "lastRepeatedAt": stamp(recorded.recorded_at),
                }
                return {event.delivery_key: {**before, **again}}
            case _:
                return {}


def _new(key: str, delivery_id: str, payload_hash: str, recorded: Recorded) -> Document:
    at = stamp(recorded.recorded_at)
    return {
        "deliveryKey": key,
        "deliveryId": delivery_id,
        "eventType": None,
        "receivedAt": at,
        "signatureValid": True,
        "normalized": True,
        "taskId": None,
        "sessionKey": None,
        "status": "deferred",
        "reason": None,
        "httpStatus": None,
        "payloadHash": payload_hash,
        "repeats": 0,
        "lastRepeatedAt": None,
        "expiresAt": stamp(recorded.recorded_at + timedelta(days=RETENTION_DAYS)),
        "createdAt": at,
        "position": recorded.position,
    }
