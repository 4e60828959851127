"""What Gitea tells us, in one form for all its versions: a delivery, normalised.

``adapters.gitea.webhook`` makes it from bytes; the processes decide from it. Plain frozen data whose fields are JSON
values, so a delivery can stand in an event (``to_fields``) and be read back (``from_fields``). Sources: seed 000 §6.1
(the least that must be taken out), facts on Gitea (headers, shapes, whose rights ``permissions`` are).

Times are the text that Gitea sent, and beside it (``…_utc``) the same moment as ISO 8601 UTC with ``Z``.
"""

import dataclasses
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Literal, TypeVar

ResourceKind = Literal["issue", "pull_request"]
PartKind = Literal["comment", "review", "issue", "pull_request"]
Shape = Literal[
    "comment_created",
    "comment_edited",
    "comment_deleted",
    "review_submitted",
    "issue_opened",
    "issue_edited",
    "issue_deleted",
    "pull_opened",
    "pull_edited",
    "closed",
    "reopened",
    "push",
    "unknown",
]

COMMENT_SHAPES: frozenset[Shape] = frozenset({"comment_created", "comment_edited", "comment_deleted"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Person:
    """A Gitea account. The id stays, the login may change. Ids below 1 are ghosts and Gitea's own."""

    id: int
    login: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """The base repository. ``full_name`` is ``owner/name`` as Gitea spells it now."""

    id: int
    owner: str
    name: str
    full_name: str
    clone_url: str
    default_branch: str
    html_url: str = ""
    private: bool = False
    archived: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permissions:
    """The right on code that the payload states.

    Whose it is depends on the shape: the sender's in comment events and at opening, the poster's in edited issues and
    pull requests, nobody's in reviews (see ``Delivery.states_sender_rights``).
    """

    admin: bool
    push: bool
    pull: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resource:
    """The issue or pull request. ``author`` None: unknown."""

    kind: ResourceKind
    number: int
    title: str
    body: str
    author: Person | None
    state: str
    html_url: str
    created_at: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refs:
    """Branches of a pull request. ``head_repo_id`` None: the fork is gone.

    ``head`` is the branch's name, or ``refs/pull/N/head`` once the branch is gone; what is safe to fetch is always
    ``refs/pull/N/head`` of the base repository.
    """

    base: str
    head: str
    base_sha: str
    head_sha: str
    head_repo_id: int | None
    same_repository: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommentPart:
    """The text that may mention the bot. ``id`` None: the payload has none (reviews).

    For an issue's or a pull request's own body, ``id`` is the *number* of the resource (its
    database id stands nowhere else and differs between Gitea's two tables).
    """

    kind: PartKind
    id: int | None
    body: str
    author: Person
    created_at: str
    updated_at: str
    created_at_utc: str
    updated_at_utc: str
    html_url: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery:
    """One webhook delivery, verified and normalised.

    ``repository``, ``resource`` and ``part`` are there for every shape except ``push`` and ``unknown`` (``part`` is
    None there and for ``closed``, ``reopened``). ``changed_from`` is the body before an edit, None where the body was
    not edited. ``payload_hash`` is ``sha256:`` and the hex digest of the payload (of the decoded field of a form).
    """

    delivery_id: str
    event: str
    event_type: str
    action: str
    shape: Shape
    payload_hash: str
    sender: Person | None
    repository: Repository | None
    permissions: Permissions | None
    resource: Resource | None
    refs: Refs | None
    part: CommentPart | None
    changed_from: str | None
    is_pull: bool
    review_state: str | None = None

    @property
    def states_sender_rights(self) -> bool:
        """Whether ``permissions`` are the sender's (facts, Payload).

        Comments always; opened always; edited issues and pull requests only if their poster edits; reviews never.
        """
        if self.permissions is None or self.sender is None:
            return False
        if self.shape in COMMENT_SHAPES or self.shape in {"issue_opened", "pull_opened"}:
            return True
        if self.shape in {"issue_edited", "pull_edited"} and self.resource and self.resource.author:
            return self.resource.author.id == self.sender.id
        return False


Plain = TypeVar("Plain", Delivery, CommentPart, Refs, Resource, Permissions, Repository, Person)


def to_fields(value: Plain) -> dict[str, Any]:
    """Plain JSON members of a delivery or a part of one."""
    return dataclasses.asdict(value)


def from_fields(cls: type[Plain], fields: Mapping[str, Any]) -> Plain:
    """Read back what ``to_fields`` gave. Unknown members are left out: a newer version wrote them."""
    hints = _hints(cls)
    made = {name: _back(hints[name], value) for name, value in fields.items() if name in hints}
    return cls(**made)


_HINTS: dict[str, Mapping[str, Any]] = {}


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    if cls.__name__ not in _HINTS:
        _HINTS[cls.__name__] = typing.get_type_hints(cls)
    return _HINTS[cls.__name__]


def _back(hint: Any, value: Any) -> Any:  # noqa: ANN401 - a JSON value of any type
    if not isinstance(value, Mapping):
        return value
    inner = next((arg for arg in typing.get_args(hint) if arg is not NoneType), hint)
    return from_fields(inner, value)


def utc(text: str) -> str:
    """RFC 3339 with any offset as ISO 8601 UTC with ``Z``, to the second or finer as sent; "" for no time.

    Raises ``ValueError`` for anything else. Go's zero time (year 1) is no time.
    """
    if not text or text.startswith("0001-01-01"):
        return ""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without an offset")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
