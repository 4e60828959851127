"""How the doctor looks at git, disk, Gitea, the log and the clocks; ``services.wiring`` hands in what it needs."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import httpx

from domain.deliveries import SignaturesRefused
from domain.faults import Fault
from domain.webhooks import Permissions, Person, Repository
from services import cli_client
from services.config import Settings
from services.doctor import BotFound, DiskFound
from services.doctor_setup import ClockFound, Delivered, History, RepositoryFound, SetupProbes, heard
from services.ports import EventLog
from services.view_store import ViewStore

ABSENT = 2**62
"""An id that nothing in Gitea has: what is written to it is refused, and the refusal tells the token's scopes."""

OpenLog = Callable[[], AbstractAsyncContextManager[tuple[EventLog, ViewStore]]]


class GiteaEyes(Protocol):
    """The bot's view of Gitea (``adapters.gitea.rest``)."""

    async def me(self) -> Person:
        """Whose token this is."""
        ...

    async def version(self) -> str:
        """Gitea's version."""
        ...

    async def repository(self, owner: str, name: str) -> Repository:
        """A repository by its name."""
        ...

    async def own_rights(self, owner: str, name: str) -> Permissions | None:
        """What the bot may do there."""
        ...

    async def edit_comment(self, owner: str, name: str, comment_id: int, body: str) -> object:
        """Change a comment."""
        ...

    async def update_hook(self, owner: str, name: str, hook_id: int, *, url: str, secret: str) -> object:
        """Change a hook."""
        ...


async def bot(settings: Settings, rest: GiteaEyes) -> BotFound:
    """Whose token this is, and Gitea's version."""
    if settings.gitea_url is None or settings.gitea_token is None:
        raise Fault("Gitea's address and the bot's token come first", code="configuration_invalid")
    version = await rest.version()
    me = await rest.me()
    return BotFound(id=me.id, login=me.login, gitea_version=version)


async def git() -> str:
    """Git's version."""
    done = await asyncio.create_subprocess_exec("git", "--version", stdout=asyncio.subprocess.PIPE)
    return (await done.communicate())[0].decode(errors="replace").strip()


async def disk(settings: Settings) -> DiskFound:
    """What is free where mirrors and workspaces are."""
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return DiskFound(free=shutil.disk_usage(settings.state_dir).free)


def setup_probes(settings: Settings, rest: GiteaEyes, open_log: OpenLog) -> SetupProbes:
    """The probes of ``services.doctor_setup``."""

    async def history() -> History:
        async with open_log() as (_, views):
            await views.prepare({})  # before its first start the service has made no tables for them
            return await _history(views)

    async def repository(owner: str, name: str) -> RepositoryFound:
        return await _repository(rest, owner, name)

    async def clocks() -> ClockFound:
        database: datetime | None = None
        try:
            async with open_log() as (event_log, _):
                database, here = await event_log.now(), datetime.now(UTC)
                return ClockFound(here=here, gitea=await _gitea_time(settings), database=database)
        except Fault:
            gitea = await _gitea_time(settings)
            return ClockFound(here=datetime.now(UTC), gitea=gitea, database=database)

    async def serving() -> bool:
        try:
            async with httpx.AsyncClient(timeout=settings.gitea_timeout, trust_env=False) as client:
                answer = await client.get(cli_client.service_url(settings) + "/healthz")
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        return answer.status_code == 200 and answer.headers.get("x-trace-id") is not None

    return SetupProbes(history=history, repository=repository, clocks=clocks, serving=serving)


async def _repository(rest: GiteaEyes, owner: str, name: str) -> RepositoryFound:
    found = await rest.repository(owner, name)
    rights = await rest.own_rights(owner, name)
    secret = "-"  # noqa: S105 - of a hook that there is not
    missing = [
        await _missing_scope(rest.edit_comment(owner, name, ABSENT, "-")),
        await _missing_scope(
            rest.update_hook(owner, name, ABSENT, url="https://turnkeeper.invalid/", secret=secret)
        ),
    ]
    return RepositoryFound(
        clone_url=found.clone_url,
        pull=rights is not None and rights.pull,
        push=rights is not None and rights.push,
        archived=found.archived,
        missing_scopes=tuple(scope for scope in missing if scope),
    )


async def _missing_scope(attempt: Awaitable[object]) -> str | None:
    """The scope for want of which this was refused; None if it was refused for another reason, as it must be."""
    try:
        await attempt
    except Fault as fault:
        if fault.code == "gitea_scope_missing":
            return str(fault.params.get("scope"))
    return None


async def _history(views: ViewStore) -> History:
    repositories = [
        row["document"] for row in await views.select("repositories", where={}, limit=100, descending=False)
    ]
    delivered = []
    for each in repositories:
        last = await views.select("deliveries", where={"repo": each["repoKey"]}, limit=1)
        document: dict[str, Any] = dict(last[0]["document"]) if last else {}
        delivered.append(
            Delivered(
                owner=each["owner"],
                name=each["name"],
                status=each["status"],
                last_at=document.get("receivedAt"),
                last_status=document.get("status"),
                last_reason=document.get("reason"),
            )
        )
    newest = await views.select("deliveries", where={}, limit=200)
    rejected = await views.select("audit", where={}, states=("webhook.reject",), limit=200)
    refused = [
        row["document"]
        for row in rejected
        if row["document"]["metadata"]["events"][0]["type"] == SignaturesRefused.__name__
    ]
    foreign = [row for row in newest if row["document"]["reason"] == "foreign_instance"]
    right = [
        row["document"]["receivedAt"] for row in newest if row["document"]["reason"] != "foreign_instance"
    ]
    return History(
        repositories=tuple(delivered),
        refused=sum(int(entry["metadata"]["count"]) for entry in refused),
        refused_at=refused[0]["timestamp"] if refused else None,
        foreign=len(foreign) if not right else 0,
        last_at=max((*right, *filter(None, [heard(delivered)])), default=None),
    )


async def _gitea_time(settings: Settings) -> datetime | None:
    """The ``Date`` of an answer of Gitea's, in whole seconds; no token is sent."""
    if settings.gitea_url is None:
        return None
    try:
        async with httpx.AsyncClient(timeout=settings.gitea_timeout, trust_env=False) as client:
            answer = await client.get(f"{settings.gitea_url}/api/v1/version")
        found = parsedate_to_datetime(answer.headers.get("Date", ""))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
