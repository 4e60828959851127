"""What the doctor says about the way between this service and Gitea: repositories, deliveries, addresses, clocks.

The service sees no hook itself (Gitea shows hooks to owners only): it judges them by the deliveries and the refusals
that came. Whether Gitea reaches this service can only be known by a delivery that came.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

from domain import policy
from domain.faults import Fault
from services.config import Settings
from services.doctor_check import Check, guarded

CLOCK_LIMIT_S = 5.0
"""Beyond this clocks are called apart; Gitea's own seconds are whole."""

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryFound:
    """What Gitea shows the bot of a repository. ``missing_scopes``: what its token lacks there."""

    clone_url: str
    pull: bool
    push: bool
    archived: bool = False
    missing_scopes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivered:
    """A repository that the log knows. ``last_at`` None: no delivery is remembered."""

    owner: str
    name: str
    status: str = "active"
    last_at: str | None = None
    last_status: str | None = None
    last_reason: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """What came so far. ``refused``: requests without a right signature, ``refused_at`` the last time of those.

    ``foreign``: deliveries whose clone_url lies elsewhere; ``last_at``: the last signed delivery of any repository.
    """

    repositories: tuple[Delivered, ...] = ()
    refused: int = 0
    refused_at: str | None = None
    foreign: int = 0
    last_at: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockFound:
    """Three clocks, read together as nearly as can be; None: it could not be read."""

    here: datetime
    gitea: datetime | None
    database: datetime | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetupProbes:
    """How the way to and from Gitea is looked at. All may raise a ``Fault``.

    ``serving``: whether the service answers at its own address.
    """

    history: Callable[[], Awaitable[History]]
    repository: Callable[[str, str], Awaitable[RepositoryFound]]
    clocks: Callable[[], Awaitable[ClockFound]]
    serving: Callable[[], Awaitable[bool]]


async def examine_setup(settings: Settings, probes: SetupProbes) -> list[Check]:
    """The checks of this module, in the order in which one would mend them."""
    seen: list[History] = []

    async def remember() -> Check:
        seen.append(await probes.history())
        return _deliveries(settings, seen[0])

    deliveries = await guarded("deliveries", remember, "mend the check `database` first")
    history = seen[0] if seen else History()
    wanted = _wanted(settings, history)
    repositories: list[Check] = []
    if settings.gitea_url is not None and settings.gitea_token is not None:
        for owner, name in wanted:
            repositories += await _repository(settings, probes, owner, name)
    if not wanted:
        repositories.append(
            Check(
                name="repository",
                status="ok",
                detail="none is named in TURNKEEPER_REPOSITORIES, and none was heard of yet: nothing to look at",
            )
        )
    address = await guarded(
        "address", lambda: _address(settings, probes, history), "see that the service runs"
    )
    clock = await guarded("clock", lambda: _clock(probes), _CLOCK)
    return [*repositories, deliveries, address, clock]


def _wanted(settings: Settings, history: History) -> list[tuple[str, str]]:
    """Repositories to look at: those that are named whole, and those that the log knows; at most twenty."""
    named = [tuple(each.split("/", 1)) for each in settings.repositories if _whole(each)]
    known = [(each.owner, each.name) for each in history.repositories]
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for owner, name in (*named, *known):
        found.setdefault((owner.lower(), name.lower()), (owner, name))
    return list(found.values())[:20]


def _whole(pattern: str) -> bool:
    return pattern.count("/") == 1 and not set(pattern) & set("*?[")


async def _repository(settings: Settings, probes: SetupProbes, owner: str, name: str) -> list[Check]:
    title = f"repository {owner}/{name}"
    invite = f"add the bot's account to {owner}/{name} as a collaborator who may write"
    try:
        found = await probes.repository(owner, name)
    except Fault as fault:
        cure = invite if fault.code == "gitea_not_found" else cure_of(fault, invite)
        return [Check(name=title, status="fail", detail=fault.message, cure=cure)]
    checks = []
    if found.missing_scopes:
        scopes = ", ".join(found.missing_scopes)
        checks.append(
            Check(
                name=title,
                status="fail",
                detail=f"the token lacks the scope {scopes}",
                cure=f"make a token of the bot's account that also has {scopes}",
            )
        )
    if not found.pull:
        checks.append(Check(name=title, status="fail", detail="the bot may not read it", cure=invite))
    elif not found.push:
        checks.append(
            Check(
                name=title,
                status="warn",
                detail="the bot may read and comment, but not push: publish_branch will fail",
                cure=invite,
            )
        )
    if found.archived:
        checks.append(
            Check(
                name=title,
                status="warn",
                detail="it is archived: nothing can be answered there",
                cure="unarchive it, or take it out of TURNKEEPER_REPOSITORIES",
            )
        )
    urls = tuple(url for url in (settings.gitea_url, settings.public_url) if url)
    if not policy.native(urls, found.clone_url):
        place = urlsplit(found.clone_url)
        base = f"{place.scheme}://{place.netloc.rpartition('@')[2]}"
        checks.append(
            Check(
                name=title,
                status="fail",
                detail=f"Gitea calls itself {base}, which is not configured: its deliveries are foreign_instance",
                cure=f"set TURNKEEPER_GITEA_PUBLIC_URL={base}",
            )
        )
    return checks or [Check(name=title, status="ok", detail="the bot may read and write it")]


