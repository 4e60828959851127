"""The only module that knows adapters: it builds a service, its stand-ins and its probes from the settings."""

import asyncio
import contextlib
import dataclasses
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import structlog
from pydantic import SecretStr

from adapters import box_identity
from adapters.box_identity import Identity
from adapters.boxes import Boxes
from adapters.codex.binary import SCRIPTED, find_agent
from adapters.codex.relay import ModelRelay
from adapters.git.mirror import Mirror
from adapters.git.workspace import Workspaces
from adapters.gitea import webhook
from adapters.gitea.comments import RepositoryComments
from adapters.gitea.mcp import GiteaMcp
from adapters.gitea.rest import GiteaRest
from adapters.postgres import embedded, migrations
from adapters.postgres.log import PostgresLog
from adapters.postgres.views import PostgresViews
from adapters.run import BoxedRun, RunTools, agent_version
from adapters.simulated import gitea_mcp
from adapters.simulated.gitea import SimulatedGitea, seed_demo, serve_simulated
from adapters.simulated.model import SimulatedModel
from domain import prompts
from domain.faults import Fault, NotFound
from domain.policy import Listed, Rules
from projections.views import VIEWS
from services import doctor_looks
from services.config import Settings
from services.demo import play
from services.doctor import DatabaseFound, IsolationFound, Probes
from services.hooks import HookHands
from services.host import Host
from services.projector import Projector
from services.recovery import Hands
from services.runner_id import runner_id
from services.service import Outside, Service
from services.story import Line, Summary
from services.telemetry import Metrics

log = structlog.get_logger(__name__)

SIMULATED = "simulated"
"""As ``TURNKEEPER_GITEA_MCP_COMMAND``: the stand-in that comes with Turnkeeper."""

DEFAULT_MODEL_URL = "https://api.openai.com/v1"


def gitea_mcp_command(settings: Settings) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The command of gitea-mcp, and what its environment needs besides Gitea's address and the token."""
    if settings.gitea_mcp_command.strip() == SIMULATED:
        root = Path(gitea_mcp.__file__).resolve().parent.parent.parent
        return (sys.executable, "-m", gitea_mcp.__name__), {"PYTHONPATH": str(root)}
    return tuple(shlex.split(settings.gitea_mcp_command)), {}


@contextlib.asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The database's address: the configured server, or the embedded one, started and migrated."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    server = await embedded.start(settings.state_dir, linger_s=settings.embedded_linger)
    try:
        await asyncio.to_thread(migrations.migrate, server.url, settings.database_schema)
        yield server.url
    finally:
        server.close()


def rules_of(settings: Settings, *, bot_id: int, bot_login: str) -> Rules:
    """The settings that decide about deliveries."""
    urls = tuple(dict.fromkeys(url for url in (settings.gitea_url, settings.public_url) if url))
    return Rules(
        bot_login=bot_login,
        bot_id=bot_id,
        gitea_urls=urls,
        repositories=settings.repositories,
        shared_account=settings.shared_account,
        trigger_policy=settings.trigger_policy,
        allow=tuple(Listed.parse(entry) for entry in settings.allow),
        other_bots=tuple(Listed.parse(entry) for entry in settings.other_bots),
        allowed_bots=tuple(Listed.parse(entry) for entry in settings.allowed_bots),
        triggers=frozenset((*settings.triggers, "edit")),
        rate_limit=settings.rate_limit,
        rate_window_s=settings.rate_limit_window,
        denial_window_s=settings.denial_receipt_interval,
        disabled_answer=settings.disabled_answer,
        locale=settings.locale,
        receipt_templates=settings.receipt_templates,
    )


async def bot_account(settings: Settings, rest: GiteaRest) -> tuple[int, str]:
    """The bot's id and login: configured, else asked of Gitea once."""
    if settings.bot_id is not None and settings.bot_login is not None:
        return settings.bot_id, settings.bot_login
    try:
        me = await rest.me()
    except Fault as fault:
        raise Fault(
            f"who the bot is could not be read from Gitea ({fault.message}): mend that, or set"
            " TURNKEEPER_BOT_LOGIN and TURNKEEPER_BOT_ID",
            code=fault.code,
        ) from None
    return settings.bot_id or me.id, settings.bot_login or me.login


