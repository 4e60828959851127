"""The service: every loop of one process, started and stopped in order. It knows ports only.

Order at start: views, receipts, recovery, claims. Order at stop: no more claims; runs go on until the drain deadline,
then they are interrupted and handed back; then the loops end.
"""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import structlog

from domain import contents
from domain.bridge_policy import Scope
from domain.control import ConfigurationActivated
from domain.faults import Unavailable
from domain.log import AppendRequest, Draft, Metadata, Premise
from domain.policy import Rules
from domain.processes import endings
from domain.publications import Signature, branch_of, noreply
from domain.runs import RunPlan
from services.admissions import Admissions
from services.bridge import Bridge
from services.bridge_ledger import RunLedger
from services.bridge_ports import (
    ActiveTurn,
    BridgeRun,
    BridgeSettings,
    Comments,
    Publisher,
    Publishing,
    ToolBackend,
)
from services.carried import Carried
from services.config import Settings
from services.fallback import Fallback
from services.gitea_watch import GiteaWatch
from services.intake import Intake, Refusals
from services.ledger import Ledger
from services.patience import append_patiently
from services.ports import EventLog, GiteaSide, Run
from services.projector import Projector
from services.receipts import Receipts, ReceiptSettings
from services.reconciler import GRACE_S, Reconciler
from services.recovery import Hands, Recovery
from services.replies import Verifier, VerifierSettings
from services.rights import Looking, Rights
from services.runner import Runner, RunnerSettings
from services.scheduler import Scheduler, SchedulerSettings
from services.timers import Timers
from services.view_store import ViewStore

log = structlog.get_logger(__name__)

_CONFIGURATION = "configuration:default"
START_WITHIN_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside:
    """What a service is built upon; ``services.wiring`` fills it with adapters."""

    event_log: EventLog
    views: ViewStore
    gitea: GiteaSide
    looking: Looking
    make_run: Callable[[RunPlan], Run]
    comments: Callable[[RunPlan], Comments]
    hands: Hands
    holder: Mapping[str, Any]
    runner_id: str
    bot_id: int
    bot_login: str


