"""The audit: an entry for every event (seed §4.5), by the position of the event.

Two pairs share an entry, because they are one act: a delivery and its decision, a reply that was found and its
confirmation. ``metadata.events`` names the events of an entry. Logins are looked up when somebody asks: ``actor``
holds ``gitea:user:<id>`` for a person.
"""

import dataclasses
from typing import Any

from domain.deliveries import DeliveryDecided, DeliveryReceived
from domain.events import Event
from domain.log import Recorded
from domain.tasks import ReplyConfirmed, ReplyObserved
from projections.audit_actions import action_of
from projections.view import FRESH, Document, Documents, stamp

_SHOWN_APART = frozenset(
    (
        "task_id",
        "turn_id",
        "from_state",
        "to_state",
        "error_code",
        "repo_key",
        "session_key",
        "thread_id",
        "delivery_id",
        "delivery_key",
        "actor",
    )
)


class Audit:
    """One entry per event, the pairs apart."""

    name = "audit"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """A pair's delivery or task; the others depend on nothing."""
        match recorded.event:
            case DeliveryReceived() | DeliveryDecided() as event:
                return f"delivery:{event.delivery_key}"
            case ReplyObserved(outcome="found") | ReplyConfirmed() as event:
                return f"reply:{event.task_id}"
            case _:
                return FRESH

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """A new entry, or the second half of one."""
        event = recorded.event
        entry = _entry(event, recorded)
        if isinstance(event, DeliveryReceived) or (
            isinstance(event, ReplyObserved) and event.outcome == "found"
        ):
            entry["_waits"] = True
        elif isinstance(event, DeliveryDecided | ReplyConfirmed):
            for key, before in rows.items():
                if before.get("_waits"):
                    return {key: _joined(before, entry)}
        return {str(recorded.position): entry}


def _joined(first: Document, second: Document) -> Document:
    known = {name: value for name, value in second.items() if value is not None}
    kept = ("eventId", "actor", "timestamp", "position", "metadata")
    after = {**first, **{name: value for name, value in known.items() if name not in kept}}
    after["metadata"] = {
        **first["metadata"],
        **second["metadata"],
        "events": [*first["metadata"]["events"], *second["metadata"]["events"]],
    }
    after.pop("_waits")
    return after


def _entry(event: Event, recorded: Recorded) -> Document:
    fields: dict[str, Any] = {
        field.name: getattr(event, field.name)
        for field in dataclasses.fields(event)  # type: ignore[arg-type]
    }
    delivery_key = fields.get("delivery_key")
    delivery_id = fields.get("delivery_id") or (delivery_key.partition(":")[2] if delivery_key else None)
    metadata = recorded.metadata
    return {
        "eventId": f"audit-{recorded.position}",
        "taskId": fields.get("task_id") or None,
        "action": action_of(event),
        "actor": fields.get("actor") or metadata.get("actor", "system"),
        "fromState": fields.get("from_state"),
        "toState": fields.get("to_state"),
        "deliveryId": delivery_id,
        "deliveryKey": delivery_key,
        "turnId": fields.get("turn_id"),
        "threadId": fields.get("thread_id"),
        "repoKey": fields.get("repo_key"),
        "resourceKey": fields.get("session_key"),
        "commentId": _comment_id(fields),
        "errorCode": fields.get("error_code"),
        "timestamp": stamp(recorded.recorded_at),
        "position": recorded.position,
        "metadata": {
            "events": [{"type": event.type, "stream": recorded.stream, "version": recorded.version}],
            "class": event.event_class,
            **{
                _camel(name): value
                for name, value in fields.items()
                if name not in _SHOWN_APART and (value is None or isinstance(value, str | int))
            },
            **{
                _camel(name): metadata[name]
                for name in ("causation", "correlation_id", "runner_id", "request_id")
                if name in metadata
            },
        },
    }


def _comment_id(fields: dict[str, Any]) -> int | None:
    found = fields.get("comment_id")
    if found is None and fields.get("comment_ids"):
        found = fields["comment_ids"][0]
    if found is None and fields.get("operation") in ("comment.create", "comment.edit", "receipt.create"):
        outside = fields.get("outside_id")
        found = int(outside) if outside and outside.isdigit() else None
    if found is None and isinstance(fields.get("part"), dict):
        found = fields["part"].get("id")
    return found


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
