"""The log in memory: the same promises as ``adapters.postgres.log``, under the same conformance suite.

For the simulator and for tests of everything above the log. Nothing survives the process. The clock can be moved.
"""

import asyncio
import bisect
import dataclasses
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from adapters.append import Prepared, prepare, refusal, token_hash
from domain.faults import Fault
from domain.ids import lease_scope
from domain.log import (
    AcquireLease,
    Appended,
    AppendRequest,
    Content,
    EndLease,
    Fence,
    LeaseRow,
    QueuePut,
    QueueRow,
    Recorded,
)


class Clock:
    """Real time plus a shift, or a time that stands still until it is moved."""

    def __init__(self, frozen: datetime | None = None) -> None:
        self._frozen = frozen
        self._shift = timedelta()

    def __call__(self) -> datetime:
        """The time, aware, UTC."""
        return (self._frozen or datetime.now(UTC)) + self._shift

    def advance(self, by: timedelta) -> None:
        """Move the clock (backwards, if ``by`` is negative)."""
        self._shift += by


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Lease:
    row: LeaseRow
    hash: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Waiting:
    task: str
    repo: str
    session: str
    place: tuple[int, int]
    available_at: datetime | None


class MemoryLog:
    """``services.ports.EventLog`` in memory. ``clock`` answers aware UTC datetimes."""

    def __init__(self, *, clock: Callable[[], datetime] | None = None, log_id: str | None = None) -> None:
        self.log_id = log_id or str(uuid4())
        self._clock = clock or Clock()
        self._events: list[Recorded] = []
        self._requests: list[object] = []
        self._streams: dict[str, list[Recorded]] = {}
        self._contents: dict[str, Content] = {}
        self._leases: dict[str, _Lease] = {}
        self._queue: dict[str, _Waiting] = {}
        self._grown = asyncio.Event()
        self._closed = False

    async def close(self) -> None:
        """Take nothing more."""
        self._closed = True

    async def append(self, request: AppendRequest) -> Appended:
        """Commit ``request`` whole, or raise and change nothing. ``ValueError`` for one that no log can take."""
        prepared = prepare(request, self.log_id)
        if self._closed:
            raise Fault("the log is closed", code="log_closed")
        await asyncio.sleep(0)  # a caller must not rely on being alone until the answer
        return self._commit(prepared)

    def _commit(self, prepared: Prepared) -> Appended:
        request = prepared.request
        last = self._events[-1].recorded_at if self._events else None
        now = self._clock()
        now = now if last is None else max(now, last)
        code = self._refused(prepared, now)
        if code is not None:
            before = self._replayed(prepared)
            if before is not None:
                return before
            raise refusal(code)
        base = len(self._events)
        for position, event in enumerate(prepared.events, base + 1):
            recorded = Recorded(
                position,
                event.stream,
                event.version,
                event.type,
                event.schema,
                event.body,
                event.metadata,
                now,
            )
            self._events.append(recorded)
            self._requests.append(request.request_id)
            self._streams.setdefault(event.stream, []).append(recorded)
        self._change_leases(request, now)
        self._change_queue(prepared, base + 1, now)
        for content in prepared.contents:
            self._contents[content.id] = content
        if prepared.events:
            grown, self._grown = self._grown, asyncio.Event()
            grown.set()
        return Appended(first=base + 1, last=len(self._events), recorded_at=now)

    def _refused(self, prepared: Prepared, now: datetime) -> str | None:
        """Why the request cannot be appended; of several reasons the first in the order of ``append_v1``."""
        request = prepared.request
        fences = [self._fence(fence, now) for fence in request.fences]
        operations = [self._operation(request, operation, now) for operation in request.leases]
        ends = [code for code, acquire in operations if not acquire]
        found = {
            *fences,
            *ends,
            *(code for code, acquire in operations if acquire),
            *(
                "version_conflict"
                for stream, version in prepared.premises.items()
                if self._version(stream) != version
            ),
            *("content_conflict" for content in prepared.contents if self._differs(content)),
        }
        order = ("lease_stale", "lease_expired", "version_conflict", "lease_held", "content_conflict")
        return next((code for code in order if code in found), None)

    def _version(self, stream: str) -> int:
        events = self._streams.get(stream)
        return events[-1].version if events else 0

    def _fence(self, fence: Fence, now: datetime) -> str | None:
        lease = self._leases.get(fence.scope)
        if lease is None or lease.row.epoch != fence.epoch or lease.hash != token_hash(fence.token):
            return "lease_stale"
        ends = lease.row.expires_at
        return "lease_expired" if ends is None or ends <= now else None

    def _operation(
        self, request: AppendRequest, operation: AcquireLease | EndLease, now: datetime
    ) -> tuple[str | None, bool]:
        lease = self._leases.get(operation.scope)
        ends = lease.row.expires_at if lease else None
        running = ends is not None and ends > now
        if isinstance(operation, EndLease):
            if lease is None or lease.row.epoch != operation.epoch or ends is None:
                return "lease_stale", False
            own = any(
                fence.scope == operation.scope and fence.epoch == operation.epoch for fence in request.fences
            )
            return ("lease_held" if running and not operation.force and not own else None), False
        if (lease.row.epoch if lease else 0) + 1 != operation.epoch:
            return "lease_held", True
        ended = any(
            isinstance(other, EndLease) and other.scope == operation.scope for other in request.leases
        )
        return ("lease_held" if running and not ended else None), True

    def _differs(self, content: Content) -> bool:
        before = self._contents.get(content.id)
        same = before is None or (before.text == content.text and before.salt == content.salt)
        return not content.replace and not same

    def _replayed(self, prepared: Prepared) -> Appended | None:
        for event in prepared.events:
            for recorded in self._streams.get(event.stream, ()):
                same = self._requests[recorded.position - 1] == prepared.request.request_id
                if recorded.version == event.version and same:
                    return Appended(
                        first=recorded.position,
                        last=recorded.position + len(prepared.events) - 1,
                        recorded_at=recorded.recorded_at,
                    )
        return None

    def _change_leases(self, request: AppendRequest, now: datetime) -> None:
        for operation in request.leases:
            if isinstance(operation, EndLease):
                lease = self._leases[operation.scope]
                ended = dataclasses.replace(lease.row, expires_at=None)
                self._leases[operation.scope] = _Lease(row=ended, hash=lease.hash)
                continue
            row = LeaseRow(
                scope=operation.scope,
                epoch=operation.epoch,
                lease_id=operation.lease_id,
                holder=dict(operation.holder),
                expires_at=now + timedelta(milliseconds=operation.ttl_ms),
            )
            self._leases[operation.scope] = _Lease(row=row, hash=operation.token_hash)

    def _change_queue(self, prepared: Prepared, first: int, now: datetime) -> None:
        for ordinal, operation in enumerate(prepared.queue):
            before = self._queue.get(operation.task)
            if isinstance(operation, QueuePut):
                self._queue[operation.task] = _Waiting(
                    task=operation.task,
                    repo=operation.repo,
                    session=operation.session,
                    place=before.place if before else (first, ordinal),
                    available_at=operation.available_at or now,
                )
            elif before is not None:
                self._queue[operation.task] = dataclasses.replace(before, available_at=None)

    async def read_stream(self, stream: str, *, after: int = 0) -> Sequence[Recorded]:
        """All events of one stream after version ``after``, in order."""
        return [recorded for recorded in self._streams.get(stream, ()) if recorded.version > after]

    async def read_streams(self, streams: Iterable[str]) -> Mapping[str, Sequence[Recorded]]:
        """Several whole streams as of one moment; an absent one is empty."""
        return {stream: list(self._streams.get(stream, ())) for stream in streams}

    async def read(self, *, after: int, limit: int) -> Sequence[Recorded]:
        """At most ``limit`` events after position ``after``, in order of position."""
        start = bisect.bisect_right(self._events, after, key=lambda recorded: recorded.position)
        return self._events[start : start + limit]

    async def tail(self, *, after: int, limit: int = 500) -> AsyncGenerator[Sequence[Recorded], None]:
        """Batches of events after position ``after``, for ever."""
        while True:
            grown = self._grown
            batch = await self.read(after=after, limit=limit)
            if batch:
                yield batch
                after = batch[-1].position
            else:
                await grown.wait()

    async def head(self) -> int:
        """The last position, 0 for an empty log."""
        return len(self._events)

    async def now(self) -> datetime:
        """The log's clock, aware, UTC."""
        return self._clock()

    async def contents(self, ids: Iterable[str]) -> Mapping[str, str]:
        """Texts by content id; an erased one is absent."""
        return {content_id: content.text for content_id, content in (await self.salted_contents(ids)).items()}

    async def salted_contents(self, ids: Iterable[str]) -> Mapping[str, Content]:
        """Texts with their salts, to check the digests that stand in events."""
        found = (self._contents.get(content_id) for content_id in ids)
        return {c.id: Content(id=c.id, text=c.text, salt=c.salt) for c in found if c is not None}

    async def erase_contents(self, ids: Iterable[str]) -> None:
        """Take texts and salts away for good. The caller appends the event that says so."""
        for content_id in ids:
            self._contents.pop(content_id, None)

    async def renew_lease(self, fence: Fence, ttl_ms: int) -> datetime:
        """Prolong an unexpired lease and return its new end; ``LeaseStale`` or ``LeaseExpired`` else."""
        now = self._clock()
        code = self._fence(fence, now)
        if code is not None:
            raise refusal(code)
        lease = self._leases[fence.scope]
        until = max(lease.row.expires_at or now, now + timedelta(milliseconds=ttl_ms))
        self._leases[fence.scope] = _Lease(
            row=dataclasses.replace(lease.row, expires_at=until), hash=lease.hash
        )
        return until

    async def lease(self, scope: str) -> LeaseRow | None:
        """The lease row of a scope, None if it was never taken."""
        lease = self._leases.get(scope)
        return lease.row if lease else None

    async def leases(self) -> Sequence[LeaseRow]:
        """All leases that somebody holds, expired ones too, by scope."""
        rows = (lease.row for _, lease in sorted(self._leases.items()))
        return [row for row in rows if row.expires_at is not None]

    async def candidates(self, *, limit: int) -> Sequence[QueueRow]:
        """Tasks that may be claimed, in order of position (see ``services.ports.EventLog``)."""
        now = self._clock()
        by_place = sorted(
            (task for task in self._queue.values() if task.available_at is not None),
            key=lambda task: (task.repo, task.place),
        )
        found: list[_Waiting] = []
        for repo, tasks in itertools.groupby(by_place, key=lambda task: task.repo):
            if self._running(lease_scope(repo), now):
                continue
            held_back: set[str] = set()
            for task in tasks:
                if task.available_at is not None and task.available_at > now:
                    held_back.add(task.session)
                elif task.session not in held_back:
                    found.append(task)
                    break
        found.sort(key=lambda task: task.place)
        return [
            QueueRow(
                task=task.task,
                repo=task.repo,
                session=task.session,
                position=task.place[0],
                available_at=task.available_at or now,
            )
            for task in found[:limit]
        ]

    def _running(self, scope: str, now: datetime) -> bool:
        lease = self._leases.get(scope)
        return lease is not None and lease.row.expires_at is not None and lease.row.expires_at > now

    async def next_available(self) -> datetime | None:
        """When the next waiting task becomes available, None if none waits for a time."""
        now = self._clock()
        times = (task.available_at for task in self._queue.values() if task.available_at is not None)
        return min((time for time in times if time > now), default=None)