async def checked_boxes(settings: Settings) -> Boxes:
    """Boxes that were tried; ``isolation_unavailable`` where bubblewrap does not work and was not waived."""
    boxes = Boxes(settings.isolation)
    check = await boxes.check()
    if not check.ok:
        raise Fault(
            f"runs can't be isolated: {check.reason} Install bubblewrap, or accept runs without isolation with"
            " TURNKEEPER_ISOLATION=none.",
            code="isolation_unavailable",
        )
    if settings.isolation == "none":
        log.warning("runs are not isolated: the agent can read and change what this service can")
    return boxes


async def log_and_views(
    settings: Settings, url: str, stack: contextlib.AsyncExitStack
) -> tuple[PostgresLog, PostgresViews]:
    """The log and its read models, which ``stack`` closes."""
    event_log = await PostgresLog.open(url, schema=settings.database_schema)
    stack.push_async_callback(event_log.close)
    views = PostgresViews(event_log.session)
    stack.push_async_callback(views.close)
    return event_log, views


@contextlib.asynccontextmanager
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    """Everything that a service is built upon, opened in order and closed in reverse."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(settings))
        await asyncio.to_thread(migrations.check, url, settings.database_schema)
        event_log, views = await log_and_views(settings, url, stack)
        token = settings.gitea_token.get_secret_value() if settings.gitea_token else ""
        gitea_url = settings.gitea_url or ""
        rest = await stack.enter_async_context(GiteaRest(gitea_url, token, timeout=settings.gitea_timeout))
        bot_id, bot_login = await bot_account(settings, rest)
        boxes = await checked_boxes(settings)
        relay = await ModelRelay.start(
            settings.model_base_url or DEFAULT_MODEL_URL,
            settings.model_api_key.get_secret_value() if settings.model_api_key else None,
        )
        stack.push_async_callback(relay.stop)
        state = settings.state_dir
        mirror = Mirror(
            state / "mirrors",
            gitea_url,
            token,
            deadline=settings.git_timeout,
            reserve=settings.disk_floor_bytes,
        )
        workspaces = Workspaces(
            settings.workspaces,
            mirror,
            boxes,
            deadline=settings.git_timeout,
            reserve=settings.disk_floor_bytes,
        )
        try:
            find_agent(settings.codex_command)
        except Fault as fault:
            log.warning(
                "every run will fail until the agent is installed", code=fault.code, reason=fault.message
            )
        mcp_command, mcp_environment = gitea_mcp_command(settings)
        tools = RunTools(
            mirror=mirror,
            workspaces=workspaces,
            boxes=boxes,
            relay=relay,
            rest=rest,
            gitea_url=gitea_url,
            gitea_token=token,
            gitea_mcp_command=mcp_command,
            gitea_mcp_environment=mcp_environment,
            bot_id=bot_id,
            agent=lambda: find_agent(settings.codex_command),
            model=settings.codex_model,
            effort=settings.codex_effort,
            developer_instructions=prompts.developer_instructions(bot_login=bot_login),
            homes=state / "codex-homes",
            bridges=state / "bridges",
            codex_login_dir=settings.codex_login_dir,
            collaboration_mode=settings.collaboration_mode,
            model_request_retries=settings.model_request_retries,
            model_stream_retries=settings.model_stream_retries,
            mcp_handshake=settings.mcp_handshake,
            rpc_timeout=settings.rpc_timeout,
            turn_stall=settings.turn_stall,
            turn_deadline=settings.turn_deadline,
            interrupt_confirm=settings.interrupt_confirm,
            box_grace=min(5.0, settings.box_timeout),
            git_deadline=settings.git_timeout,
        )
        name = runner_id(state)
        yield Outside(
            event_log=event_log,
            views=views,
            gitea=rest,
            looking=rest,
            make_run=lambda plan: BoxedRun(plan, tools),
            comments=lambda plan: RepositoryComments(
                rest, repository_id=plan.repository_id, owner=plan.owner, name=plan.name
            ),
            hands=_hands(workspaces),
            holder={"runnerId": name, "hostRef": name, **box_identity.self_identity().as_json()},
            runner_id=name,
            bot_id=bot_id,
            bot_login=bot_login,
        )


def _hands(workspaces: Workspaces) -> Hands:
    here = box_identity.self_identity()

    def identity(holder: Mapping[str, Any]) -> Identity:
        return Identity.of_json(holder)

    async def kill_box(recorded: Mapping[str, Any]) -> bool:
        found = identity(recorded)
        if found.boot_id != here.boot_id or found.pid_namespace != here.pid_namespace:
            return True  # of another boot or host: nothing of it runs here
        return await box_identity.kill_recorded(found) or box_identity.provably_dead(found)

    async def record_workspace(repo_key: str, session_key: str, task_id: str) -> Mapping[str, Any] | None:
        try:
            return dataclasses.asdict(await workspaces.record(repo_key, session_key, task_id))
        except NotFound:
            return None

    return Hands(
        provably_dead=lambda holder: box_identity.provably_dead(identity(holder)),
        kill_box=kill_box,
        record_workspace=record_workspace,
    )


def build(settings: Settings, built_on: Outside, metrics: Metrics) -> Service:
    """The service over what is open."""
    projector = Projector(built_on.event_log, built_on.views, VIEWS, metrics=metrics)
    rules = rules_of(settings, bot_id=built_on.bot_id, bot_login=built_on.bot_login)
    return Service(settings, built_on, rules, projector)


def host(settings: Settings, built_on: Outside) -> Host:
    """The service behind its HTTP surface."""
    metrics = Metrics()
    return Host(settings, build(settings, built_on, metrics), webhook, metrics)


async def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run one process until it is told to stop; ``announce`` gets its address when it is ready.

    Raises ``configuration_invalid``, ``migration_…``, ``isolation_unavailable``,
    ``database_unavailable``, ``address_in_use``.
    """
    settings.require_serve()
    async with outside(settings) as built_on:
        await host(settings, built_on).run(announce)


