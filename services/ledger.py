"""The ledger: facts of a task in, facts and all they entail appended in one request.

Everything that touches a task's stream after intake goes through here: the runner, the bridge, the receipts, the
scheduler, recovery. A lost race reads again and decides again; a lost lease changes nothing and is raised.
"""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from domain import ids, leases, tasks
from domain.events import Event
from domain.faults import NotFound, VersionConflict
from domain.leases import LeaseEnded
from domain.log import AcquireLease, AppendRequest, Content, Draft, EndLease, Fence, Metadata, Premise
from domain.processes import endings, execution
from domain.tasks import Task
from domain.transitions import LEASED
from services.patience import append_patiently
from services.ports import EventLog

_TRIES = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """A draft for another stream of the same append; its premise is the stream's version when it was read."""

    stream: str
    event: Event


class Ledger:
    """Appends to task streams. ``new_id`` draws request ids."""

    def __init__(
        self, log: EventLog, *, rules: endings.Rules, runner_id: str, new_id: Callable[[], UUID]
    ) -> None:
        self._log = log
        self._rules = rules
        self._runner_id = runner_id
        self._new_id = new_id

    async def task(self, task_id: str) -> Task:
        """The task as its stream stands; ``NotFound`` if there is none."""
        recorded = await self._log.read_stream(ids.task_stream(task_id))
        task = tasks.fold(row.event for row in recorded)
        if task.received is None:
            raise NotFound("there is no such task", code="task_not_found", params={"taskId": task_id})
        return task

    async def at(self) -> str:
        """The database's time, ISO 8601 in UTC with ``Z``."""
        return stamp(await self._log.now())

    async def record(
        self,
        task_id: str,
        facts: Sequence[Event],
        *,
        fence: Fence | None = None,
        beside: Sequence[Beside] = (),
        acquire: AcquireLease | None = None,
        end: EndLease | None = None,
        premises: Sequence[Premise] = (),
        contents: Sequence[Content] = (),
        actor: str = "system",
        only_if: Callable[[Task], bool] | None = None,
    ) -> Task | None:
        """Append ``facts`` and what follows from them; the task afterwards.

        ``beside``: drafts of other streams in the same append. With a ``fence``, the lease ends in the same append
        as soon as the task reaches a state that holds none. ``only_if``: decided on the task as read; if it says no,
        nothing is appended and None is returned. ``premises`` are the caller's own: their conflict is raised.
        Raises ``LeaseStale`` and ``LeaseExpired`` (nothing was changed), ``LeaseHeld``, ``Unavailable``.
        """
        stream = ids.task_stream(task_id)
        own = {premise.stream for premise in premises}
        for attempt in range(_TRIES):
            names = [stream, *(item.stream for item in beside), *([_lease_stream(fence)] if fence else [])]
            seen = await self._log.read_streams([name for name in dict.fromkeys(names) if name not in own])
            rows = seen[stream]
            task = tasks.fold(row.event for row in rows)
            if task.received is None:
                raise NotFound("there is no such task", code="task_not_found", params={"taskId": task_id})
            if only_if is not None and not only_if(task):
                return None
            followed = execution.follow(task, len(rows), facts, self._rules)
            drafts = [Draft(stream=item.stream, event=item.event) for item in beside]
            drafts.extend(followed.drafts)
            ends = [end] if end else []
            if fence and not end and followed.task.state not in LEASED:
                lease = leases.fold(row.event for row in seen[_lease_stream(fence)])
                drafts.append(Draft(stream=_lease_stream(fence), event=_released(fence, lease, task_id)))
                ends.append(EndLease(scope=fence.scope, epoch=fence.epoch))
            written = {draft.stream for draft in drafts} - set(seen) - own
            seen_more = await self._log.read_streams(written) if written else {}
            request = AppendRequest(
                request_id=self._new_id(),
                premises=(
                    *premises,
                    *(Premise(name, len(events)) for name, events in {**seen, **seen_more}.items()),
                ),
                drafts=tuple(drafts),
                metadata=Metadata(actor=actor, correlation_id=task_id, runner_id=self._runner_id),
                fences=(fence,) if fence else (),
                leases=(*([acquire] if acquire else []), *ends),
                queue=followed.queue,
                contents=tuple(contents),
            )
            try:
                await append_patiently(self._log, request)
            except VersionConflict:
                if premises or attempt == _TRIES - 1:
                    raise
                continue
            return followed.task
        raise AssertionError("unreachable")

    async def note(self, stream: str, event: Event, *, correlation: str) -> None:
        """Append one event to another stream than a task's; a lost race reads again."""
        for _ in range(_TRIES):
            rows = await self._log.read_stream(stream)
            try:
                await self._log.append(
                    AppendRequest(
                        request_id=self._new_id(),
                        premises=(Premise(stream, len(rows)),),
                        drafts=(Draft(stream=stream, event=event),),
                        metadata=Metadata(correlation_id=correlation, runner_id=self._runner_id),
                    )
                )
            except VersionConflict:
                continue
            return
        raise VersionConflict("the stream is written by too many at once")


def stamp(moment: datetime) -> str:
    """A moment as ISO 8601 in UTC with ``Z`` and milliseconds."""
    text = moment.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _lease_stream(fence: Fence) -> str:
    return ids.lease_stream(fence.scope)


def _released(fence: Fence, lease: leases.Lease, task_id: str) -> LeaseEnded:
    return LeaseEnded(
        scope=fence.scope,
        epoch=fence.epoch,
        lease_id=lease.lease_id or "",
        cause="released",
        task_id=task_id,
    )
