"""What Gitea's REST interface answers, as plain data, and the one fault that tells how it failed."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from domain.faults import Fault, NotFound, Unavailable
from domain.runs import Comment
from domain.webhooks import Person, Refs, Resource, ResourceKind

Outcome = Literal["not_sent", "unknown", "refused"]
"""What a failed request means for a write: it never left, nobody knows, or Gitea said no. Unknown is not failed."""

Permission = Literal["none", "read", "write", "admin", "owner"]


class GiteaFault(Fault):
    """A request to Gitea failed. ``params["outcome"]`` holds ``outcome``, ``params["http_status"]`` the answer's.

    Codes: ``gitea_token_invalid`` (401), ``gitea_scope_missing`` (403; ``params["scope"]``), ``gitea_forbidden``
    (403), ``gitea_not_found`` (404), ``gitea_locked`` (403, 423), ``gitea_archived`` (423), ``repository_renamed``
    (a redirected write), ``gitea_redirected`` (to another address, never followed), ``gitea_refused`` (other 4xx),
    ``review_comment`` (204 for a comment that belongs to a review), ``gitea_unavailable`` (no connection, no answer
    in time, 5xx, 429, or an answer that is not Gitea's).
    """

    status = 502
    code = "gitea_refused"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        outcome: Outcome,
        http_status: int | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        told: dict[str, object] = {"outcome": outcome, **(params or {})}
        if http_status is not None:
            told["http_status"] = http_status
        super().__init__(message, code=code, params=told)
        self.outcome: Outcome = outcome


class GiteaNotFound(GiteaFault, NotFound):
    """``gitea_not_found``: Gitea has no such thing, or does not show it to the bot."""


class GiteaAway(GiteaFault, Unavailable):
    """``gitea_unavailable``: others would meet the same. A write may have happened if ``outcome`` is ``unknown``."""

    status = 503


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullRequest:
    """A pull request and its refs (``refs.head_repo_id`` None: the fork is gone)."""

    resource: Resource
    refs: Refs | None
    merged: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullFile:
    """A changed file; ``status`` as Gitea says it (``added``, ``changed``, ``deleted``, ``renamed`` …)."""

    filename: str
    status: str
    additions: int
    deletions: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
    """A review. ``state``: ``COMMENT``, ``APPROVED``, ``REQUEST_CHANGES``, ``PENDING``, ``REQUEST_REVIEW``.

    ``author`` None: a request to a team. ``submitted_at``: UTC with ``Z``.
    """

    id: int
    state: str
    body: str
    author: Person | None
    submitted_at: str
    html_url: str
    comments_count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryComment:
    """A comment of a repository's list, and the issue or pull request that it belongs to."""

    comment: Comment
    kind: ResourceKind
    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hook:
    """A webhook. Gitea never shows its secret again."""

    id: int
    url: str
    content_type: str
    events: tuple[str, ...]
    active: bool
