"""Reading Gitea's REST answers: members that every version sends, checked; anything else is no answer of Gitea's."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from domain.gitea import GiteaAway, Hook, PullFile, PullRequest, RepositoryComment, Review
from domain.runs import Comment
from domain.webhooks import Permissions, Person, Refs, Repository, Resource, utc

T = TypeVar("T")
_SUBJECT = re.compile(r"/(issues|pulls)/([1-9][0-9]*)(?:[#?].*)?$")


def read(reader: Callable[[Any], T], answer: object, *, http_status: int) -> T:
    """``reader(answer)``, or ``gitea_unavailable`` with the outcome ``unknown`` if it is not what Gitea sends."""
    try:
        return reader(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(http_status) from error


def unreadable(http_status: int) -> GiteaAway:
    """The fault for an answer that is not Gitea's: a proxy's page, a broken body."""
    return GiteaAway(
        "what answered does not speak as Gitea does: check the address and what stands before it",
        code="gitea_unavailable",
        outcome="unknown",
        http_status=http_status,
    )


def listed(reader: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """A reader for lists; null is an empty one."""

    def many(answer: Any) -> list[T]:  # noqa: ANN401 - JSON
        if answer is None:
            return []
        if not isinstance(answer, list):
            raise TypeError("no list")
        return [reader(item) for item in answer]

    return many


def person(data: Any) -> Person:  # noqa: ANN401 - JSON
    """An account."""
    return Person(id=_whole(data["id"]), login=_text(data.get("login") or data["username"]))


def repository(data: Any) -> Repository:  # noqa: ANN401 - JSON
    """A repository."""
    return Repository(
        id=_whole(data["id"]),
        owner=person(data["owner"]).login,
        name=_text(data["name"]),
        full_name=_text(data["full_name"]),
        clone_url=_text(data["clone_url"]),
        default_branch=_text(data.get("default_branch")),
        html_url=_text(data.get("html_url")),
        private=data.get("private") is True,
        archived=data.get("archived") is True,
    )


def rights(data: Any) -> Permissions | None:  # noqa: ANN401 - JSON
    """The token's own rights, as a repository's answer states them."""
    stated = data.get("permissions")
    if stated is None:
        return None
    return Permissions(
        admin=stated["admin"] is True, push=stated["push"] is True, pull=stated["pull"] is True
    )


def resource(data: Any) -> Resource:  # noqa: ANN401 - JSON
    """An issue, or the issue side of a pull request."""
    pull = data.get("pull_request") is not None or "base" in data
    return Resource(
        kind="pull_request" if pull else "issue",
        number=_whole(data["number"]),
        title=_text(data["title"]),
        body=_text(data.get("body")),
        author=person(data["user"]) if data.get("user") else None,
        state=_text(data["state"]),
        html_url=_text(data.get("html_url")),
        created_at=utc(_text(data.get("created_at"))),
    )


def pull_request(data: Any) -> PullRequest:  # noqa: ANN401 - JSON
    """A pull request with its refs."""
    base, head = data["base"], data["head"]
    fork = head.get("repo")
    head_id = _whole(fork["id"]) if fork else None
    return PullRequest(
        resource=resource(data),
        refs=Refs(
            base=_text(base["ref"]),
            head=_text(head["ref"]),
            base_sha=_text(base.get("sha")),
            head_sha=_text(head.get("sha")),
            head_repo_id=head_id,
            same_repository=head_id is not None and head_id == base.get("repo_id"),
        ),
        merged=data.get("merged") is True,
    )


def comment(data: Any) -> Comment:  # noqa: ANN401 - JSON
    """A comment; times are UTC with ``Z``."""
    author = person(data["user"])
    return Comment(
        id=_whole(data["id"]),
        author_id=author.id,
        author=author.login,
        body=_text(data["body"]),
        created_at=utc(_text(data["created_at"])),
        updated_at=utc(_text(data["updated_at"])),
        url=_text(data.get("html_url")),
    )


def repository_comment(data: Any) -> RepositoryComment:  # noqa: ANN401 - JSON
    """A comment with the issue or pull request that its URL names."""
    found = _SUBJECT.search(_text(data.get("pull_request_url")) or _text(data.get("issue_url")))
    if found is None:
        raise ValueError("a comment of nothing")
    pull = bool(data.get("pull_request_url"))
    return RepositoryComment(
        comment=comment(data), kind="pull_request" if pull else "issue", number=int(found[2])
    )


def pull_file(data: Any) -> PullFile:  # noqa: ANN401 - JSON
    """A changed file."""
    return PullFile(
        filename=_text(data["filename"]),
        status=_text(data.get("status")),
        additions=_whole(data.get("additions") or 0),
        deletions=_whole(data.get("deletions") or 0),
    )


def review(data: Any) -> Review:  # noqa: ANN401 - JSON
    """A review."""
    return Review(
        id=_whole(data["id"]),
        state=_text(data["state"]),
        body=_text(data.get("body")),
        author=person(data["user"]) if data.get("user") else None,
        submitted_at=utc(_text(data.get("submitted_at"))),
        html_url=_text(data.get("html_url")),
        comments_count=_whole(data.get("comments_count") or 0),
    )


def hook(data: Any) -> Hook:  # noqa: ANN401 - JSON
    """A webhook."""
    return Hook(
        id=_whole(data["id"]),
        url=_text(data["config"]["url"]),
        content_type=_text(data["config"].get("content_type")),
        events=tuple(sorted(_text(event) for event in data.get("events") or [])),
        active=data.get("active") is True,
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("no whole number")
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