async def migrate(settings: Settings) -> Sequence[str]:
    """Bring the database's schema up to this version; the names of what was applied."""
    owner = settings.database_owner_url.get_secret_value() if settings.database_owner_url else None
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        return await asyncio.to_thread(migrations.migrate, url, settings.database_schema, owner_url=owner)
    server = await embedded.start(settings.state_dir, linger_s=settings.embedded_linger)
    try:
        return await asyncio.to_thread(migrations.migrate, server.url, settings.database_schema)
    finally:
        server.close()


def derived_secret(secret: str, repository_id: int) -> str:
    """The secret of one repository's own hook."""
    return webhook.derived_secret(secret, repository_id)


class _OwnersHands:
    """An owner's hands on Gitea (``services.hooks.HookHands``)."""

    def __init__(self, rest: GiteaRest, secret: str) -> None:
        self._secret = secret
        self.hooks = rest.hooks
        self.create_hook = rest.create_hook
        self.update_hook = rest.update_hook
        self._rest = rest

    async def repository_id(self, owner: str, name: str) -> int:
        """Gitea's id of a repository."""
        return (await self._rest.repository(owner, name)).id

    def derived_secret(self, repository_id: int) -> str:
        """The secret of this repository's own hook."""
        return derived_secret(self._secret, repository_id)


@contextlib.asynccontextmanager
async def hook_hands(settings: Settings, owner_token: str) -> AsyncIterator[HookHands]:
    """An owner's hands on Gitea for one command. The token is kept nowhere."""
    secret = settings.webhook_secrets[0] if settings.webhook_secrets else ""
    async with GiteaRest(settings.gitea_url or "", owner_token, timeout=settings.gitea_timeout) as rest:
        yield _OwnersHands(rest, secret)


@contextlib.asynccontextmanager
async def doctor_probes(settings: Settings) -> AsyncIterator[Probes]:
    """The doctor's probes over the real outside. Each opens what it needs and closes it again."""
    token = settings.gitea_token.get_secret_value() if settings.gitea_token else ""
    address, shown = settings.gitea_url or "http://gitea.invalid", token or "none"
    async with GiteaRest(address, shown, timeout=settings.gitea_timeout) as rest:

        async def look_at_database() -> DatabaseFound:
            async with database(settings) as url:
                await asyncio.to_thread(migrations.check, url, settings.database_schema)
                return DatabaseFound(
                    server=await asyncio.to_thread(migrations.server_version, url),
                    embedded=settings.database_url is None,
                    protection=await asyncio.to_thread(migrations.protection, url, settings.database_schema),
                )

        async def look_at_isolation() -> IsolationFound:
            check = await Boxes(settings.isolation).check()
            return IsolationFound(ok=check.ok, version=check.version, reason=check.reason)

        async def look_at_codex() -> str:
            return await agent_version(find_agent(settings.codex_command), Boxes(settings.isolation))

        async def look_at_gitea_mcp(bot_id: int) -> str:
            command, environment = gitea_mcp_command(settings)
            async with await GiteaMcp.start(
                command,
                settings.gitea_url or "",
                token,
                timeout=settings.mcp_handshake,
                environment=environment,
            ) as child:
                await child.probe(bot_id, timeout=settings.mcp_handshake)
                tools, verb = len(await child.tools()), child.dialect.create_comment
                comments = f"comments by {verb.label}" if verb else "no tool to comment"
                return f"{command[0]}: {tools} tools, {comments}, answers as the bot"

        @contextlib.asynccontextmanager
        async def open_log() -> AsyncIterator[tuple[PostgresLog, PostgresViews]]:
            async with contextlib.AsyncExitStack() as stack:
                yield await log_and_views(
                    settings, await stack.enter_async_context(database(settings)), stack
                )

        yield Probes(
            database=look_at_database,
            isolation=look_at_isolation,
            codex=look_at_codex,
            gitea_mcp=look_at_gitea_mcp,
            bot=lambda: doctor_looks.bot(settings, rest),
            git=doctor_looks.git,
            disk=lambda: doctor_looks.disk(settings),
            setup=doctor_looks.setup_probes(settings, rest, open_log),
        )


