"""From bytes to a delivery: the signature first, then the form that all versions of Gitea share.

Sources: facts on Gitea (headers, signature, payload), seed 000 §6.1. Checked against recordings of Gitea 1.22 and
1.27 and samples of Forgejo. Nothing here waits, logs or keeps anything; one JSON parse per delivery.

Only ``X-Gitea-Signature`` counts, without a fallback to its copies. Headers are not covered by the signature: the
payload's own shape decides what a delivery is, the event headers are only kept.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from domain.faults import Invalid, Unauthorised, UnsupportedType
from domain.ids import delivery_key
from domain.webhooks import (
    CommentPart,
    Delivery,
    PartKind,
    Permissions,
    Person,
    Refs,
    Repository,
    Resource,
    ResourceKind,
    Shape,
    utc,
)

_FORM_FIELD = b"payload="
_COMMENT: dict[str, Shape] = {
    "created": "comment_created",
    "edited": "comment_edited",
    "deleted": "comment_deleted",
}
_ISSUE: dict[str, Shape] = {
    "opened": "issue_opened",
    "edited": "issue_edited",
    "deleted": "issue_deleted",
    "closed": "closed",
    "reopened": "reopened",
}
_PULL: dict[str, Shape] = {
    "opened": "pull_opened",
    "edited": "pull_edited",
    "closed": "closed",
    "reopened": "reopened",
}
_WITHOUT_PART: frozenset[Shape] = frozenset({"closed", "reopened"})


def verify(raw: bytes, content_type: str, headers: Mapping[str, str], secrets: Sequence[str]) -> bytes:
    """The payload of a request that one of ``secrets`` signed: the body, or the decoded field of Gitea's form.

    Raises ``UnsupportedType`` for another content type than JSON or form, ``Unauthorised`` ``invalid_signature`` for
    a missing, empty or wrong signature (told apart by nothing; compared in constant time; empty secrets never match).
    """
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/json":
        payload = raw
    elif media == "application/x-www-form-urlencoded":
        payload = _form_payload(raw)
    else:
        raise UnsupportedType("send application/json, or Gitea's form with a payload field")
    given = _header(headers, "x-gitea-signature").encode("utf-8", "replace")
    valid = False
    for secret in secrets:
        wanted = hmac.digest(secret.encode(), payload, "sha256").hex().encode()
        valid |= hmac.compare_digest(given, wanted) and bool(secret)
    if not valid:
        raise Unauthorised("the signature is missing or wrong", code="invalid_signature")
    return payload


def derived_secret(secret: str, repository_id: int) -> str:
    """The secret of one repository's own hook: hex HMAC-SHA256 over its id, worth that repository only."""
    return hmac.digest(secret.encode(), f"turnkeeper:repository:{repository_id}".encode(), "sha256").hex()


def payload_hash(payload: bytes) -> str:
    """``sha256:`` and the hex digest of the payload."""
    return "sha256:" + hashlib.sha256(payload).hexdigest()


def header_delivery_id(headers: Mapping[str, str]) -> str | None:
    """The id in ``X-Gitea-Delivery``, None if absent or empty; ``Invalid`` ``delivery_id_invalid`` if odd."""
    found = _header(headers, "x-gitea-delivery") or _header(headers, "x-forgejo-delivery")
    if not found:
        return None
    delivery_key(found)
    return found


