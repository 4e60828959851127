"""The scheduler: claims waiting tasks, one per repository, and hands them to the runner.

A claim is an ordinary append: candidates are read without locks, the domain decides, and whoever loses the race for
a lease takes the next. Nothing is claimed while paused, in a disabled or blocked repository, or for a session whose
thread lives on another host.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal
from uuid import UUID

import structlog

from domain import control, ids, leases, repositories, sessions
from domain.failures import AWAY
from domain.faults import Conflict, Fault, Unavailable
from domain.leases import LeaseAcquired
from domain.log import AcquireLease, Fence, Premise, QueueRow
from domain.tasks import Task, TaskClaimed, TriggerObserved
from domain.transitions import WAITING
from services.gitea_watch import GiteaWatch
from services.ledger import Beside, Ledger
from services.ports import EventLog, GiteaSide
from services.runner import Runner

log = structlog.get_logger(__name__)

_CANDIDATES = 100
_CONTROL = "control:default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """``holder``: how this process can be recognised (host reference, boot id, pid namespace, pid, start time).

    Seconds: ``lease_ttl``; ``poll``: how often the queue is looked at when no notice came.
    """

    runner_id: str
    holder: Mapping[str, Any]
    lease_ttl: float
    poll: float = 1.0


class Scheduler:
    """Claims and hands over until it is told to stop."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        gitea: GiteaSide,
        watch: GiteaWatch,
        runner: Runner,
        settings: SchedulerSettings,
        new_id: Callable[[], UUID],
    ) -> None:
        self._wake = asyncio.Event()
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._gitea_watch = watch
        watch.on_back(self.wake)
        self._runner = runner
        self._settings = settings
        self._new_id = new_id
        self._runs: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, str] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        """Why the tasks that were looked at last were not claimed, by task id."""
        return dict(self._waiting)

    async def run(self) -> None:
        """Claim until cancelled. Errors are logged and the loop goes on."""
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                self._wake.clear()
                try:
                    await self.tick()
                    pause = await self._pause()
                except Fault as fault:
                    log.error("the queue could not be read", code=fault.code)
                    pause = self._settings.poll
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def finish(self) -> None:
        """Wait until every run that was handed over has ended."""
        if self._runs:
            await asyncio.wait(self._runs)

    def wake(self) -> None:
        """Look at the queue now."""
        self._wake.set()

    async def _watch(self) -> None:
        """Any event may make something claimable: look again."""
        while True:
            try:
                async for _ in self._log.tail(after=await self._log.head()):
                    self._wake.set()
            except Unavailable:
                await asyncio.sleep(self._settings.poll)

    async def _pause(self) -> float:
        """Seconds until a waiting task becomes due, at most a minute: a lost notice costs no more."""
        due = await self._log.next_available()
        if due is None:
            return 60.0
        return min(60.0, max(0.01, (due - await self._log.now()).total_seconds()))

    async def tick(self) -> int:
        """Look at the queue once; how many tasks were claimed."""
        rows = await self._log.read_stream(_CONTROL)
        if self._gitea_watch.away or control.fold(row.event for row in rows).paused:
            return 0
        claimed = 0
        self._waiting = {}
        for row in await self._log.candidates(limit=_CANDIDATES):
            try:
                fence = await self.claim(row)
            except Conflict as lost:
                self._waiting[row.task] = lost.code
                continue
            if fence is None:
                continue
            claimed += 1
            run = asyncio.create_task(self._carry(row.task, fence))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)
        return claimed

    async def _carry(self, task_id: str, fence: Fence) -> None:
        try:
            await self._runner.carry(task_id, fence)
        except Exception:
            log.exception("a run ended unexpectedly; its lease will expire", task_id=task_id)
        finally:
            self._wake.set()

    async def claim(self, row: QueueRow) -> Fence | None:
        """Claim one task. None: not now, and ``waiting`` says why. A lost race is a ``Conflict``."""
        scope = ids.lease_scope(row.repo)
        lease_stream = ids.lease_stream(scope)
        names = [
            ids.repo_stream(row.repo),
            ids.session_stream(row.session),
            lease_stream,
            _CONTROL,
            f"workspace:{row.repo}",
        ]
        seen = await self._log.read_streams(names)
        task = await self._ledger.task(row.task)
        session = sessions.fold(event.event for event in seen[ids.session_stream(row.session)])
        repository = repositories.fold(event.event for event in seen[ids.repo_stream(row.repo)])
        workspace = repositories.fold_workspace(event.event for event in seen[f"workspace:{row.repo}"])
        lease = leases.fold(event.event for event in seen[lease_stream])
        why = self._why_not(task, session, repository, lease)
        if why is not None:
            self._waiting[row.task] = why
            return None
        if task.state == "queued" and not await self._still_asked(task, repository):
            return None
        token = secrets.token_bytes(32)
        epoch = lease.epoch + 1
        lease_id = str(self._new_id())
        ttl_ms = int(self._settings.lease_ttl * 1000)
        acquired = LeaseAcquired(
            scope=scope,
            epoch=epoch,
            lease_id=lease_id,
            holder=dict(self._settings.holder),
            ttl_ms=ttl_ms,
            task_id=row.task,
        )
        claimed = TaskClaimed(
            task_id=row.task,
            runner_id=self._settings.runner_id,
            lease_id=lease_id,
            epoch=epoch,
            thread_id=session.thread_id,
            left=dict(workspace.left) if workspace.left else None,
            at=await self._ledger.at(),
        )
        recorded = await self._ledger.record(
            row.task,
            [claimed],
            beside=[Beside(stream=lease_stream, event=acquired)],
            acquire=AcquireLease(
                scope=scope,
                epoch=epoch,
                lease_id=lease_id,
                holder=self._settings.holder,
                token_hash=hashlib.sha256(token).digest(),
                ttl_ms=ttl_ms,
            ),
            premises=[Premise(name, len(seen[name])) for name in names],
            only_if=lambda found: found.state in WAITING,
        )
        if recorded is None:
            return None
        log.info("claimed", task_id=row.task, repo=row.repo, epoch=epoch)
        return Fence(scope=scope, epoch=epoch, token=token)

    def _why_not(
        self,
        task: Task,
        session: sessions.Session,
        repository: repositories.Repository,
        lease: leases.Lease,
    ) -> str | None:
        if task.state not in WAITING:
            return "not_waiting"
        if lease.task_id is not None:
            return "lease_abandoned"  # recovery takes up that run first, and kills its box
        if repository.status == "disabled":
            return "repository_disabled"
        if repository.status == "blocked" and repository.blocked_by != task.task_id:
            return "repository_blocked"
        if session.thread_runner not in (None, self._settings.runner_id):
            return "thread_elsewhere"
        return None

    async def _still_asked(self, task: Task, repository: repositories.Repository) -> bool:
        """Read the comment again: gone or another's, the task is cancelled; another text changes nothing."""
        received = task.received
        if received is None or received.comment_id is None:
            return True
        try:
            comment = await self._gitea.comment(repository.owner, repository.name, received.comment_id)
        except Fault as fault:
            log.warning("the comment could not be read again", task_id=task.task_id, code=fault.code)
            if fault.code not in AWAY:
                return True
            self._gitea_watch.suspect()
            self._waiting[task.task_id] = fault.code
            return False
        at = await self._ledger.at()
        outcome: Literal["gone", "mismatch"]
        if comment is None:
            outcome = "gone"
        elif comment.author_id != received.trigger.get("author_id", received.author_id):
            log.error("the comment has another author than was signed", task_id=task.task_id)
            outcome = "mismatch"
        else:
            return True
        await self._ledger.record(
            task.task_id,
            [TriggerObserved(task_id=task.task_id, outcome=outcome, at=at)],
            only_if=lambda found: found.state == "queued",
        )
        return False
