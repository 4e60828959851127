"""Who may, where no signed payload says it: Gitea's permission endpoint, else what was signed before.

A yes of the endpoint is believed, a no is not (it does not see rights that come by a team's units). The newest signed
comment event of that user in that repository is exact, but grows old. What was found is recorded (gitea-workflow, Who
may).
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

from domain import ids
from domain.deliveries import DeliveryReceived, PermissionObserved
from domain.faults import Fault, VersionConflict
from domain.gitea import Permission, PullRequest, RepositoryComment, Review
from domain.log import AppendRequest, Draft, Metadata, Premise, Recorded
from domain.processes.intake_facts import kept
from domain.runs import Comment
from domain.webhooks import COMMENT_SHAPES, Person, Repository, Resource
from services.ledger import stamp
from services.ports import EventLog
from services.view_store import ViewStore

_PAGE = 50
_PAGES = 20
_REFUSED = frozenset(("gitea_forbidden", "gitea_not_found", "gitea_scope_missing"))
_GRANTED: Mapping[Permission, dict[str, bool]] = {
    "write": {"admin": False, "push": True, "pull": True},
    "admin": {"admin": True, "push": True, "pull": True},
    "owner": {"admin": True, "push": True, "pull": True},
}

Known = Literal["none", "same", "other"]
"""What signed deliveries told of a comment: nothing, the same text last, or another text last."""


class Looking(Protocol):
    """What is read of Gitea to decide about mentions afterwards; each raises a ``GiteaFault``."""

    async def repository_by_id(self, repository_id: int) -> Repository:
        """A repository under its present name."""
        ...

    async def issue(self, owner: str, name: str, number: int) -> Resource:
        """An issue or pull request."""
        ...

    async def pull(self, owner: str, name: str, number: int) -> PullRequest:
        """A pull request with its refs."""
        ...

    async def reviews(self, owner: str, name: str, number: int) -> Sequence[Review]:
        """All reviews of a pull request."""
        ...

    async def review_comments(self, owner: str, name: str, number: int, review_id: int) -> Sequence[Comment]:
        """The inline comments of one review; each has its own author."""
        ...

    async def permission(self, owner: str, name: str, login: str) -> Permission:
        """An account's right on code."""
        ...

    def repo_comments(
        self, owner: str, name: str, *, since: str | None = None
    ) -> AsyncIterator[RepositoryComment]:
        """All plain comments of a repository updated since then (inclusive), from all pages."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Right:
    """What was found. ``permissions`` None: nobody knows."""

    permissions: dict[str, bool] | None
    source: Literal["endpoint", "signed", "none"]
    position: int | None = None


class Rights:
    """``allow_age``: seconds for which a right that was signed holds. ``caught_up``: the views have seen all."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        views: ViewStore,
        gitea: Looking,
        caught_up: Callable[[], Awaitable[None]],
        allow_age: float,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._log = event_log
        self._views = views
        self._gitea = gitea
        self._caught_up = caught_up
        self._allow_age = allow_age
        self._new_id = new_id

    async def of(self, repository: Repository, person: Person) -> Right:
        """The right of an account in a repository, recorded as an observation. Raises what Gitea's absence raises."""
        found = await self._from_endpoint(repository, person) or await self._from_memory(
            repository.id, person.id
        )
        right = found or Right(permissions=None, source="none")
        await self._record(repository.id, person.id, right)
        return right

    async def known(self, repository_id: int, comment_id: int, body: str) -> Known:
        """What signed deliveries about this comment told of its text."""
        await self._caught_up()
        rows = await self._views.select("deliveries", where={"comment": comment_id}, limit=_PAGE)
        for recorded in await self._facts([row["document"] for row in rows]):
            fact = recorded.event
            if (
                isinstance(fact, DeliveryReceived)
                and fact.route != "worker"
                and fact.repository.get("id") == repository_id
                and (fact.part or {}).get("kind") == "comment"
            ):
                reference = (fact.text or {}).get("content")
                texts = await self._log.contents([reference] if reference else [])
                return "same" if reference and texts.get(reference) == kept(body)[0] else "other"
        return "none"

    async def _from_endpoint(self, repository: Repository, person: Person) -> Right | None:
        try:
            level = await self._gitea.permission(repository.owner, repository.name, person.login)
        except Fault as fault:
            if fault.code in _REFUSED:
                return None
            raise
        granted = _GRANTED.get(level)
        return Right(permissions=granted, source="endpoint") if granted else None

    async def _from_memory(self, repository_id: int, user_id: int) -> Right | None:
        """The right that this user's newest signed comment event in this repository states."""
        await self._caught_up()
        since = await self._log.now() - timedelta(seconds=self._allow_age)
        after: tuple[int, str] | None = None
        for _ in range(_PAGES):
            rows = await self._views.select(
                "deliveries", where={"author": user_id}, limit=_PAGE, after=after, since=stamp(since)
            )
            told = [row["document"] for row in rows if row["document"].get("shape") in COMMENT_SHAPES]
            for recorded in await self._facts(told):
                fact = recorded.event
                if (
                    isinstance(fact, DeliveryReceived)
                    and fact.route != "worker"
                    and fact.sender_id == user_id
                    and fact.repository.get("id") == repository_id
                    and fact.permissions is not None
                ):
                    return Right(permissions=fact.permissions, source="signed", position=recorded.position)
            if len(rows) < _PAGE:
                return None
            after = (rows[-1]["ord"], rows[-1]["key"])
        return None

    async def _facts(self, documents: Sequence[Mapping[str, Any]]) -> list[Recorded]:
        """The facts of these deliveries, in their order."""
        names = [ids.delivery_stream(document["deliveryKey"]) for document in documents]
        streams = await self._log.read_streams(names)
        return [streams[name][0] for name in names if streams[name]]

    async def _record(self, repository_id: int, user_id: int, right: Right) -> None:
        observed = PermissionObserved(
            repository_id=repository_id,
            user_id=user_id,
            source=right.source,
            permissions=right.permissions,
            position=right.position,
            at=stamp(await self._log.now()),
        )
        stream = f"permission:{repository_id}:{user_id}"
        while True:
            version = len(await self._log.read_stream(stream))
            try:
                await self._log.append(
                    AppendRequest(
                        request_id=self._new_id(),
                        premises=(Premise(stream, version),),
                        drafts=(Draft(stream=stream, event=observed),),
                        metadata=Metadata(correlation_id=stream),
                    )
                )
            except VersionConflict:
                continue
            return