def normalise(payload: bytes, headers: Mapping[str, str]) -> Delivery:
    """Read a verified payload.

    Raises ``Invalid``: ``invalid_payload`` where it is no JSON object, or lacks what its shape must have;
    ``delivery_id_missing`` without a delivery header and without a reliable id in the payload. Reliable are the ids
    of comments, issues and pull requests with their action, and for edits, which can repeat, the payload's hash:
    ``comment.<id>.created``, ``issue.<repository id>.<number>.edited.<hash>`` and alike. A push, an unknown event
    and a review (which has no id) hold none.
    """
    try:
        data = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise _invalid("the payload is no JSON") from error
    if not isinstance(data, dict):
        raise _invalid("the payload is no JSON object")
    digest = payload_hash(payload)
    shape = _shape(data)
    event = _header(headers, "x-gitea-event") or _header(headers, "x-forgejo-event")
    if shape == "unknown" and event == "push":
        shape = "push"
    known = shape not in {"push", "unknown"}
    repository = _repository(data.get("repository"), required=known)
    resource, refs, part = _content(shape, data)
    action = data.get("action")
    delivery_id = header_delivery_id(headers) or _payload_id(shape, repository, resource, part, digest)
    return Delivery(
        delivery_id=delivery_id,
        event=event,
        event_type=_header(headers, "x-gitea-event-type")
        or _header(headers, "x-forgejo-event-type")
        or event,
        action=action if isinstance(action, str) else "",
        shape=shape,
        payload_hash=digest,
        sender=_person(data.get("sender"), "sender") if known else _maybe_person(data.get("sender")),
        repository=repository,
        permissions=_permissions(data.get("repository")),
        resource=resource,
        refs=refs,
        part=part,
        changed_from=_changed_from(data),
        is_pull=resource is not None and resource.kind == "pull_request",
        review_state=_review_state(data) if shape == "review_submitted" else None,
    )


def _form_payload(raw: bytes) -> bytes:
    fields = [field for field in raw.split(b"&") if field.startswith(_FORM_FIELD)]
    if len(fields) != 1:
        raise Unauthorised("the signature is missing or wrong", code="invalid_signature")
    return unquote_to_bytes(fields[0][len(_FORM_FIELD) :].replace(b"+", b" "))


def _header(headers: Mapping[str, str], name: str) -> str:
    """A header by its lower-case name, from a case-insensitive mapping or a plain one."""
    found = headers.get(name)
    if found is None:
        found = next((value for key, value in headers.items() if key.lower() == name), "")
    return found.strip()


def _shape(data: dict[str, Any]) -> Shape:
    action = data.get("action")
    if not isinstance(action, str):
        return "push" if "ref" in data and "commits" in data else "unknown"
    if isinstance(data.get("issue"), dict):
        if "comment" in data:
            return _COMMENT.get(action, "unknown")
        return _ISSUE.get(action, "unknown")
    if isinstance(data.get("pull_request"), dict):
        if isinstance(data.get("review"), dict):
            return "review_submitted" if action == "reviewed" else "unknown"
        return _PULL.get(action, "unknown")
    return "unknown"


def _content(shape: Shape, data: dict[str, Any]) -> tuple[Resource | None, Refs | None, CommentPart | None]:
    if shape in {"push", "unknown"}:
        return None, None, None
    pull = data.get("pull_request")
    refs = _refs(pull) if isinstance(pull, dict) else None
    if "issue" in data:
        thing = data["issue"]
        is_pull = data.get("is_pull") is True or isinstance(thing.get("pull_request"), dict)
    else:
        thing, is_pull = _object(pull, "pull_request"), True
    resource = _resource(thing, "pull_request" if is_pull else "issue")
    if shape in _WITHOUT_PART:
        return resource, refs, None
    if shape == "review_submitted":
        return resource, refs, _review(data, resource)
    if "comment" in data:
        comment = _object(data["comment"], "comment")
        return resource, refs, _part("comment", _number(comment, "id"), comment)
    return resource, refs, _part(resource.kind, resource.number, thing)


def _part(kind: PartKind, ident: int, thing: dict[str, Any]) -> CommentPart:
    created, updated = _text(thing, "created_at"), _text(thing, "updated_at")
    try:
        created_utc, updated_utc = utc(created), utc(updated)
    except ValueError as error:
        raise _invalid("a time is not RFC 3339 with an offset") from error
    if not created_utc:
        raise _invalid("created_at is missing")
    return CommentPart(
        kind=kind,
        id=ident,
        body=_text(thing, "body"),
        author=_person(thing.get("user"), "user"),
        created_at=created,
        updated_at=updated,
        created_at_utc=created_utc,
        updated_at_utc=updated_utc,
        html_url=_text(thing, "html_url"),
    )


def _review(data: dict[str, Any], resource: Resource) -> CommentPart:
    return CommentPart(
        kind="review",
        id=None,
        body=_text(data["review"], "content"),
        author=_person(data.get("sender"), "sender"),
        created_at="",
        updated_at="",
        created_at_utc="",
        updated_at_utc="",
        html_url=resource.html_url,
    )