def _deliveries(settings: Settings, history: History) -> Check:
    silent = _silent(settings, history)
    requests = "1 request" if history.refused == 1 else f"{history.refused} requests"
    refused = f"{requests} without a right signature (the last {history.refused_at})"
    amend = "give Gitea's hook the secret that `turnkeeper hooks install` shows, or TURNKEEPER_WEBHOOK_SECRET"
    if history.refused and (history.last_at is None or (history.refused_at or "") > history.last_at):
        since = (
            "none was ever right" if history.last_at is None else f"the last right one came {history.last_at}"
        )
        return Check(name="deliveries", status="fail", detail=f"{refused}; {since}", cure=amend)
    if history.foreign:
        return Check(
            name="deliveries",
            status="warn",
            detail=f"{history.foreign} deliveries named a Gitea that is not configured (foreign_instance)",
            cure="set TURNKEEPER_GITEA_PUBLIC_URL to the address by which Gitea calls itself",
        )
    if history.last_at is None or silent:
        who = ", ".join(silent) or "any repository"
        example = silent[0] if silent else "OWNER/REPO"
        return Check(
            name="deliveries",
            status="warn",
            detail=f"no delivery ever came from {who}: there is no hook, or Gitea cannot reach this service",
            cure=f"run `turnkeeper hooks install {example}`, then Gitea's test button"
            " (and see ALLOWED_HOST_LIST in Gitea's [webhook] settings)",
        )
    told = "; ".join(
        f"{each.owner}/{each.name} last {each.last_at} ({each.last_reason or each.last_status})"
        for each in history.repositories[:5]
    )
    if history.refused:
        return Check(name="deliveries", status="warn", detail=f"{told}; {refused}", cure=amend)
    return Check(name="deliveries", status="ok", detail=told or f"the last came {history.last_at}")


def _silent(settings: Settings, history: History) -> list[str]:
    heard = {f"{each.owner}/{each.name}".lower() for each in history.repositories if each.last_at}
    return [each for each in settings.repositories if _whole(each) and each.lower() not in heard]


async def _address(settings: Settings, probes: SetupProbes, history: History) -> Check:
    serving = await probes.serving()
    gitea = urlsplit(settings.gitea_url or "").hostname or ""
    if settings.host in LOOPBACK and gitea not in LOOPBACK and history.last_at is None:
        return Check(
            name="address",
            status="warn",
            detail=f"the service listens on {settings.host} only, and Gitea is on another host ({gitea})",
            cure="set TURNKEEPER_HOST to an address that Gitea reaches, or put a proxy before the service",
        )
    if not serving:
        return Check(
            name="address",
            status="warn",
            detail=f"nothing answers on port {settings.port}: the service is not running",
            cure="start `turnkeeper serve`, or set TURNKEEPER_HOST and TURNKEEPER_PORT as it has them",
        )
    reached = f"Gitea reached it {history.last_at}" if history.last_at else "Gitea has not reached it yet"
    return Check(
        name="address", status="ok", detail=f"the service answers on port {settings.port}; {reached}"
    )


_CLOCK = "set this host, the database's and Gitea's by NTP"


async def _clock(probes: SetupProbes) -> Check:
    found = await probes.clocks()
    apart: list[str] = []
    known: list[str] = []
    for whose, moment in (("Gitea's", found.gitea), ("the database's", found.database)):
        if moment is None:
            continue
        seconds = (moment - found.here).total_seconds()
        known.append(whose)
        if abs(seconds) > CLOCK_LIMIT_S:
            apart.append(
                f"{whose} clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} ours"
            )
    if apart:
        return Check(name="clock", status="warn", detail="; ".join(apart), cure=_CLOCK)
    if not known:
        return Check(name="clock", status="warn", detail="no other clock could be read", cure=_CLOCK)
    return Check(name="clock", status="ok", detail=f"{' and '.join(known)} clock agree with ours")


def cure_of(fault: Fault, otherwise: str) -> str:
    """What to do about a fault of Gitea's."""
    match fault.code:
        case "gitea_token_invalid":
            return "make a new access token of the bot's account, and set TURNKEEPER_GITEA_TOKEN to it"
        case "gitea_scope_missing":
            return f"make a token of the bot's account that also has {fault.params.get('scope')}"
        case "gitea_unavailable":
            return "start Gitea, or set TURNKEEPER_GITEA_URL to an address at which this host reaches it"
        case "gitea_redirected":
            return "set TURNKEEPER_GITEA_URL to the address that Gitea redirects to"
        case _:
            return otherwise


def heard(repositories: Sequence[Delivered]) -> str | None:
    """When the last delivery of any of these came."""
    return max((each.last_at for each in repositories if each.last_at), default=None)
