"""The log on PostgreSQL: ``services.ports.EventLog`` over ``append_v1`` (architecture, The log)."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import psycopg
import structlog

from adapters.append import prepare, refusal, token_hash
from adapters.postgres.connections import (
    Connection,
    Pool,
    Session,
    checked_schema,
    checked_url,
    connect,
    translated,
)
from adapters.postgres.statements import statements
from adapters.postgres.tail import POLL_S, Tail
from adapters.postgres.writer import Writer
from domain.faults import Fault, Unavailable
from domain.log import Appended, AppendRequest, Content, Fence, LeaseRow, QueueRow, Recorded

log = structlog.get_logger(__name__)


class PostgresLog:
    """One process's access to a log. Make it with ``open``; it needs a migrated schema (``migrations.check``).

    Connections: one for appends, one for lease renewals (neither a long append nor a queue of them may cost a lease),
    one that listens once somebody tails, and up to four for reads, all made on first use.
    """

    def __init__(self, session: Session, log_id: str, channel: str) -> None:
        self.log_id = log_id
        self.session = session
        self._pool = Pool(session)
        self._tail = Tail(_named(session, "tail"), channel)
        self._writer = Writer(_named(session, "append"), self._tail.advance)
        self._renewals = Pool(_named(session, "renew"), size=1)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str = "turnkeeper",
        application_name: str = "turnkeeper",
        lock_timeout_ms: int = 10_000,
    ) -> Self:
        """Open the log at ``url``.

        Raises ``Unavailable`` (``database_unavailable``) if the database does not answer, ``Fault``
        (``migration_missing``) if the schema holds no log.
        """
        session = Session(
            url=checked_url(url),
            schema=checked_schema(schema),
            application_name=application_name,
            lock_timeout_ms=lock_timeout_ms,
        )
        connection = await connect(session)
        try:
            log_id, role, channel = await _identity(connection)
        finally:
            await connection.close()
        return cls(dataclasses.replace(session, role=role), log_id, channel)

    async def close(self) -> None:
        """Commit what waits, then close every connection."""
        await self._writer.close()
        await self._tail.close()
        await self._renewals.close()
        await self._pool.close()

    async def append(self, request: AppendRequest) -> Appended:
        """Commit ``request`` whole, or raise and change nothing. ``ValueError`` for one that no log can take."""
        return await self._writer.submit(prepare(request, self.log_id))

    async def read_stream(self, stream: str, *, after: int = 0) -> Sequence[Recorded]:
        """All events of one stream after version ``after``, in order."""
        rows = await self._fetch("read_stream", stream=stream, after=after)
        return [Recorded(*row) for row in rows]

    async def read_streams(self, streams: Iterable[str]) -> Mapping[str, Sequence[Recorded]]:
        """Several whole streams as of one moment; an absent one is empty."""
        found: dict[str, list[Recorded]] = {stream: [] for stream in streams}
        for row in await self._fetch("read_streams", streams=list(found)):
            found[row[1]].append(Recorded(*row))
        return found

    async def read(self, *, after: int, limit: int) -> Sequence[Recorded]:
        """At most ``limit`` events after position ``after``, in order of position."""
        rows = await self._fetch("read", after=after, limit=limit)
        return [Recorded(*row) for row in rows]

    async def tail(self, *, after: int, limit: int = 500) -> AsyncGenerator[Sequence[Recorded], None]:
        """Batches of events after position ``after``, for ever. Goes on when the database comes back."""
        while True:
            try:
                batch = await self.read(after=after, limit=limit)
            except Unavailable:
                log.warning("tail_waits_for_database")
                await asyncio.sleep(POLL_S / 4)
                continue
            if batch:
                yield batch
                after = batch[-1].position
            if len(batch) < limit:
                await self._tail.wait(after)

    async def head(self) -> int:
        """The last position, 0 for an empty log."""
        position: int = (await self._fetch("head"))[0][0]
        return position

    async def now(self) -> datetime:
        """The database's clock, aware, UTC."""
        now: datetime = (await self._fetch("now"))[0][0]
        return now

    async def contents(self, ids: Iterable[str]) -> Mapping[str, str]:
        """Texts by content id; an erased one is absent."""
        return {content_id: content.text for content_id, content in (await self.salted_contents(ids)).items()}

    async def salted_contents(self, ids: Iterable[str]) -> Mapping[str, Content]:
        """Texts with their salts, to check the digests that stand in events."""
        return {
            content_id: Content(id=content_id, text=text.decode("utf-8", "surrogatepass"), salt=salt)
            for content_id, text, salt in await self._fetch("contents", ids=list(ids))
        }

    async def erase_contents(self, ids: Iterable[str]) -> None:
        """Take texts and salts away for good. The caller appends the event that says so."""
        await self._fetch("erase_contents", ids=list(ids))

    async def renew_lease(self, fence: Fence, ttl_ms: int) -> datetime:
        """Prolong an unexpired lease and return its new end; ``LeaseStale`` or ``LeaseExpired`` else."""
        rows = await self._renewals.fetch(
            statements("log.sql")["renew_lease"],
            {"scope": fence.scope, "epoch": fence.epoch, "hash": token_hash(fence.token), "ttl_ms": ttl_ms},
        )
        outcome: str
        until: datetime
        outcome, until = rows[0]
        if outcome != "renewed":
            raise refusal(outcome)
        return until

    async def lease(self, scope: str) -> LeaseRow | None:
        """The lease row of a scope, None if it was never taken."""
        rows = await self._fetch("lease", scope=scope)
        return _lease(rows[0]) if rows else None

    async def leases(self) -> Sequence[LeaseRow]:
        """All leases that somebody holds, expired ones too, by scope."""
        return [_lease(row) for row in await self._fetch("leases")]

    async def candidates(self, *, limit: int) -> Sequence[QueueRow]:
        """Tasks that may be claimed, in order of position (see ``services.ports.EventLog``)."""
        rows = await self._fetch("candidates", limit=limit)
        return [
            QueueRow(task=task, repo=repo, session=session, position=position, available_at=available_at)
            for task, repo, session, position, available_at in rows
        ]

    async def next_available(self) -> datetime | None:
        """When the next waiting task becomes available, None if none waits for a time."""
        when: datetime | None = (await self._fetch("next_available"))[0][0]
        return when

    async def _fetch(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - what SQL takes
        return await self._pool.fetch(statements("log.sql")[statement], params)


def _named(session: Session, part: str) -> Session:
    return dataclasses.replace(session, application_name=f"{session.application_name} {part}")


def _lease(row: tuple[Any, ...]) -> LeaseRow:
    scope, epoch, lease_id, holder, expires_at = row
    return LeaseRow(scope=scope, epoch=epoch, lease_id=lease_id, holder=holder, expires_at=expires_at)


async def _identity(connection: Connection) -> tuple[str, str | None, str]:
    try:
        with translated():
            row = await (await connection.execute(statements("log.sql")["identity"])).fetchone()
    except psycopg.Error as error:
        raise Fault(
            "the schema holds no log: run `turnkeeper migrate`",
            code="migration_missing",
            params={"sqlstate": error.sqlstate},
        ) from None
    log_id, role, channel = row or (None, None, None)
    return str(log_id), role, str(channel)