def _resource(thing: dict[str, Any], kind: ResourceKind) -> Resource:
    return Resource(
        kind=kind,
        number=_number(thing, "number"),
        title=_text(thing, "title"),
        body=_text(thing, "body"),
        author=_maybe_person(thing.get("user")),
        state=_text(thing, "state"),
        html_url=_text(thing, "html_url"),
        created_at=_text(thing, "created_at"),
    )


def _refs(pull: dict[str, Any]) -> Refs | None:
    base, head = pull.get("base"), pull.get("head")
    if not isinstance(base, dict) or not isinstance(head, dict):
        return None
    fork = head.get("repo")
    base_id = base.get("repo_id")
    head_id = fork.get("id") if isinstance(fork, dict) else None
    head_id = head_id if isinstance(head_id, int) else None
    return Refs(
        base=_text(base, "ref"),
        head=_text(head, "ref"),
        base_sha=_text(base, "sha"),
        head_sha=_text(head, "sha"),
        head_repo_id=head_id,
        same_repository=head_id is not None and head_id == base_id,
    )


def _repository(value: object, *, required: bool) -> Repository | None:
    try:
        data = _object(value, "repository")
        owner = _person(data.get("owner"), "repository.owner")
        return Repository(
            id=_number(data, "id"),
            owner=owner.login,
            name=_filled(data, "name"),
            full_name=_text(data, "full_name") or f"{owner.login}/{data['name']}",
            clone_url=_filled(data, "clone_url"),
            default_branch=_text(data, "default_branch"),
            html_url=_text(data, "html_url"),
            private=data.get("private") is True,
            archived=data.get("archived") is True,
        )
    except Invalid:
        if required:
            raise
        return None


def _permissions(repository: object) -> Permissions | None:
    data = repository.get("permissions") if isinstance(repository, dict) else None
    if not isinstance(data, dict):
        return None
    admin, push, pull = data.get("admin"), data.get("push"), data.get("pull")
    if isinstance(admin, bool) and isinstance(push, bool) and isinstance(pull, bool):
        return Permissions(admin=admin, push=push, pull=pull)
    return None


def _changed_from(data: dict[str, Any]) -> str | None:
    changes = data.get("changes")
    body = changes.get("body") if isinstance(changes, dict) else None
    before = body.get("from") if isinstance(body, dict) else None
    return before if isinstance(before, str) else None


def _review_state(data: dict[str, Any]) -> str:
    return _text(data["review"], "type").removeprefix("pull_request_review_")


def _payload_id(
    shape: Shape,
    repository: Repository | None,
    resource: Resource | None,
    part: CommentPart | None,
    digest: str,
) -> str:
    if part is None or part.id is None or repository is None or resource is None:
        raise Invalid(
            "send X-Gitea-Delivery: this payload has no id to tell it by", code="delivery_id_missing"
        )
    what = f"comment.{part.id}" if part.kind == "comment" else f"{part.kind}.{repository.id}.{part.id}"
    action = shape.rpartition("_")[2]
    again = f".{digest.removeprefix('sha256:')[:16]}" if action == "edited" else ""
    return f"{what}.{action}{again}"


def _person(value: object, name: str) -> Person:
    person = _maybe_person(value)
    if person is None:
        raise _invalid(f"{name} is missing or no account")
    return person


def _maybe_person(value: object) -> Person | None:
    if not isinstance(value, dict):
        return None
    ident, login = value.get("id"), value.get("login") or value.get("username")
    if isinstance(ident, int) and not isinstance(ident, bool) and isinstance(login, str) and login:
        return Person(id=ident, login=login)
    return None


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(f"{name} is missing or no object")
    return value


def _number(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _invalid(f"{name} is missing or no whole number from 1")
    return value


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(f"{name} is no text")
    return value


def _filled(data: dict[str, Any], name: str) -> str:
    value = _text(data, name)
    if not value:
        raise _invalid(f"{name} is missing")
    return value


def _invalid(message: str) -> Invalid:
    return Invalid(message, code="invalid_payload")