class Service:
    """All roles of one process."""

    def __init__(self, settings: Settings, outside: Outside, rules: Rules, projector: Projector) -> None:
        self.settings = settings
        self.outside = outside
        self.rules = rules
        self.projector = projector
        self.ready = False
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None
        event_log, runner_id = outside.event_log, outside.runner_id
        self.ledger = Ledger(
            event_log,
            rules=endings.Rules(
                retry_delay_s=settings.retry_delay,
                away_pause_s=settings.gitea_away_pause,
                away_limit_s=settings.gitea_away_limit,
                locale=settings.locale,
            ),
            runner_id=runner_id,
            new_id=uuid.uuid4,
        )
        self.intake = Intake(event_log, lambda: self.rules, runner_id=runner_id)
        self.refusals = Refusals(event_log)
        self.watch = GiteaWatch(gitea=outside.gitea, ledger=self.ledger, pause=settings.gitea_away_pause)
        verifier = Verifier(
            event_log=event_log,
            ledger=self.ledger,
            gitea=outside.gitea,
            watch=self.watch,
            settings=VerifierSettings(
                bot_id=outside.bot_id,
                grace=settings.reply_grace,
                unknown_limit=settings.reply_unknown_limit,
                pause=settings.poll,
            ),
        )
        self.runner = Runner(
            event_log=event_log,
            ledger=self.ledger,
            gitea=outside.gitea,
            verifier=verifier,
            fallback=Fallback(
                event_log=event_log,
                gitea=outside.gitea,
                secrets=settings.secrets(),
                limit=settings.comment_limit,
            ),
            watch=self.watch,
            make_run=outside.make_run,
            make_bridge=self._bridge,
            settings=RunnerSettings(
                runner_id=runner_id,
                lease_ttl=settings.lease_ttl,
                lease_heartbeat=settings.lease_heartbeat,
            ),
        )
        self.scheduler = Scheduler(
            event_log=event_log,
            ledger=self.ledger,
            gitea=outside.gitea,
            watch=self.watch,
            runner=self.runner,
            settings=SchedulerSettings(
                runner_id=runner_id,
                holder=outside.holder,
                lease_ttl=settings.lease_ttl,
                poll=settings.poll,
            ),
            new_id=uuid.uuid4,
        )
        self.recovery = Recovery(
            event_log=event_log,
            ledger=self.ledger,
            hands=outside.hands,
            runner_id=runner_id,
            carried=self.runner.carried_tasks,
            interval=settings.lease_heartbeat,
        )
        self.receipts = Receipts(
            event_log=event_log,
            ledger=self.ledger,
            gitea=outside.gitea,
            watch=self.watch,
            open_receipts=self.open_receipts,
            rules=lambda: self.rules,
            settings=ReceiptSettings(
                bot_id=outside.bot_id,
                locale=settings.locale,
                templates=settings.receipt_templates,
                grace=settings.reply_grace,
            ),
        )

        rights = Rights(
            event_log=event_log,
            views=outside.views,
            gitea=outside.looking,
            caught_up=self.caught_up,
            allow_age=settings.allow_age,
        )
        self.admissions = Admissions(
            event_log=event_log,
            views=outside.views,
            gitea=outside.looking,
            watch=self.watch,
            intake=self.intake,
            rights=rights,
            rules=lambda: self.rules,
            bot_id=outside.bot_id,
            caught_up=self.caught_up,
        )
        self.reconciler = Reconciler(
            event_log=event_log,
            views=outside.views,
            gitea=outside.looking,
            watch=self.watch,
            admissions=self.admissions,
            rights=rights,
            rules=lambda: self.rules,
            bot_id=outside.bot_id,
            caught_up=self.caught_up,
            interval=settings.reconcile_interval,
            grace=min(GRACE_S, settings.reconcile_interval),
        )
        self.timers = Timers(
            event_log=event_log,
            views=outside.views,
            ledger=self.ledger,
            waiting_timeout=settings.waiting_timeout,
            interval=min(60.0, settings.waiting_timeout),
        )

    async def start(self) -> None:
        """Start every loop. Ready when it returns."""
        await self._activate_configuration()
        await self._start_views()
        loops = (
            self.receipts.run,
            self.recovery.run,
            self.refusals.run,
            self.runner.watch,
            self.watch.run,
            self.timers.run,
            self.admissions.run,
            self.reconciler.run,
        )
        self._loops = [asyncio.create_task(self._kept(loop)) for loop in loops]
        self._claiming = asyncio.create_task(self._kept(self.scheduler.run))
        self.ready = True

    async def stop(self) -> None:
        """Stop claiming, let runs end until the drain deadline, interrupt the rest, end the loops."""
        self.ready = False
        loops, self._loops = self._loops, []
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        if self.runner.running:
            log.info(
                "waiting for runs to end", runs=self.runner.running, deadline=self.settings.drain_deadline
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.drain_deadline):
                    await self.scheduler.finish()
        await self.runner.drain()
        await self.scheduler.finish()
        with contextlib.suppress(Exception):
            await self.refusals.flush()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self.projector.close()

    async def caught_up(self) -> None:
        """Return when the views have seen what the log holds now."""
        await self.projector.wait_for(await self.outside.event_log.head(), 60.0)

    async def open_receipts(self) -> Sequence[tuple[str, str]]:
        """Receipts without a result, oldest first, as the caught-up view knows them."""
        await self.caught_up()
        rows = await self.outside.views.select(
            "intents", where={"state": "open"}, limit=10_000, descending=False
        )
        return [
            (row["document"]["stream"], row["document"]["intentId"])
            for row in rows
            if row["document"]["executor"] == "receipts"
        ]

    async def _kept(self, loop: Callable[[], Awaitable[None]]) -> None:
        """A loop that never ends by an error: it is logged and started again."""
        while True:
            try:
                await loop()
            except Exception:
                log.exception("a loop failed; it is started again", loop=getattr(loop, "__qualname__", "?"))
                await asyncio.sleep(self.settings.poll)

    async def _start_views(self) -> None:
        """Another process that was stopped in mid-batch may hold them: the database ends its session in a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_WITHIN_S
        while True:
            try:
                await self.projector.start()
            except Unavailable as fault:
                if loop.time() > end:
                    raise
                log.warning("the read models are held by another process; waiting", code=fault.code)
                await asyncio.sleep(self.settings.poll)
            else:
                return

    async def _activate_configuration(self) -> None:
        event_log = self.outside.event_log
        rows = await event_log.read_stream(_CONFIGURATION)
        active = ConfigurationActivated(
            hash=self.settings.public_hash(),
            values=self.settings.public_values(),
            rules_version=self.rules.rules_version,
            runner_id=self.outside.runner_id,
        )
        last = rows[-1].event if rows else None
        if isinstance(last, ConfigurationActivated) and last.hash == active.hash:
            return
        await append_patiently(
            event_log,
            AppendRequest(
                request_id=uuid.uuid4(),
                premises=(Premise(_CONFIGURATION, len(rows)),),
                drafts=(Draft(stream=_CONFIGURATION, event=active),),
                metadata=Metadata(runner_id=self.outside.runner_id),
            ),
        )

    def _bridge(self, carried: Carried, backend: ToolBackend) -> Bridge:
        settings, outside, plan = self.settings, self.outside, carried.plan

        def active_turn() -> ActiveTurn | None:
            if carried.active_turn_id is None:
                return None
            return ActiveTurn(
                turn_id=carried.active_turn_id,
                codex_turn_id=carried.codex_turn_id,
                thread_id=carried.task.thread_id,
            )

        return Bridge(
            run=BridgeRun(
                task_id=plan.task_id,
                scope=Scope(owner=plan.owner, repo=plan.name, policy=settings.bridge_policy),
                number=plan.number,
                bot_id=outside.bot_id,
                bot_login=outside.bot_login,
                secrets=settings.secrets(),
            ),
            backend=backend,
            ledger=RunLedger(carried),
            comments=outside.comments(plan),
            active_turn=active_turn,
            settings=BridgeSettings(
                comment_limit=settings.comment_limit, call_timeout_s=settings.mcp_timeout
            ),
            publishing=self._publishing(carried),
        )

    def _publishing(self, carried: Carried) -> Publishing | None:
        """How the run's commits leave: to the branch of its task, with whoever asked as co-author."""
        settings, run, received = self.settings, carried.run, carried.task.received
        if not isinstance(run, Publisher) or received is None:
            return None
        host = urlsplit(settings.public_url).hostname or "localhost"
        login = contents.login_id(received.author_id)

        async def requester() -> Signature | None:
            name = (await self.outside.event_log.contents([login])).get(login)
            return noreply(name, host) if name else None

        return Publishing(
            publisher=run,
            branch=branch_of(settings.branch_pattern, carried.plan.task_id),
            committer=noreply(self.outside.bot_login, host),
            requester=requester,
            max_bytes=settings.publish_bytes,
        )
