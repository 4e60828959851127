"""The ports: what the services need of the outside, as protocols. ``services.wiring`` fills them."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from domain.log import AppendRequest, Appended, Fence, LeaseRow, QueueRow, Recorded


class EventLog(Protocol):
    """The append-only log, with its leases, its queue and its erasable contents (see ``domain.log``)."""

    async def append(self, request: AppendRequest) -> Appended:
        """Commit ``request`` whole, or raise and change nothing.

        Raises ``VersionConflict``, ``LeaseStale``, ``LeaseExpired``, ``LeaseHeld``, or ``Unavailable`` when the
        database does not answer (the caller must not claim that anything was stored).
        """
        ...

    async def read_stream(self, stream: str, *, after: int = 0) -> Sequence[Recorded]:
        """All events of one stream after version ``after``, in order."""
        ...

    async def read_streams(self, streams: Iterable[str]) -> Mapping[str, Sequence[Recorded]]:
        """Several whole streams as of one moment; an absent one is empty."""
        ...

    async def read(self, *, after: int, limit: int) -> Sequence[Recorded]:
        """At most ``limit`` events after position ``after``, in order of position."""
        ...

    def tail(self, *, after: int, limit: int = 500) -> AsyncIterator[Sequence[Recorded]]:
        """Batches of events after position ``after``, for ever; waits where there is nothing. Misses nothing."""
        ...

    async def head(self) -> int:
        """The last position, 0 for an empty log."""
        ...

    async def now(self) -> datetime:
        """The database's clock, aware, UTC."""
        ...

    async def contents(self, ids: Iterable[str]) -> Mapping[str, str]:
        """Texts by content id; an erased one is absent."""
        ...

    async def renew_lease(self, fence: Fence, ttl_ms: int) -> datetime:
        """Prolong an unexpired lease and return its new end; ``LeaseStale`` or ``LeaseExpired`` else."""
        ...

    async def lease(self, scope: str) -> LeaseRow | None:
        """The lease row of a scope, None if it was never taken."""
        ...

    async def leases(self) -> Sequence[LeaseRow]:
        """All leases that somebody holds, expired ones too."""
        ...

    async def candidates(self, *, limit: int) -> Sequence[QueueRow]:
        """Tasks that may be claimed: per repository without a running lease, its first available task.

        A waiting task whose ``available_at`` lies ahead holds back only younger tasks of its own session.
        Ordered by position, read without locks.
        """
        ...

    async def next_available(self) -> datetime | None:
        """When the next waiting task becomes available, None if none waits for a time."""
        ...
