"""Deliveries: what came in, and what was decided about it. Stream ``delivery:<deliveryKey>``."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, get_args

from domain.events import Event, derived, fact

Status = Literal["accepted", "ignored", "duplicate", "rejected", "deferred"]
"""Seed §4.1, and ``deferred``: taken in, decided later by a worker."""

STATUSES: frozenset[str] = frozenset(get_args(Status))

RETENTION_DAYS = 30
"""``expiresAt`` is receivedAt and this many days (seed §4.1). It governs raw data and lists, never dedupe."""


@fact
class DeliveryReceived(Event):
    """A signed delivery, normalised. Texts are content; logins are looked up by id.

    ``repository``: id, owner, name, clone_url, default_branch, private. ``resource``: kind, number, title, url.
    ``part``: kind, id, author_id, created_at, updated_at, url. ``permissions``: admin, push, pull as the signed
    payload states them for the sender, None where it states none. ``text``: content id, digest and length of the
    part's text; ``changed_from``: digest of the text before an edit. ``route``: which secret was used.
    """

    delivery_key: str
    delivery_id: str
    event: str
    event_type: str
    action: str
    shape: str
    payload_hash: str
    route: Literal["plain", "derived", "worker"]
    repository: dict[str, Any]
    sender_id: int
    permissions: dict[str, bool] | None = None
    resource: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    refs: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    changed_from: str | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@fact
class DeliveryRefused(Event):
    """A signed delivery that could not be read (seed §6.1, 400). A repeat gets the same answer."""

    delivery_key: str
    delivery_id: str
    payload_hash: str
    error_code: str
    http_status: int


@derived
class DeliveryDecided(Event):
    """What was decided, and the answer that every repeat gets."""

    delivery_key: str
    status: Status
    reason: str | None
    http_status: int
    task_id: str | None = None
    session_key: str | None = None


@fact
class DeliveryRepeated(Event):
    """The same delivery id came again; its first answer was given again. Stream ``delivery-repeat:<uuid>``."""

    delivery_key: str
    delivery_id: str


@fact
class SignaturesRefused(Event):
    """Unsigned or wrongly signed requests, counted over ``seconds``. Nothing of them is kept."""

    count: int
    seconds: int
    reason: str


@derived
class MentionConsumed(Event):
    """A mention was admitted: the same text under another delivery id is ``comment_already_handled``.

    ``task_id``: the task that it made or continued; None for a word, whose text no task follows.
    """

    mention_key: str
    delivery_key: str
    task_id: str | None


@derived
class DenialReceiptGranted(Event):
    """A short receipt for a denied author was granted (at most one per author and hour)."""

    repository_id: int
    author_id: int
    reason: str
    at: str


@fact
class PermissionObserved(Event):
    """Somebody's right on code, found where no signed payload stated it. Stream ``permission:<repository>:<user>``.

    ``source``: ``endpoint`` (Gitea said yes; a no is not believed), ``signed`` (that user's newest signed comment
    event in that repository, which stands at ``position``), ``none`` (nobody knows). ``permissions`` None: unknown.
    """

    repository_id: int
    user_id: int
    source: Literal["endpoint", "signed", "none"]
    permissions: dict[str, bool] | None
    position: int | None
    at: str


@fact
class CommentsReconciled(Event):
    """The comments of a repository were looked through. Stream ``reconcile:<repoKey>``.

    ``until``: up to when, by Gitea's time.
    ``listed``: how many were updated since the last time, ``taken``: how many missed mentions were taken in.
    """

    repo_key: str
    until: str
    listed: int
    taken: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery:
    """The fold of one delivery stream."""

    received: DeliveryReceived | None = None
    refused: DeliveryRefused | None = None
    decided: DeliveryDecided | None = None


def fold(events: Iterable[Event]) -> Delivery:
    """Rebuild a delivery from its events."""
    delivery = Delivery()
    for event in events:
        match event:
            case DeliveryReceived():
                delivery = dataclasses.replace(delivery, received=event)
            case DeliveryRefused():
                delivery = dataclasses.replace(delivery, refused=event)
            case DeliveryDecided():
                delivery = dataclasses.replace(delivery, decided=event)
            case _:
                pass
    return delivery
