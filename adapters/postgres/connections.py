"""Connections to the database of the log: how they are made, and what their failures mean.

Nothing of a connection string (it may hold a password) and no address of a server enters a fault or a log line.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import psycopg
import structlog
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from adapters.postgres import arrays
from adapters.postgres.statements import statements
from domain.faults import Fault, Invalid, Unavailable

Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]

log = structlog.get_logger(__name__)

MAX_SCHEMA = 40
"""Characters of a schema's name; the service's role and channel are named after it (PostgreSQL allows 63 bytes)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """What a connection is set to. Times in milliseconds; ``role`` None keeps the connecting user."""

    url: str = dataclasses.field(repr=False)
    schema: str
    application_name: str
    role: str | None = None
    connect_timeout_s: int = 5
    lock_timeout_ms: int = 10_000
    statement_timeout_ms: int = 60_000
    idle_in_transaction_ms: int = 30_000


def checked_url(url: str) -> str:
    """The connection string, if libpq can read it; else ``Invalid`` (``database_url_invalid``) without quoting it."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise Invalid(
            "DATABASE_URL cannot be read: give it as postgresql://user:password@host:port/database",
            code="database_url_invalid",
        ) from None
    return url


def checked_schema(schema: str) -> str:
    """A schema name of lower-case letters, digits and underscores, at most 40; ``Invalid`` else."""
    plain = schema.isascii() and schema.replace("_", "a").isalnum() and schema == schema.lower()
    if not plain or schema[0].isdigit() or len(schema) > MAX_SCHEMA or schema.startswith("pg_"):
        raise Invalid(
            "a schema is named with lower-case letters, digits and underscores, at most 40 of them",
            code="schema_invalid",
        )
    return schema


def conninfo(session: Session) -> str:
    """The connection string with the parts that are ours."""
    given = conninfo_to_dict(session.url)
    own: dict[str, Any] = {"application_name": session.application_name}
    own.setdefault("connect_timeout", given.get("connect_timeout") or session.connect_timeout_s)
    # a peer that vanished without a word is noticed within half a minute
    for name, value in (("keepalives_idle", 10), ("keepalives_interval", 5), ("keepalives_count", 3)):
        own[name] = given.get(name) or value
    return make_conninfo(session.url, **own)


def settings(session: Session) -> sql.Composed:
    """The statement that sets a fresh connection up, in one round trip."""
    name = "enter" if session.role is None else "enter_as"
    return sql.SQL(statements("session.sql")[name].decode()).format(
        schema=sql.Identifier(session.schema),
        role=sql.Identifier(session.role or ""),
        lock_timeout=sql.Literal(session.lock_timeout_ms),
        statement_timeout=sql.Literal(session.statement_timeout_ms),
        idle_timeout=sql.Literal(session.idle_in_transaction_ms),
    )


async def connect(session: Session) -> Connection:
    """A fresh connection in autocommit mode. Raises ``Unavailable`` when there is no answer."""
    with translated():
        connection = await AsyncConnection.connect(conninfo(session), autocommit=True)
    try:
        with translated():
            arrays.register(connection)
            await connection.execute(settings(session), prepare=False)
    except BaseException:
        await connection.close()
        raise
    return connection


def unavailable(error: BaseException | None = None) -> Unavailable:
    """The fault for a database that does not answer; ``error``'s own words stay out of it."""
    state = getattr(error, "sqlstate", None)
    return Unavailable(
        "the database does not answer: see that it runs and that DATABASE_URL is right; then try again",
        code="database_unavailable",
        params={"sqlstate": state} if state else None,
    )


@contextlib.contextmanager
def translated() -> Any:  # noqa: ANN401 - the generator type of a context manager says nothing to a reader
    """Turn what psycopg raises for a lost, refused or overloaded database into ``Unavailable``."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
        raise unavailable(error) from None


class Pool:
    """A few connections for reads, made when they are needed and kept afterwards.

    A read may be repeated, so one that failed on a kept connection (the server was restarted meanwhile) is done again
    on a fresh one.
    """

    def __init__(self, session: Session, *, size: int = 4) -> None:
        self._session = session
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(size)
        self._closed = False

    async def fetch(
        self, query: bytes, params: dict[str, Any] | None = None, *, binary: bool = True
    ) -> list[tuple[Any, ...]]:
        """All rows of a read (or of a statement that may be repeated). Raises ``Unavailable``."""
        while True:
            async with self._connection() as (connection, kept):
                try:
                    cursor = await connection.execute(query, params, binary=binary)
                    return await cursor.fetchall() if cursor.description is not None else []
                except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                    if not (kept and connection.closed):
                        raise unavailable(error) from None

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[Connection, bool]]:
        async with self._slots:
            if self._closed:
                raise Fault("the log is closed", code="log_closed")
            kept = bool(self._idle)
            connection = self._idle.pop() if kept else await connect(self._session)
            try:
                yield connection, kept
            finally:
                idle = psycopg.pq.TransactionStatus.IDLE
                if self._closed or connection.closed or connection.info.transaction_status != idle:
                    await connection.close()
                else:
                    self._idle.append(connection)

    async def close(self) -> None:
        """Close what is idle now, and the others as they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
