"""The reconciler: comments whose delivery was missed are found by listing, and taken in (gitea-workflow, Missed).

Gitea does not send a delivery twice. At the start and every interval, each active repository's comments that were
updated since the last known one are listed, all pages of them. What a delivery told of already, what was there before
the repository was registered, and our own comments are skipped; a missed mention is decided like any other deferred
one, as ``origin: reconciled``, by the right of its own author.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import structlog

from domain import ids, policy, repositories
from domain.deliveries import CommentsReconciled
from domain.failures import AWAY
from domain.faults import Fault, VersionConflict
from domain.gitea import RepositoryComment
from domain.log import AppendRequest, Draft, Metadata, Premise
from domain.mentions import find_mention
from domain.policy import Rules
from domain.processes.intake_deferred import Found, comment_part
from domain.repositories import RepositoryRegistered
from domain.webhooks import Refs, Repository, Resource
from services.admissions import Admissions
from services.gitea_watch import GiteaWatch
from services.ports import EventLog
from services.rights import Looking, Rights
from services.view_store import ViewStore

log = structlog.get_logger(__name__)

_PAGE = 500
GRACE_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """A registered repository: since when its comments count, and what they were looked through up to."""

    repo_key: str
    repository_id: int
    registered_at: datetime
    since: str
    version: int


class Reconciler:
    """``interval``, ``grace`` in seconds: younger comments than ``grace`` are left to their delivery."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        views: ViewStore,
        gitea: Looking,
        watch: GiteaWatch,
        admissions: Admissions,
        rights: Rights,
        rules: Callable[[], Rules],
        bot_id: int,
        caught_up: Callable[[], Awaitable[None]],
        interval: float,
        grace: float = GRACE_S,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._log = event_log
        self._views = views
        self._gitea = gitea
        self._watch = watch
        self._admissions = admissions
        self._rights = rights
        self._rules = rules
        self._bot_id = bot_id
        self._caught_up = caught_up
        self._interval = interval
        self._grace = grace
        self._new_id = new_id

    async def run(self) -> None:
        """Look at the start and every ``interval`` seconds, until cancelled; wait while Gitea is away."""
        while True:
            try:
                await self.look()
            except Fault as fault:
                log.warning("missed comments could not be looked for", code=fault.code)
                if fault.code in AWAY:
                    self._watch.suspect()
                    if not await self._watch.reachable():
                        await self._watch.wait_back()
                        continue
            await asyncio.sleep(self._interval)

    async def look(self) -> int:
        """Look through every active repository; how many mentions were taken in.

        What one repository refuses does not keep the others; raises if Gitea itself is away, or the database.
        """
        await self._caught_up()
        taken = 0
        for repo_key in await self._active():
            try:
                taken += await self._look_at(repo_key)
            except Fault as fault:
                if fault.status == 503 and not (fault.code in AWAY and await self._watch.reachable()):
                    raise
                log.warning("a repository's comments could not be listed", repoKey=repo_key, code=fault.code)
            except Exception:
                log.exception("a repository's comments could not be looked through", repoKey=repo_key)
        return taken

    async def _active(self) -> list[str]:
        found: list[str] = []
        after: tuple[int, str] | None = None
        while True:
            rows = await self._views.select(
                "repositories", where={}, limit=_PAGE, after=after, descending=False
            )
            found.extend(
                row["document"]["repoKey"] for row in rows if row["document"]["status"] != "disabled"
            )
            if len(rows) < _PAGE:
                return found
            after = (rows[-1]["ord"], rows[-1]["key"])

    async def _look_at(self, repo_key: str) -> int:
        known = await self._known(repo_key)
        if known is None:
            return 0
        rules = self._rules()
        repository = await self._gitea.repository_by_id(known.repository_id)
        if not policy.serves(rules.repositories, repository.owner, repository.name):
            return 0
        settled = await self._log.now() - timedelta(seconds=self._grace)
        comments = [
            each
            async for each in self._gitea.repo_comments(repository.owner, repository.name, since=known.since)
            if datetime.fromisoformat(each.comment.updated_at) <= settled
        ]
        taken = 0
        places: dict[int, tuple[Resource, Refs | None]] = {}
        for each in sorted(comments, key=lambda one: (one.comment.created_at, one.comment.id)):
            taken += await self._take_in(each, repository, known, rules, places)
        until = max(
            (each.comment.updated_at for each in comments), key=datetime.fromisoformat, default=known.since
        )
        if datetime.fromisoformat(until) > datetime.fromisoformat(known.since):
            await self._record(known, until, listed=len(comments), taken=taken)
        return taken

    async def _take_in(
        self,
        listed: RepositoryComment,
        repository: Repository,
        known: _Known,
        rules: Rules,
        places: dict[int, tuple[Resource, Refs | None]],
    ) -> int:
        """Take a missed mention in; 0 for what is none, was decided before, or was there before us."""
        comment = listed.comment
        if comment.author_id == self._bot_id and not rules.shared_account:
            return 0
        if datetime.fromisoformat(comment.created_at) < known.registered_at:
            return 0
        if find_mention(comment.body, rules.bot_login) is None:
            return 0
        told = await self._rights.known(repository.id, comment.id, comment.body)
        if told == "same":
            return 0
        changed = told == "other" or comment.updated_at != comment.created_at
        ident = str(comment.id)
        if changed:  # another text than the one that was decided under the plain key, if any was
            ident = f"{comment.id}.{datetime.fromisoformat(comment.updated_at).timestamp():.0f}"
        if await self._log.read_stream(ids.delivery_stream(ids.deferred_key("comment", ident))):
            return 0
        resource, refs = await self._place(listed, repository, places)
        answer = await self._admissions.admit(
            Found(
                repository=repository,
                resource=resource,
                refs=refs,
                part=comment_part(comment),
                ident=ident,
                origin="reconciled",
                unexplained=changed,
            )
        )
        log.info(
            "a missed mention was taken in",
            repoKey=known.repo_key,
            commentId=comment.id,
            status=answer.status,
            reason=answer.reason,
            taskId=answer.task_id,
        )
        return 1

    async def _place(
        self,
        listed: RepositoryComment,
        repository: Repository,
        places: dict[int, tuple[Resource, Refs | None]],
    ) -> tuple[Resource, Refs | None]:
        """The issue or pull request of a comment, asked for once."""
        number = listed.number
        if number not in places:
            if listed.kind == "pull_request":
                pull = await self._gitea.pull(repository.owner, repository.name, number)
                places[number] = pull.resource, pull.refs
            else:
                places[number] = await self._gitea.issue(repository.owner, repository.name, number), None
        return places[number]

    async def _known(self, repo_key: str) -> _Known | None:
        stream, memory = ids.repo_stream(repo_key), _memory(repo_key)
        rows: Mapping[str, Sequence[Any]] = await self._log.read_streams([stream, memory])
        first = next((row for row in rows[stream] if isinstance(row.event, RepositoryRegistered)), None)
        if first is None or repositories.fold(row.event for row in rows[stream]).disabled:
            return None
        last = rows[memory][-1].event if rows[memory] else None
        registered_at = first.recorded_at.replace(microsecond=0)  # Gitea counts whole seconds
        since = last.until if isinstance(last, CommentsReconciled) else registered_at.isoformat()
        return _Known(
            repo_key=repo_key,
            repository_id=first.event.repository_id,
            registered_at=registered_at,
            since=since.replace("+00:00", "Z"),
            version=len(rows[memory]),
        )

    async def _record(self, known: _Known, until: str, *, listed: int, taken: int) -> None:
        stream = _memory(known.repo_key)
        done = CommentsReconciled(repo_key=known.repo_key, until=until, listed=listed, taken=taken)
        request = AppendRequest(
            request_id=self._new_id(),
            premises=(Premise(stream, known.version),),
            drafts=(Draft(stream=stream, event=done),),
            metadata=Metadata(correlation_id=stream),
        )
        try:
            await self._log.append(request)
        except VersionConflict:
            log.info("another process looked through these comments too", repoKey=known.repo_key)


def _memory(repo_key: str) -> str:
    return f"reconcile:{repo_key}"
