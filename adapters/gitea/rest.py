"""Gitea's REST interface, as far as the service needs it (facts, REST).

Failures are ``GiteaFault``; ``outcome`` says what a failed write means. Every write takes ``repository_id``: with it
the present name is asked for first (``GET /repositories/{id}``), since a write to a former name is lost; without it a
renamed repository is ``repository_renamed``. Nothing is repeated here: that is up to who knows what it would mean.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, get_args
from urllib.parse import quote

from adapters.gitea import answers
from adapters.gitea.answers import listed, read
from adapters.gitea.requests import Requests
from domain.gitea import (
    GiteaFault,
    GiteaNotFound,
    Hook,
    Permission,
    PullFile,
    PullRequest,
    RepositoryComment,
    Review,
)
from domain.ids import check_name
from domain.runs import Background, Comment
from domain.webhooks import Permissions, Person, Repository, Resource

T = TypeVar("T")

HOOK_EVENTS = (
    "issue_comment",
    "pull_request_comment",
    "pull_request_review",
    "issues_only",
    "pull_request_only",
    "push",
)
"""The fewest events that serve every trigger, and ``push``, without which Gitea's test button sends nothing."""

PAGE = 50
PAGES = 2_000


class GiteaRest:
    """One account's view of one Gitea. ``base_url`` without ``/api/v1``; ``timeout`` in seconds."""

    def __init__(self, base_url: str, token: str, *, timeout: float = 10.0) -> None:
        self._requests = Requests(base_url, token, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._requests.aclose()

    async def version(self) -> str:
        """Gitea's version, without rights: the cheap probe of whether it is there."""
        return await self._get("version", lambda data: str(data["version"]))

    async def me(self) -> Person:
        """Whose token this is (scope ``read:user``)."""
        return await self._get("user", answers.person)

    async def user(self, login: str) -> Person:
        """An account by its login."""
        return await self._get(f"users/{quote(login, safe='')}", answers.person)

    async def repository(self, owner: str, name: str) -> Repository:
        """A repository by a present or former name; the answer holds the present one."""
        return await self._get(_repo(owner, name), answers.repository)

    async def own_rights(self, owner: str, name: str) -> Permissions | None:
        """What this account may do in a repository."""
        return await self._get(_repo(owner, name), answers.rights)

    async def repository_by_id(self, repository_id: int) -> Repository:
        """A repository by its id, which stays."""
        return await self._get(f"repositories/{int(repository_id)}", answers.repository)

    async def names(self, repository_id: int) -> tuple[str, str]:
        """The present owner and name of a repository."""
        found = await self.repository_by_id(repository_id)
        return found.owner, found.name

    async def issue(self, owner: str, name: str, number: int) -> Resource:
        """An issue or pull request (``kind`` tells which)."""
        return await self._get(f"{_repo(owner, name)}/issues/{int(number)}", answers.resource)

    async def pull(self, owner: str, name: str, number: int) -> PullRequest:
        """A pull request with its refs."""
        return await self._get(f"{_repo(owner, name)}/pulls/{int(number)}", answers.pull_request)

    async def pull_files(self, owner: str, name: str, number: int, *, limit: int = 300) -> Sequence[PullFile]:
        """The first ``limit`` changed files of a pull request."""
        path = f"{_repo(owner, name)}/pulls/{int(number)}/files"
        return await self._pages(path, answers.pull_file, lambda file: file.filename, limit=limit)

    async def comments(
        self, owner: str, name: str, number: int, *, since: str | None = None
    ) -> Sequence[Comment]:
        """All plain comments of an issue or pull request, ascending; ``since`` compares *updated*, inclusive.

        A missing issue is ``gitea_not_found``, though Gitea answers 500 there.
        """
        query: dict[str, str | int] = {"since": since} if since else {}
        try:
            answer = await self._requests.send(
                "GET", f"{_repo(owner, name)}/issues/{int(number)}/comments", query=query
            )
        except GiteaFault as fault:
            await self._missing(fault, owner, name, number)
            raise
        return read(listed(answers.comment), answer.data, http_status=answer.http_status)

    async def comment(self, owner: str, name: str, comment_id: int) -> Comment | None:
        """One plain comment; None if it is gone. A review's is there, but not to be read (``review_comment``)."""
        try:
            answer = await self._requests.send(
                "GET", f"{_repo(owner, name)}/issues/comments/{int(comment_id)}"
            )
        except GiteaNotFound:
            await self.repository(owner, name)  # raises if it is the repository that is not to be seen
            return None
        if answer.http_status == 204:
            raise GiteaFault(
                "the comment belongs to a review and can't be read alone",
                code="review_comment",
                outcome="refused",
                http_status=204,
            )
        return read(answers.comment, answer.data, http_status=answer.http_status)

    async def create_comment(
        self, owner: str, name: str, number: int, body: str, *, repository_id: int | None = None
    ) -> Comment:
        """Write a comment. Not idempotent: after ``unknown`` list the comments before anything else.

        A missing issue is ``gitea_not_found`` and ``refused``, though Gitea answers 500 there.
        """
        owner, name = await self._present(owner, name, repository_id)
        path = f"{_repo(owner, name)}/issues/{int(number)}/comments"
        try:
            answer = await self._requests.send("POST", path, body={"body": body})
        except GiteaFault as fault:
            await self._missing(fault, owner, name, number)
            raise
        return read(answers.comment, answer.data, http_status=answer.http_status)

    async def edit_comment(
        self, owner: str, name: str, comment_id: int, body: str, *, repository_id: int | None = None
    ) -> Comment:
        """Change a comment's text; the same text again is harmless."""
        owner, name = await self._present(owner, name, repository_id)
        path = f"{_repo(owner, name)}/issues/comments/{int(comment_id)}"
        answer = await self._requests.send("PATCH", path, body={"body": body})
        return read(answers.comment, answer.data, http_status=answer.http_status)

    async def delete_comment(
        self, owner: str, name: str, comment_id: int, *, repository_id: int | None = None
    ) -> None:
        """Delete a comment; one that is gone is ``gitea_not_found``."""
        owner, name = await self._present(owner, name, repository_id)
        await self._requests.send("DELETE", f"{_repo(owner, name)}/issues/comments/{int(comment_id)}")

    async def react(
        self,
        owner: str,
        name: str,
        comment_id: int,
        content: str = "eyes",
        *,
        repository_id: int | None = None,
    ) -> bool:
        """React to a comment; True if the reaction is new. Idempotent."""
        owner, name = await self._present(owner, name, repository_id)
        path = f"{_repo(owner, name)}/issues/comments/{int(comment_id)}/reactions"
        answer = await self._requests.send("POST", path, body={"content": content})
        return answer.http_status == 201

    async def react_to_issue(
        self, owner: str, name: str, number: int, content: str = "eyes", *, repository_id: int | None = None
    ) -> bool:
        """React to an issue's or pull request's own body; True if the reaction is new. Idempotent."""
        owner, name = await self._present(owner, name, repository_id)
        path = f"{_repo(owner, name)}/issues/{int(number)}/reactions"
        answer = await self._requests.send("POST", path, body={"content": content})
        return answer.http_status == 201

    async def repo_comments(
        self, owner: str, name: str, *, since: str | None = None
    ) -> AsyncIterator[RepositoryComment]:
        """All plain comments of a repository updated since then (inclusive), page by page until all are there."""
        path = f"{_repo(owner, name)}/issues/comments"
        query: dict[str, str | int] = {"since": since} if since else {}
        async for item in self._paged(path, answers.repository_comment, lambda one: one.comment.id, query):
            yield item

    async def permission(self, owner: str, name: str, login: str) -> Permission:
        """An account's right on code, as administrators may ask it: believe a yes, not a no (facts, REST).

        ``gitea_forbidden``: the bot may not ask; ``gitea_not_found``: no such account or repository.
        """
        path = f"{_repo(owner, name)}/collaborators/{quote(login, safe='')}/permission"
        return await self._get(path, _permission)

    async def reviews(self, owner: str, name: str, number: int) -> Sequence[Review]:
        """All reviews of a pull request."""
        path = f"{_repo(owner, name)}/pulls/{int(number)}/reviews"
        return await self._pages(path, answers.review, lambda review: review.id)

    async def review_comments(self, owner: str, name: str, number: int, review_id: int) -> Sequence[Comment]:
        """The inline comments of one review; each has its own author."""
        path = f"{_repo(owner, name)}/pulls/{int(number)}/reviews/{int(review_id)}/comments"
        return await self._get(path, listed(answers.comment))

    async def background(self, owner: str, name: str, kind: str, number: int) -> Background:
        """Title, body and comments of an issue or pull request, and the changed files of the latter."""
        resource = await self.issue(owner, name, number)
        comments = await self.comments(owner, name, number)
        files = await self.pull_files(owner, name, number) if kind == "pull_request" else ()
        return Background(
            title=resource.title,
            body=resource.body,
            url=resource.html_url,
            comments=tuple(comments),
            changed_files=tuple(file.filename for file in files),
        )

    async def hooks(self, owner: str, name: str) -> Sequence[Hook]:
        """All hooks of a repository (its administrators only, else ``gitea_forbidden``)."""
        return await self._pages(f"{_repo(owner, name)}/hooks", answers.hook, lambda hook: hook.id)

    async def create_hook(
        self, owner: str, name: str, *, url: str, secret: str, events: Sequence[str] = HOOK_EVENTS
    ) -> Hook:
        """Make an active JSON hook. Look for one with the same URL first: Gitea makes a second."""
        body = {
            "type": "gitea",
            "active": True,
            "events": list(events),
            "config": {"url": url, "content_type": "json", "secret": secret},
        }
        answer = await self._requests.send("POST", f"{_repo(owner, name)}/hooks", body=body)
        return read(answers.hook, answer.data, http_status=answer.http_status)

    async def update_hook(
        self,
        owner: str,
        name: str,
        hook_id: int,
        *,
        url: str,
        secret: str,
        events: Sequence[str] = HOOK_EVENTS,
    ) -> Hook:
        """Set everything of a hook again. Idempotent."""
        body = {
            "active": True,
            "events": list(events),
            "config": {"url": url, "content_type": "json", "secret": secret},
        }
        answer = await self._requests.send("PATCH", f"{_repo(owner, name)}/hooks/{int(hook_id)}", body=body)
        return read(answers.hook, answer.data, http_status=answer.http_status)

    async def _get(self, path: str, reader: Callable[[Any], T]) -> T:
        answer = await self._requests.send("GET", path)
        return read(reader, answer.data, http_status=answer.http_status)

    async def _pages(
        self, path: str, reader: Callable[[Any], T], key: Callable[[T], object], *, limit: int | None = None
    ) -> list[T]:
        found: list[T] = []
        async for item in self._paged(path, reader, key, {}):
            found.append(item)
            if limit is not None and len(found) >= limit:
                break
        return found

    async def _paged(
        self,
        path: str,
        reader: Callable[[Any], T],
        key: Callable[[T], object],
        query: dict[str, str | int],
    ) -> AsyncIterator[T]:
        """Items of a paged list, each once, until ``X-Total-Count`` is reached or a page brings nothing new."""
        seen: set[object] = set()
        for page in range(1, PAGES + 1):
            answer = await self._requests.send("GET", path, query={**query, "page": page, "limit": PAGE})
            fresh = 0
            for item in read(listed(reader), answer.data, http_status=answer.http_status):
                if key(item) not in seen:
                    seen.add(key(item))
                    fresh += 1
                    yield item
            if not fresh or (answer.total is not None and len(seen) >= answer.total):
                return

    async def _present(self, owner: str, name: str, repository_id: int | None) -> tuple[str, str]:
        if repository_id is None:
            return owner, name
        try:
            return await self.names(repository_id)
        except GiteaFault as fault:  # the write itself never left
            fault.outcome = "not_sent"
            fault.params["outcome"] = "not_sent"
            raise

    async def _missing(self, fault: GiteaFault, owner: str, name: str, number: int) -> None:
        """Gitea answers 500 with an empty message for a missing issue: ask for the issue itself."""
        if fault.params.get("http_status") != 500 or "gitea_message" in fault.params:
            return
        try:
            await self.issue(owner, name, number)
        except GiteaNotFound as missing:
            raise missing from None
        except GiteaFault:
            return


def _repo(owner: str, name: str) -> str:
    check_name(owner, name)
    return f"repos/{owner}/{name}"


def _permission(data: Any) -> Permission:  # noqa: ANN401 - JSON
    found: Permission = data["permission"]
    if found not in get_args(Permission):
        raise ValueError("an unknown right")
    return found
