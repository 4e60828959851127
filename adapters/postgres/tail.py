"""How readers learn that the log has grown: one listener per process, however many of them wait.

The announcement carries the last position, so an idle log costs nothing but one look per second, which is there in
case an announcement is lost.
"""

import asyncio
import contextlib

import psycopg
import structlog
from psycopg import sql

from adapters.postgres.connections import Connection, Session, connect
from adapters.postgres.statements import statements
from domain.faults import Unavailable

log = structlog.get_logger(__name__)

POLL_S = 1.0


class Tail:
    """Knows the last position as far as it was announced. Starts with its first waiter."""

    def __init__(self, session: Session, channel: str) -> None:
        self._session = session
        self._channel = channel
        self._head = 0
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def advance(self, position: int) -> None:
        """The log reaches at least to ``position``."""
        if position > self._head:
            self._head = position
            grown, self._grown = self._grown, asyncio.Event()
            grown.set()

    async def wait(self, after: int) -> None:
        """Return when the log may hold something after position ``after``."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="log-tail")
        while self._head <= after:
            await self._grown.wait()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                connection = await connect(self._session)
                try:
                    await self._listen(connection)
                finally:
                    await connection.close()
            except (Unavailable, psycopg.Error, OSError) as error:
                log.warning("tail_lost", sqlstate=getattr(error, "sqlstate", None))
                await asyncio.sleep(POLL_S / 4)

    async def _listen(self, connection: Connection) -> None:
        listen = sql.SQL(statements("tail.sql")["listen"].decode())
        await connection.execute(listen.format(channel=sql.Identifier(self._channel)), prepare=False)
        head = statements("log.sql")["head"]
        while True:
            # after LISTEN, and whenever nothing was announced for a second: what was missed meanwhile
            row = await (await connection.execute(head)).fetchone()
            if row is not None:
                self.advance(row[0])
            while await _readable(connection.fileno(), POLL_S):
                connection.pgconn.consume_input()
                while notice := connection.pgconn.notifies():
                    self.advance(int(notice.extra))


async def _readable(descriptor: int, seconds: float) -> bool:
    """Wait for input, at most so long.

    ``AsyncConnection.notifies`` wakes ten times a second to the same end.
    """
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(descriptor, came.set)
    try:
        async with asyncio.timeout(seconds):
            await came.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True
