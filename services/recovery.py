"""Recovery: what a dead process left is taken up again, at start and continuously (seed §5.5).

A lease whose holder is provably dead, or that ran out, belongs to nobody. Whoever finds it kills the recorded box,
records what the workspace holds, concludes the open intents as unknown, and hands the task back in one append.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import structlog

from domain import ids, leases
from domain.effects import EffectConcluded
from domain.events import Event
from domain.faults import Conflict, Fault
from domain.leases import LeaseEnded
from domain.log import EndLease, LeaseRow
from domain.repositories import WorkspaceRecorded
from domain.tasks import BoxEnded, RunInterrupted, Task
from domain.transitions import LEASED
from services.ledger import Beside, Ledger
from services.ports import EventLog

log = structlog.get_logger(__name__)

_REPOSITORY_SCOPE = "repo:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hands:
    """What recovery does outside: each must be done before the lease changes hands.

    ``provably_dead(holder)``: the holder was a process of this host and boot, and is gone.
    ``kill_box(identity)``: kill the recorded box if it is of this host and still there; True when it is dead.
    ``record_workspace(repo_key, session_key, task_id)``: what the workspace holds now, None if there is none.
    """

    provably_dead: Callable[[Mapping[str, Any]], bool]
    kill_box: Callable[[Mapping[str, Any]], Awaitable[bool]]
    record_workspace: Callable[[str, str, str], Awaitable[Mapping[str, Any] | None]]


class Recovery:
    """Finds abandoned leases. ``carried`` tells which tasks this process carries itself."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        hands: Hands,
        runner_id: str,
        carried: Callable[[], frozenset[str]],
        interval: float,
    ) -> None:
        self._log = event_log
        self._ledger = ledger
        self._hands = hands
        self._runner_id = runner_id
        self._carried = carried
        self._interval = interval

    async def run(self) -> None:
        """Look once at start, then every ``interval`` seconds, until cancelled."""
        while True:
            try:
                await self.sweep()
            except Fault as fault:
                log.error("recovery could not look at the leases", code=fault.code)
            except Exception:
                log.exception("recovery failed; it goes on")
            await asyncio.sleep(self._interval)

    async def sweep(self) -> int:
        """Take up everything that was abandoned; how many tasks."""
        taken = 0
        now = await self._log.now()
        for row in await self._log.leases():
            if not row.scope.startswith(_REPOSITORY_SCOPE) or row.expires_at is None:
                continue
            dead = self._hands.provably_dead(row.holder)
            if not dead and row.expires_at > now:
                continue
            try:
                taken += await self._take_up(row, "holder_dead" if dead else "expired")
            except Conflict as lost:
                log.info("another process was faster", scope=row.scope, code=lost.code)
        return taken

    async def _take_up(self, row: LeaseRow, cause: Literal["expired", "holder_dead"]) -> int:
        stream = ids.lease_stream(row.scope)
        lease = leases.fold(event.event for event in await self._log.read_stream(stream))
        if lease.task_id is None or lease.epoch != row.epoch:
            return 0
        if lease.task_id in self._carried():
            return 0  # our own run notices that its lease is lost, and ends its box itself
        task = await self._ledger.task(lease.task_id)
        beside = await self._left(task)
        if beside is None:
            return 0
        ended = LeaseEnded(
            scope=row.scope, epoch=row.epoch, lease_id=row.lease_id, cause=cause, task_id=task.task_id
        )
        at = await self._ledger.at()
        await self._ledger.record(
            task.task_id,
            self._facts(task, at),
            beside=[Beside(stream=stream, event=ended), *beside],
            end=EndLease(scope=row.scope, epoch=row.epoch, force=cause == "holder_dead"),
            only_if=lambda found: found.state in LEASED and found.epoch == row.epoch,
        )
        log.warning("took up what a dead run left", task_id=task.task_id, cause=cause, state=task.state)
        return 1

    async def _left(self, task: Task) -> list[Beside] | None:
        """The former box killed, and what it left recorded; None if it can't be proved dead."""
        received = task.received
        if received is None:
            return []
        if task.box is not None and not await self._hands.kill_box(task.box.identity):
            log.error("the former box can't be ended", task_id=task.task_id)
            return None
        left = None
        if task.runner_id == self._runner_id and any(
            result.operation == "workspace.checkout" for result in task.results.values()
        ):
            try:
                left = await self._hands.record_workspace(
                    received.repo_key, received.session_key, received.task_id
                )
            except Fault as fault:
                log.warning("the workspace could not be recorded", task_id=task.task_id, code=fault.code)
        if left is None:
            return []
        recorded = WorkspaceRecorded(repo_key=received.repo_key, task_id=received.task_id, left=dict(left))
        return [Beside(stream=f"workspace:{received.repo_key}", event=recorded)]

    def _facts(self, task: Task, at: str) -> list[Event]:
        facts: list[Event] = [
            EffectConcluded(
                intent_id=intent.intent_id,
                operation=intent.operation,
                task_id=task.task_id,
                status="unknown",
                at=at,
                error_code="interrupted_by_restart",
                reconciled=True,
            )
            for intent in task.open_intents
            if intent.executor in ("runner", "bridge")
        ]
        if task.box is not None:
            facts.append(BoxEnded(task_id=task.task_id, cause="interrupted_by_restart", at=at))
        interrupted = RunInterrupted(task_id=task.task_id, error_code="interrupted_by_restart", at=at)
        return [interrupted, *facts]
