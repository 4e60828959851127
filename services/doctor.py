"""The doctor: what this machine and its settings lack, as data, with the cure beside it.

Probes are handed in (``services.wiring`` fills them); each raises a ``Fault`` for what it finds wanting. Nothing that
a check says holds a secret.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Literal

from services.config import Settings, unknown_variables
from services.doctor_check import Check, Status, guarded
from services.doctor_setup import SetupProbes, cure_of, examine_setup


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseFound:
    """``server``: its version; ``embedded`` or given; what keeps the log append-only."""

    server: str
    embedded: bool
    protection: Literal["role+trigger", "trigger"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsolationFound:
    """``reason``: why boxes do not work, in one sentence."""

    ok: bool
    version: str
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BotFound:
    """Whose token it is."""

    id: int
    login: str
    gitea_version: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiskFound:
    """Bytes free where mirrors and workspaces are."""

    free: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probes:
    """How each thing is looked at. All may raise ``Fault``; texts are versions or descriptions.

    ``database``: reaches it, checks the migrations, raises ``migration_…`` where they do not fit. ``codex``: the
    version of the configured app-server. ``gitea_mcp``: a handshake and a who-am-I call that must name the bot's id.
    ``setup``: how the way to and from Gitea is looked at; without it these checks are not made.
    """

    database: Callable[[], Awaitable[DatabaseFound]]
    isolation: Callable[[], Awaitable[IsolationFound]]
    codex: Callable[[], Awaitable[str]]
    gitea_mcp: Callable[[int], Awaitable[str]]
    bot: Callable[[], Awaitable[BotFound]]
    git: Callable[[], Awaitable[str]]
    disk: Callable[[], Awaitable[DiskFound]]
    setup: SetupProbes | None = None


async def examine(settings: Settings, probes: Probes) -> list[Check]:
    """All checks, in the order in which one would mend them. Never raises for what it finds."""
    bot = await _bot(settings, probes)
    return [
        *configuration(settings),
        await guarded("database", lambda: _database(probes), _DATABASE),
        await _isolation(settings, probes),
        await guarded("git", lambda: _text("git", probes.git), "install git and put it on the path"),
        await guarded("codex", lambda: _text("codex", probes.codex), _CODEX),
        bot[0],
        await _gitea_mcp(settings, probes, bot[1]),
        *(await examine_setup(settings, probes.setup) if probes.setup is not None else ()),
        await guarded("disk", lambda: _disk(settings, probes), "free some space"),
    ]


def worst(checks: list[Check]) -> Status:
    """The worst status among the checks."""
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def configuration(settings: Settings) -> list[Check]:
    """What is missing or contradictory, each as a check of its own; one ``ok`` where nothing is."""
    checks = [
        Check(name="configuration", status="fail", detail=problem.sentence, cure="set it, then try again")
        for problem in settings.problems()
    ]
    checks += [
        Check(
            name="configuration",
            status="warn",
            detail=f"{name} means nothing to this service",
            cure="see `turnkeeper config --explain` for the names",
        )
        for name in unknown_variables()
    ]
    return checks or [Check(name="configuration", status="ok", detail="complete")]


_DATABASE = "run `turnkeeper migrate`, or correct DATABASE_URL"
_CODEX = "install codex 0.130 or newer (npm install -g @openai/codex), or set TURNKEEPER_CODEX_COMMAND"
_MCP = "install gitea-mcp (https://gitea.com/gitea/gitea-mcp), or set TURNKEEPER_GITEA_MCP_COMMAND"
_TOKEN = "give the bot's own access token with the scopes write:issue, write:repository, read:user"  # noqa: S105 - a sentence


async def _text(name: str, probe: Callable[[], Awaitable[str]]) -> Check:
    return Check(name=name, status="ok", detail=await probe())


async def _database(probes: Probes) -> Check:
    found = await probes.database()
    kind = "embedded" if found.embedded else "given"
    if found.protection == "role+trigger":
        detail = f"PostgreSQL {found.server} ({kind}); the log is append-only by privilege and by trigger"
        return Check(name="database", status="ok", detail=detail)
    return Check(
        name="database",
        status="warn",
        detail=f"PostgreSQL {found.server} ({kind}); the log is append-only by trigger alone",
        cure="let the database's user create roles, or give an owner's address for migrations",
    )


async def _isolation(settings: Settings, probes: Probes) -> Check:
    if settings.isolation == "none":
        return Check(
            name="isolation",
            status="warn",
            detail="runs are not isolated: the agent can read and change whatever this service can",
            cure="install bubblewrap and take TURNKEEPER_ISOLATION=none away",
        )

    async def look() -> Check:
        found = await probes.isolation()
        if found.ok:
            return Check(name="isolation", status="ok", detail=f"bubblewrap {found.version} starts boxes")
        return Check(name="isolation", status="fail", detail=found.reason, cure=_BUBBLEWRAP)

    return await guarded("isolation", look, _BUBBLEWRAP)


_BUBBLEWRAP = "install bubblewrap and allow unprivileged user namespaces, or accept TURNKEEPER_ISOLATION=none"


async def _bot(settings: Settings, probes: Probes) -> tuple[Check, int | None]:
    if settings.gitea_url is None or settings.gitea_token is None:
        return Check(
            name="gitea", status="fail", detail="no Gitea and no token to ask with", cure=_TOKEN
        ), None
    seen: list[BotFound] = []

    async def look() -> Check:
        found = await probes.bot()
        seen.append(found)
        wrong_id = settings.bot_id is not None and settings.bot_id != found.id
        wrong_login = settings.bot_login is not None and settings.bot_login.lower() != found.login.lower()
        if wrong_id or wrong_login:
            return Check(
                name="gitea",
                status="fail",
                detail=f"the token belongs to {found.login} (id {found.id}), who is not the configured bot",
                cure="correct TURNKEEPER_BOT_LOGIN and TURNKEEPER_BOT_ID, or the token",
            )
        version = f"Gitea {found.gitea_version}; " if found.gitea_version else ""
        owned = [each for each in settings.repositories if each.lower().startswith(f"{found.login.lower()}/")]
        if owned and not settings.shared_account:
            return Check(
                name="gitea",
                status="warn",
                detail=f"{version}the token is that of {found.login} (id {found.id}), who owns {owned[0]}:"
                " what a bot's account says itself is ignored, so its mentions there do nothing",
                cure="make a dedicated account for the bot, or set TURNKEEPER_SHARED_ACCOUNT",
            )
        return Check(
            name="gitea", status="ok", detail=f"{version}the token is that of {found.login} (id {found.id})"
        )

    check = await guarded("gitea", look, lambda fault: cure_of(fault, _TOKEN))
    return check, seen[0].id if seen else settings.bot_id


async def _gitea_mcp(settings: Settings, probes: Probes, bot_id: int | None) -> Check:
    if settings.gitea_url is None or settings.gitea_token is None or bot_id is None:
        return Check(
            name="gitea-mcp",
            status="warn",
            detail="not tried: who the bot is, is not known",
            cure="mend the check `gitea` first",
        )
    return await guarded("gitea-mcp", lambda: _text("gitea-mcp", lambda: probes.gitea_mcp(bot_id)), _MCP)


async def _disk(settings: Settings, probes: Probes) -> Check:
    found = await probes.disk()
    free = f"{found.free / 2**30:.1f} GiB free"
    if found.free < settings.disk_floor_bytes:
        cure = "free some space, or lower TURNKEEPER_DISK_FLOOR_BYTES"
        return Check(name="disk", status="fail", detail=f"{free}: too little for a run to start", cure=cure)
    return Check(name="disk", status="ok", detail=free)
