"""What a read model is: a pure fold of events into documents, which are JSON objects with the seed's names.

A view sorts events into *groups* (a task, a session, a delivery) and folds each into the documents of its group.
Whoever runs it (``services.projector``) loads the documents of all touched groups at once, folds in order of position
and stores what changed together with the position, so that a view can be dropped and rebuilt at any time.

Members whose name begins with ``_`` are the view's own and are not shown (``shown``). Texts and logins of people are
never copied into documents, since they can be erased: a document names a content id, and the text is looked up when
somebody asks.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from domain.log import Recorded

Document = dict[str, Any]
Documents = Mapping[str, Document]

FRESH = ""
"""The group of events whose documents depend on nothing that was there before."""

COLUMNS = ("repo", "resource", "task", "delivery", "turn", "comment", "thread", "state", "author", "at")
"""What documents can be found by, beside their key."""


class View(Protocol):
    """One read model. A changed ``version`` means: drop and rebuild."""

    name: str
    version: int

    def group(self, recorded: Recorded) -> str | None:
        """The group that this event belongs to; ``FRESH`` for one without a past, None where it does not matter."""
        ...

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """The documents of the group that this event changes or adds, by key. ``rows`` is left as it is."""
        ...


def stamp(moment: datetime) -> str:
    """A moment as ISO 8601 in UTC with ``Z`` and milliseconds."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(document: Document) -> Document:
    """A document without the view's own members."""
    return {name: value for name, value in document.items() if not name.startswith("_")}


def columns(document: Document) -> Mapping[str, Any]:
    """What a document can be found by (``COLUMNS``), read from its members; absent ones are None."""
    delivery = document.get("deliveryKey")
    if delivery is None and document.get("deliveryId"):
        delivery = f"default:{document['deliveryId']}"
    return {
        "repo": document.get("repoKey"),
        "resource": document.get("resourceKey") or document.get("sessionKey"),
        "task": document.get("taskId"),
        "delivery": delivery,
        "turn": document.get("turnId"),
        "comment": document.get("commentId"),
        "thread": document.get("threadId"),
        "state": document.get("state") or document.get("status") or document.get("action"),
        "author": document.get("authorId"),
        "at": document.get("createdAt") or document.get("timestamp"),
    }


def project(view: View, events: Iterable[Recorded]) -> dict[str, Document]:
    """A view of these events alone, in memory: single objects are folded from their own streams."""
    groups: dict[str, dict[str, Document]] = {}
    for recorded in events:
        group = view.group(recorded)
        if group is not None:
            rows = groups.setdefault(group, {})
            rows.update(view.fold(rows if group != FRESH else {}, recorded))
    return {key: document for rows in groups.values() for key, document in rows.items()}


def content_id(reference: Mapping[str, Any] | None) -> str | None:
    """The content id that an event's reference to an erasable text names."""
    found = reference.get("content") if reference else None
    return found if isinstance(found, str) else None