async def simulate_gitea(
    *, host: str, port: int, version: str, ready: Callable[[Mapping[str, Any]], None]
) -> None:
    """Run the stand-in Gitea until it is told to stop (SIGTERM, SIGINT)."""
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(
        serve_simulated(
            host=host,
            port=port,
            version=version,
            ready=lambda _sim, world: ready(dataclasses.asdict(world)),
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


Agent = Literal["auto", "codex", "scripted"]


async def demo(
    settings: Settings, *, agent: Agent, show: Callable[[Line], None], say: Callable[[str], None]
) -> dict[str, Any]:
    """Play the main job with stand-ins for Gitea, gitea-mcp and the model; everything else is real.

    ``say`` gets remarks (what is missing and what that means). Raises ``Fault`` ``demo_unfinished``,
    ``codex_missing``.
    """
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnkeeper-demo-")))
        sim = SimulatedGitea(root=scratch / "gitea")
        await sim.start()
        stack.push_async_callback(sim.stop)
        world = seed_demo(sim)
        model = await SimulatedModel.start()
        stack.push_async_callback(model.stop)
        command, name = _demo_agent(settings, agent, say)
        isolation = await _demo_isolation(say)
        demo_settings = Settings.load(
            {},
            state_dir=scratch / "state",
            gitea_url=sim.url,
            gitea_token=SecretStr(world.tokens[world.bot]),
            repositories=(world.repository,),
            webhook_secret=SecretStr(secrets.token_hex(16)),
            admin_token=SecretStr(secrets.token_hex(16)),
            codex_command=command,
            codex_model="stand-in-model",
            model_base_url=model.base_url,
            gitea_mcp_command=SIMULATED,
            isolation=isolation,
            locale=settings.locale,
            port=0,
            embedded_linger=0.5,
            retry_delay=1.0,
        )
        built_on = await stack.enter_async_context(outside(demo_settings))
        process = host(demo_settings, built_on)
        await process.start()
        stack.push_async_callback(process.stop)
        repository = sim.state.repo(world.repository)
        sim.state.add_hook(
            f"{process.url}/api/gitea/webhook", secret=demo_settings.webhook_secrets[0], repo=repository
        )
        owner, _, short = world.repository.partition("/")

        async def mention() -> None:
            sim.state.comment(
                world.owner, repository, world.issue, f"@{world.bot} why is the price rounded down?"
            )

        summary = Summary(agent=name, isolation=isolation)
        return await play(
            event_log=built_on.event_log,
            gitea=built_on.gitea,
            bot_id=built_on.bot_id,
            repository=(owner, short, world.issue),
            mention=mention,
            show=show,
            summary=summary,
            began=began,
        )


def _demo_agent(settings: Settings, agent: Agent, say: Callable[[str], None]) -> tuple[str, str]:
    if agent == "scripted":
        return SCRIPTED, "scripted"
    try:
        found = find_agent(settings.codex_command)
    except Fault as fault:
        if agent == "codex":
            raise
        say(
            f"{fault.message}. The scripted agent takes its place: it speaks the same protocol, in the same box,"
            " behind the same bridge, but it does not think."
        )
        return SCRIPTED, "scripted"
    return settings.codex_command, "scripted" if found.scripted else "codex"


async def _demo_isolation(say: Callable[[str], None]) -> Literal["bubblewrap", "none"]:
    check = await Boxes("bubblewrap").check()
    if check.ok:
        return "bubblewrap"
    say(
        f"{check.reason} This demo goes on without isolation: the agent could read and change whatever this user can."
        " `serve` refuses that unless TURNKEEPER_ISOLATION=none asks for it; install bubblewrap instead."
    )
    return "none"
