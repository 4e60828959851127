"""The runner: carries out the open intents of one claimed task until it rests, under the repository's lease.

What comes next is decided by ``domain.processes.execution``; this module only does it, and records what came of it.
Every append carries the fence. A lost lease ends the run at once: its box is killed, nothing more is written.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping

import structlog

from domain import ids, repositories
from domain.effects import EffectIntended
from domain.events import Event
from domain.failures import AWAY
from domain.faults import Fault, LeaseExpired, LeaseStale, NotFound, Unavailable
from domain.log import Fence
from domain.repositories import LeftoversParked, MirrorFetched, WorkspaceRecorded
from domain.runs import LaidOut, RunPlan
from domain.tasks import (
    AbortConfirmed,
    AbortRequested,
    BoxEnded,
    BoxStarted,
    RunInterrupted,
    Task,
    WorkspaceFoundBlocked,
)
from domain.transitions import LEASED
from domain.turns import CapabilityDowngraded
from services.bridge_ports import ToolBackend
from services.carried import Carried, concluded
from services.fallback import Fallback
from services.gitea_watch import GiteaWatch
from services.ledger import Beside, Ledger
from services.ports import EventLog, GiteaSide, Run, ToolHost
from services.replies import Verifier
from services.turn_run import TurnRun

log = structlog.get_logger(__name__)

MakeBridge = Callable[[Carried, ToolBackend], ToolHost]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """Seconds: ``lease_ttl`` of a lease, ``lease_heartbeat`` between renewals."""

    runner_id: str
    lease_ttl: float
    lease_heartbeat: float


class Runner:
    """Runs claimed tasks, one ``carry`` per task and repository."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        gitea: GiteaSide,
        verifier: Verifier,
        fallback: Fallback,
        watch: GiteaWatch,
        make_run: Callable[[RunPlan], Run],
        make_bridge: MakeBridge,
        settings: RunnerSettings,
    ) -> None:
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._verifier = verifier
        self._fallback = fallback
        self._gitea_watch = watch
        self._make_run = make_run
        self._make_bridge = make_bridge
        self._settings = settings
        self._turns = TurnRun(event_log=event_log, ledger=ledger, gitea=gitea, runner_id=settings.runner_id)
        self._draining = False
        self._carried: set[Carried] = set()
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """How many tasks are being carried."""
        return len(self._carried)

    def carried_tasks(self) -> frozenset[str]:
        """Ids of the tasks being carried."""
        return frozenset(carried.plan.task_id for carried in self._carried)

    async def drain(self) -> None:
        """Interrupt what still runs and hand it back; returns when nothing is carried."""
        self._draining = True
        for carried in list(self._carried):
            with contextlib.suppress(Fault):
                await self._turns.interrupt_requested(carried, "drain")
            await carried.run.interrupt("drain")
        while self._carried:
            await asyncio.wait([carried.ended for carried in self._carried])

    async def watch(self) -> None:
        """Interrupt what somebody asked to abort, whichever process took the request, until cancelled."""
        position = await self._log.head()
        while True:
            try:
                async for batch in self._log.tail(after=position):
                    for recorded in batch:
                        position = recorded.position
                        if recorded.type == AbortRequested.__name__:
                            await self._abort(recorded.event)
            except Unavailable:
                await asyncio.sleep(1.0)

    async def _abort(self, event: Event) -> None:
        for carried in list(self._carried):
            if isinstance(event, AbortRequested) and event.task_id == carried.plan.task_id:
                chore = asyncio.create_task(carried.run.interrupt("abort"))
                self._chores.add(chore)
                chore.add_done_callback(self._chores.discard)

    async def carry(self, task_id: str, fence: Fence) -> None:
        """Carry one task, whose lease ``fence`` proves, until it holds no lease any more."""
        bound = log.bind(task_id=task_id)
        task = await self._ledger.task(task_id)
        plan = await self._plan(task)
        run = self._make_run(plan)
        carried = Carried(
            ledger=self._ledger,
            fence=fence,
            plan=plan,
            run=run,
            task=task,
            ended=asyncio.get_running_loop().create_future(),
        )
        self._carried.add(carried)
        heart = asyncio.create_task(self._beat(carried))
        try:
            await self._steps(carried)
        except (LeaseStale, LeaseExpired) as fault:
            bound.warning("the lease is lost, the run ends", code=fault.code)
        except Unavailable as fault:
            bound.error("the database does not answer, the run ends", code=fault.code)
        finally:
            heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heart
            with contextlib.suppress(Fault, OSError):
                await carried.run.close()
            self._carried.discard(carried)
            carried.ended.set_result(None)

    async def _plan(self, task: Task) -> RunPlan:
        received = task.received
        if received is None:
            raise NotFound("there is no such task", code="task_not_found")
        rows = await self._log.read_stream(ids.repo_stream(received.repo_key))
        repository = repositories.fold(row.event for row in rows)
        if repository.registered is None:
            raise NotFound("the repository of this task is not registered", code="repository_unknown")
        number = int(received.resource["number"])
        kind = received.resource["kind"]
        base = (received.refs or {}).get("base") or repository.default_branch
        head = f"refs/pull/{number}/head" if kind == "pull_request" else f"refs/heads/{base}"
        return RunPlan(
            task_id=received.task_id,
            session_key=received.session_key,
            repo_key=received.repo_key,
            owner=repository.owner,
            name=repository.name,
            repository_id=repository.registered.repository_id,
            kind=kind,
            number=number,
            default_branch=repository.default_branch,
            base_ref=f"refs/heads/{base}",
            head_ref=head,
            unblocked=task.unblocked,
            left=task.left,
        )

    async def _beat(self, carried: Carried) -> None:
        ttl_ms = int(self._settings.lease_ttl * 1000)
        while True:
            await asyncio.sleep(self._settings.lease_heartbeat)
            try:
                await self._log.renew_lease(carried.fence, ttl_ms)
            except (LeaseStale, LeaseExpired):
                log.warning("the lease could not be renewed", task_id=carried.task.task_id)
                await carried.run.end_box()
                return
            except Unavailable:
                continue  # tried again at the next beat; the lease's own end decides

    async def _steps(self, carried: Carried) -> None:
        while carried.task.state in LEASED:
            before = carried.task.revision
            try:
                await self._step(carried)
            except (LeaseStale, LeaseExpired, Unavailable):
                raise
            except Exception as error:
                log.exception("a step failed unexpectedly", task_id=carried.task.task_id)
                await self._give_up(carried, error)
            if carried.task.revision == before:
                raise RuntimeError(f"the task stands still in {carried.task.state}")

    async def _give_up(self, carried: Carried, error: Exception) -> None:
        await carried.run.end_box()
        at = await self._ledger.at()
        open_intents = carried.task.intents_of("runner")
        if open_intents:
            await carried.conclude(
                open_intents[0], "failed", at, code="unexpected_error", error=type(error).__name__
            )
        else:
            await carried.record(
                RunInterrupted(task_id=carried.task.task_id, error_code="unexpected_error", at=at)
            )

    async def _step(self, carried: Carried) -> None:
        task = carried.task
        if self._draining and task.state == "preparing":
            left = await carried.left()
            await carried.record(
                RunInterrupted(task_id=task.task_id, error_code="drained", at=await self._ledger.at()),
                beside=left,
            )
            return
        if task.state == "aborting":
            await self._confirm_abort(carried)
            return
        if task.state == "verifying_reply" and not task.intents_of("runner"):
            observed = await self._verifier.look(task)
            await carried.record(observed)
            return
        for intent in task.intents_of("runner"):
            await self._execute(carried, intent)
            return
        raise RuntimeError(f"nothing to do in {task.state}")

    async def _confirm_abort(self, carried: Carried) -> None:
        """An abort that came before a turn: the box is killed, and the lease goes with the confirmation."""
        await carried.run.end_box()
        at = await self._ledger.at()
        facts: list[Event] = []
        if carried.task.box is not None:
            facts.append(BoxEnded(task_id=carried.plan.task_id, cause="abort", at=at))
        facts += [
            concluded(intent, "failed", at, code="aborted") for intent in carried.task.intents_of("runner")
        ]
        facts.append(AbortConfirmed(task_id=carried.plan.task_id, outcome="confirmed", at=at))
        await carried.record(*facts, beside=await carried.left())

    async def _execute(self, carried: Carried, intent: EffectIntended) -> None:
        steps = {
            "mirror.sync": self._sync_mirror,
            "workspace.checkout": self._lay_out,
            "box.start": self._start_box,
            "thread.start": self._open_thread,
            "thread.resume": self._open_thread,
            "turn.start": self._turns.run,
            "comment.create": self._post_fallback,
        }
        try:
            await steps[intent.operation](carried, intent)
        except (LeaseStale, LeaseExpired):
            raise
        except Fault as fault:
            if fault.code == "database_unavailable":
                raise
            log.warning(
                "a step failed", task_id=carried.task.task_id, operation=intent.operation, code=fault.code
            )
            if fault.code in AWAY:
                self._gitea_watch.suspect()
            await carried.run.end_box()
            at = await self._ledger.at()
            ended = [BoxEnded(task_id=intent.task_id, cause=fault.code, at=at)] if carried.task.box else []
            left = await carried.left()
            if intent.intent_id in carried.task.results:  # it was carried out; what came after it failed
                interrupted = RunInterrupted(task_id=intent.task_id, error_code=fault.code, at=at)
                await carried.record(*ended, interrupted, beside=left)
                return
            await carried.conclude(
                intent, "failed", at, code=fault.code, error=fault.message, facts=ended, beside=left
            )

    async def _sync_mirror(self, carried: Carried, intent: EffectIntended) -> None:
        await self._find_repository(carried)
        mirrored = await carried.run.sync_mirror()
        at = await self._ledger.at()
        fetched = MirrorFetched(
            repo_key=intent.target,
            task_id=intent.task_id,
            default_branch=mirrored.default_branch,
            heads=dict(mirrored.heads),
            at=at,
        )
        await carried.conclude(
            intent, "succeeded", at, beside=[Beside(stream=f"mirror:{intent.target}", event=fetched)]
        )

    async def _find_repository(self, carried: Carried) -> None:
        """Ask Gitea how the repository is called now: only its id was proved by the delivery's secret.

        A repository's administrator knows that repository's own secret and could sign a payload that gives its id
        another repository's name; renames are followed by the same question.
        """
        plan = carried.plan
        owner, name = await self._gitea.names(plan.repository_id)
        if (owner, name) != (plan.owner, plan.name):
            carried.plan = dataclasses.replace(plan, owner=owner, name=name)
            await carried.run.close()
            carried.run = self._make_run(carried.plan)

    async def _lay_out(self, carried: Carried, intent: EffectIntended) -> None:
        laid = await carried.run.lay_out()
        at = await self._ledger.at()
        if not isinstance(laid, LaidOut):
            blocked = WorkspaceFoundBlocked(task_id=intent.task_id, reasons=laid.reasons, at=at)
            await carried.conclude(intent, "failed", at, code="workspace_dirty", facts=[blocked])
            return
        carried.head, carried.behind = laid.head, laid.behind
        beside = [_recorded(intent, laid.left)]
        if laid.parked is not None:
            parked = LeftoversParked(repo_key=intent.target, task_id=intent.task_id, parked=dict(laid.parked))
            beside.insert(0, Beside(stream=f"workspace:{intent.target}", event=parked))
        await carried.conclude(intent, "succeeded", at, outside_id=laid.head, beside=beside)

    async def _start_box(self, carried: Carried, intent: EffectIntended) -> None:
        boxed = await carried.run.start_box(lambda backend: self._make_bridge(carried, backend))
        at = await self._ledger.at()
        started = BoxStarted(
            task_id=intent.task_id,
            identity=dict(boxed.identity),
            isolation=boxed.isolation,
            agent=boxed.agent,
            at=at,
        )
        await carried.conclude(intent, "succeeded", at, facts=[started])

    async def _open_thread(self, carried: Carried, intent: EffectIntended) -> None:
        wanted = intent.target if intent.operation == "thread.resume" else None
        try:
            opened = await carried.run.open_thread(wanted)
        except NotFound as fault:
            if wanted is None or fault.code != "thread_not_found":
                raise
            await carried.conclude(
                intent, "failed", await self._ledger.at(), code=fault.code, error=fault.message
            )
            return
        facts: list[Event] = [
            CapabilityDowngraded(
                task_id=intent.task_id, turn_id=None, capability="thread_settings", detail=deviation
            )
            for deviation in ("; ".join(opened.deviations),)
            if deviation
        ]
        await carried.conclude(
            intent, "succeeded", await self._ledger.at(), outside_id=opened.thread_id, facts=facts
        )

    async def _post_fallback(self, carried: Carried, intent: EffectIntended) -> None:
        sent = await self._fallback.post(carried.task, intent)
        await carried.conclude(
            intent,
            sent.status,
            await self._ledger.at(),
            code=sent.code,
            error=sent.error,
            outside_id=sent.outside_id,
        )


def _recorded(intent: EffectIntended, left: Mapping[str, object]) -> Beside:
    return Beside(
        stream=f"workspace:{intent.target}",
        event=WorkspaceRecorded(repo_key=intent.target, task_id=intent.task_id, left=dict(left)),
    )
