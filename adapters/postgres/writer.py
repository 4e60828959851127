"""Group commit: one writer per process, on its own connection.

Whatever waits when the connection is free goes into the next transaction; nothing lingers (two milliseconds of linger
cost 40 % of the throughput). A lost answer to a commit is no failure: the batch is sent again under the same request
ids, and ``append_v1``, behind the same lock, answers ``replayed`` for what was committed, appends what was not, and
reports a conflict for what somebody else has overtaken.
"""

import asyncio
import collections
import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import structlog

from adapters.append import Prepared, refusal
from adapters.postgres.batch import outcomes, parameters
from adapters.postgres.connections import Connection, Session, connect, unavailable
from adapters.postgres.statements import statements
from domain.faults import Fault, Unavailable
from domain.log import Appended

log = structlog.get_logger(__name__)

MAX_EVENTS = 1_000
MAX_BYTES = 4 * 1024 * 1024
MAX_SKIPPED = 256
RESEND_AFTER_S = (0.0, 0.05, 0.2, 0.5)
"""Waits before a batch whose answer was lost is sent again; then the callers learn that the database is down."""

_Waiting = tuple[Prepared, "asyncio.Future[Appended]"]


class Writer:
    """Takes requests one by one, commits them in batches and tells ``committed`` the last position of each."""

    def __init__(self, session: Session, committed: Callable[[int], None]) -> None:
        self._session = session
        self._committed = committed
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._connection: Connection | None = None
        self._query = statements("log.sql")["append"]
        self._task = asyncio.create_task(self._run(), name="log-writer")

    async def submit(self, prepared: Prepared) -> Appended:
        """Commit one request, or raise its refusal or ``Unavailable``."""
        if self._closing:
            raise Fault("the log is closed", code="log_closed")
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._waiting.append((prepared, future))
        self._wake.set()
        return await future

    async def close(self) -> None:
        """Commit what waits, then close the connection."""
        self._closing = True
        self._wake.set()
        await self._task
        await self._drop()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = self._take()
                try:
                    await self._settle(batch)
                except BaseException as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error if isinstance(error, Exception) else unavailable())
                    if not isinstance(error, Exception):
                        raise
            if self._closing:
                return

    def _take(self) -> list[_Waiting]:
        """The requests of the next batch: in order, none of which writes what another one reads or writes."""
        first = self._waiting.popleft()
        batch = [first]
        skipped: list[_Waiting] = []
        writes, touched = set(first[0].writes), first[0].writes | first[0].reads
        events, size = len(first[0].events), first[0].size
        while self._waiting and events < MAX_EVENTS and size < MAX_BYTES and len(skipped) < MAX_SKIPPED:
            waiting = self._waiting.popleft()
            prepared = waiting[0]
            free = touched.isdisjoint(prepared.writes) and writes.isdisjoint(prepared.reads)
            # one that has to wait holds back what depends on it, so the order of callers is kept per stream
            writes |= prepared.writes
            touched |= prepared.writes
            touched |= prepared.reads
            if free:
                batch.append(waiting)
                events += len(prepared.events)
                size += prepared.size
            else:
                skipped.append(waiting)
        self._waiting.extendleft(reversed(skipped))
        return batch

    async def _settle(self, batch: Sequence[_Waiting]) -> None:
        try:
            results = await self._send([prepared for prepared, _ in batch])
        except _Refused as refused:
            if len(batch) > 1:  # one of them is to blame: the others must not pay for it
                for one in batch:
                    await self._settle([one])
                return
            results = [refused.reason]
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Appended):
                future.set_result(result)
            else:
                future.set_exception(result)

    async def _send(self, batch: Sequence[Prepared]) -> Sequence[Appended | Exception]:
        try:
            arguments = parameters(batch)
        except (
            ValueError,
            TypeError,
            OverflowError,
            struct.error,
        ) as error:  # a value that does not fit its column, which `prepare` did not see
            raise _Refused(ValueError(f"the request cannot be stored: {error}")) from None
        failed: Unavailable = unavailable()
        for wait in RESEND_AFTER_S:
            if wait:
                await asyncio.sleep(wait)
            try:
                if self._connection is None:
                    self._connection = await connect(self._session)
                row = await self._execute(self._connection, arguments)
            except Unavailable as error:
                failed = error
            except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                failed = unavailable(error)
                if self._connection is not None and not self._connection.closed:
                    raise failed from None  # the server answers, and refuses: a lock that is held, a full disk
                log.warning("append_answer_lost", sqlstate=getattr(error, "sqlstate", None))
                await self._drop()
            except psycopg.Error as error:
                raise _Refused(_fault(error)) from None
            else:
                results = list[Appended | Exception](outcomes(batch, row))
                appended = [result.last for result in results if isinstance(result, Appended)]
                if appended:
                    self._committed(max(appended))
                return results
        raise failed

    async def _execute(self, connection: Connection, arguments: Sequence[Any]) -> tuple[Any, ...]:
        cursor = await connection.execute(self._query, arguments, prepare=True, binary=True)
        row = await cursor.fetchone()
        if row is None:  # pragma: no cover - a function with OUT parameters answers one row
            raise psycopg.InterfaceError("no row")
        return row

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


class _Refused(Exception):
    """The server refused a batch as a whole."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _fault(error: psycopg.Error) -> Fault:
    if isinstance(error, psycopg.errors.UniqueViolation):
        # somebody wrote versions with a hole (the library's recorder may): the premises held, the place is taken
        return refusal("version_conflict")
    return Fault(
        "the database refused the append: see that its schema is the one this version expects (turnkeeper migrate)",
        code="append_refused",
        params={"sqlstate": error.sqlstate},
    )
