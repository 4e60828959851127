"""A delivery as the fact that stands in the log, with its texts as erasable content.

Everything that decides about a delivery stands in ``DeliveryReceived`` and its texts, so that the decision can be
taken again from the log (architecture, Texts can be erased). What logins say is recorded as the lists they stood on.
"""

import dataclasses
from datetime import UTC, datetime
from typing import Any, Literal

from domain import contents, ids, policy
from domain.deliveries import DeliveryReceived
from domain.log import Content
from domain.mentions import LIMIT, find_mention
from domain.policy import Rules
from domain.texts import bounded
from domain.webhooks import CommentPart, Delivery, Permissions, Resource

Route = Literal["plain", "derived", "worker"]

_TITLE_LIMIT = 1024
_UNSTORABLE = str.maketrans({"\x00": "\ufffd"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """A delivery's texts as the log keeps them: of the part now, and before an edit. None: absent, or erased."""

    now: str | None = None
    before: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A delivery's fact, the texts that decide about it, and what goes into the content table."""

    fact: DeliveryReceived
    texts: Texts
    contents: tuple[Content, ...]


def text_id(delivery_key: str) -> str:
    """Content id of the text that a delivery carried."""
    return f"delivery:{delivery_key}:text"


def before_id(delivery_key: str) -> str:
    """Content id of the text before an edit."""
    return f"delivery:{delivery_key}:before"


def kept(text: str) -> tuple[str, bool]:
    """What is kept of a text: at most 64 KiB of UTF-8, and whether something was cut. NUL and halves are replaced."""
    whole = text.translate(_UNSTORABLE).encode("utf-8", "replace").decode("utf-8")
    return bounded(whole, LIMIT)


def take(
    delivery: Delivery, rules: Rules, route: Route, *, salts: tuple[bytes, bytes], key: str | None = None
) -> Taken:
    """The fact of a delivery. ``salts`` are fresh random bytes for its two texts; ``key``: not the delivery's own.

    ``permissions`` are recorded only where they are the sender's. ``facts`` holds ``lists`` (see
    ``domain.policy.matches``), ``word`` (the word alone that
    the text says to the bot), ``truncated``, the ``before`` reference, the whole texts' lengths in characters
    (``whole``, ``before_whole``), and with ``stamped`` the time, ``at``.
    """
    key = key or ids.delivery_key(delivery.delivery_id)
    facts: dict[str, Any] = {"lists": sorted(policy.matches(rules, delivery.sender))}
    stored: list[Content] = []
    part = delivery.part
    text = now = before = None
    changed_from = None
    if part is not None:
        now, cut = kept(part.body)
        content, text = contents.content(text_id(key), now, salts[0])
        stored.append(content)
        facts |= {"whole": len(part.body), "truncated": cut}
        found = find_mention(now, rules.bot_login)
        if found is not None and found.command is not None:
            facts["word"] = found.command
    if delivery.changed_from is not None:
        before, _ = kept(delivery.changed_from)
        content, reference = contents.content(before_id(key), before, salts[1])
        stored.append(content)
        changed_from = reference["digest"]
        facts |= {"before": reference, "before_whole": len(delivery.changed_from)}
    people = [delivery.sender, part.author if part else None]
    stored.extend(
        contents.login(person.id, _line(person.login))
        for person in dict.fromkeys(people)
        if person is not None
    )
    if delivery.review_state:
        facts["review_state"] = _line(delivery.review_state)
    fact = DeliveryReceived(
        delivery_key=key,
        delivery_id=delivery.delivery_id,
        event=_line(delivery.event),
        event_type=_line(delivery.event_type),
        action=_line(delivery.action),
        shape=delivery.shape,
        payload_hash=delivery.payload_hash,
        route=route,
        repository=_repository(delivery),
        sender_id=delivery.sender.id if delivery.sender else 0,
        permissions=_permissions(delivery),
        resource=_resource(delivery.resource) if delivery.resource else None,
        part=_part(part) if part else None,
        refs=_refs(delivery),
        text=text,
        changed_from=changed_from,
        facts=facts,
    )
    return Taken(fact=fact, texts=Texts(now=now, before=before), contents=tuple(stored))


def stamped(taken: Taken, at: datetime) -> Taken:
    """The same at the database's time: ``facts["at"]``, ISO 8601 in UTC with ``Z`` and milliseconds."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fact = dataclasses.replace(taken.fact, facts={"at": moment, **taken.fact.facts})
    return dataclasses.replace(taken, fact=fact)


def rights(fact: DeliveryReceived) -> Permissions | None:
    """The sender's right as the payload stated it, None where it stated none."""
    return Permissions(**fact.permissions) if fact.permissions is not None else None


def _line(text: str) -> str:
    return kept(text)[0][:_TITLE_LIMIT]


def _repository(delivery: Delivery) -> dict[str, Any]:
    repository = delivery.repository
    if repository is None:
        return {}
    return {
        "id": repository.id,
        "owner": _line(repository.owner),
        "name": _line(repository.name),
        "clone_url": _line(repository.clone_url),
        "default_branch": _line(repository.default_branch),
        "private": repository.private,
    }


def _permissions(delivery: Delivery) -> dict[str, bool] | None:
    stated = delivery.permissions
    if stated is None or not delivery.states_sender_rights:
        return None
    return {"admin": stated.admin, "push": stated.push, "pull": stated.pull}


def _resource(resource: Resource) -> dict[str, Any]:
    return {
        "kind": resource.kind,
        "number": resource.number,
        "title": _line(resource.title),
        "url": _line(resource.html_url),
    }


def _part(part: CommentPart) -> dict[str, Any]:
    return {
        "kind": part.kind,
        "id": part.id,
        "author_id": part.author.id,
        "created_at": part.created_at_utc,
        "updated_at": part.updated_at_utc,
        "url": _line(part.html_url),
    }


def _refs(delivery: Delivery) -> dict[str, Any] | None:
    refs = delivery.refs
    if refs is None:
        return None
    return {
        "base": _line(refs.base),
        "head": _line(refs.head),
        "base_sha": _line(refs.base_sha),
        "head_sha": _line(refs.head_sha),
        "same_repository": refs.same_repository,
    }
