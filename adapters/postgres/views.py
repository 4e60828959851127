"""Read models in PostgreSQL, in the schema beside the log's: the shape of ``services.view_store.ViewStore``.

The tables are made here, not by numbered migrations: they hold nothing that the log could not fill again. Rows come
and go set-wise, a batch's rows and its positions in one transaction.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import orjson
from psycopg import sql

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

FILE = "views/views.sql"
TEXT_COLUMNS = ("repo", "resource", "task", "delivery", "turn", "thread", "state", "at")
WHERE = ("repo", "resource", "task", "delivery", "turn", "comment", "thread", "author")


def views_schema(schema: str) -> str:
    """The schema of the read models beside the log's."""
    return f"{schema}_views"


IDLE_MS = 5_000
"""A process that was stopped in mid-batch holds the views no longer than this, milliseconds."""


class PostgresViews:
    """One process's access to the read models; ``session`` is that of the log. ``close`` it at the end."""

    def __init__(self, session: Session) -> None:
        self._session = dataclasses.replace(
            session,
            schema=views_schema(session.schema),
            application_name="turnkeeper views",
            idle_in_transaction_ms=IDLE_MS,
        )
        self._pool = Pool(self._session)
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, *, schema: str = "turnkeeper") -> Self:
        """The read models beside the log at ``url``, as the role of the service; ``Unavailable``, ``Invalid``."""
        session = Session(
            url=checked_url(url),
            schema=checked_schema(schema),
            application_name="turnkeeper views",
        )
        connection = await connect(session)
        try:
            with translated():
                row = await (await connection.execute(statements(FILE)["role"])).fetchone()
        finally:
            await connection.close()
        return cls(dataclasses.replace(session, role=row[0] if row else None))

    async def close(self) -> None:
        """Close every connection."""
        async with self._turn:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
        await self._pool.close()

    async def prepare(self, views: Mapping[str, int]) -> None:
        """Create what is missing for these views and versions; a view of another version starts anew."""
        async with self._transaction() as connection:
            await connection.execute(statements(FILE)["lock"])
            await connection.execute(statements(FILE)["create"])
            held = await (await connection.execute(statements(FILE)["models"])).fetchall()
            live = {name: version for name, _, version, _, is_live in held if is_live}
            for name, version in views.items():
                if live.get(name) != version:
                    generation = await _add_generation(connection, name, version)
                    await _switch(connection, name, generation)

    @contextlib.asynccontextmanager
    async def update(self) -> AsyncIterator["PostgresViewUpdate"]:
        """Begin to bring views forward; leaving it commits."""
        async with self._transaction() as connection:
            held = await (await connection.execute(statements(FILE)["hold"])).fetchall()
            yield PostgresViewUpdate(
                connection, {(name, generation): position for name, generation, _, position, _ in held}
            )

    async def add_generation(self, view: str, version: int) -> int:
        """A new, empty generation beside the live one."""
        async with self._transaction() as connection:
            return await _add_generation(connection, view, version)

    async def drop_old(self, view: str) -> None:
        """Remove the generations of a view that are not live."""
        async with self._transaction() as connection:
            await connection.execute(statements(FILE)["drop_old_entries"], {"name": view})
            await connection.execute(statements(FILE)["drop_old"], {"name": view})

    async def position(self) -> int:
        """What every live view has reached."""
        position: int = (await self._pool.fetch(statements(FILE)["position"]))[0][0]
        return position

    async def get(self, view: str, keys: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Live documents by key."""
        rows = await self._pool.fetch(statements(FILE)["get"], {"view": view, "keys": list(keys)})
        return {key: orjson.loads(text) for key, text in rows}

    async def of_tasks(self, view: str, tasks: Sequence[str]) -> Sequence[dict[str, Any]]:
        """All live documents of a view that belong to these tasks, oldest first."""
        rows = await self._pool.fetch(statements(FILE)["of_tasks"], {"view": view, "tasks": list(tasks)})
        return [orjson.loads(text) for (text,) in rows]

    async def authors(self) -> Sequence[int]:
        """The user ids of everybody who has a task."""
        return [author for (author,) in await self._pool.fetch(statements(FILE)["authors"])]

    async def select(
        self,
        view: str,
        *,
        where: Mapping[str, Any],
        limit: int,
        after: tuple[int, str] | None = None,
        descending: bool = True,
        states: Sequence[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        through_tasks: bool = False,
        generation: int | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """Rows in order of ``(ord, key)`` behind ``after``; see the protocol."""
        name = "select_through_tasks" if through_tasks else "select"
        template = statements(FILE)[name].decode()
        query = sql.SQL(template).format(
            beyond=sql.SQL("<" if descending else ">"), direction=sql.SQL("desc" if descending else "asc")
        )
        unknown = set(where) - {*WHERE, "state"}
        if unknown:
            raise ValueError(f"rows cannot be found by {', '.join(sorted(unknown))}")
        if "state" in where:
            states = [state for state in states or [where["state"]] if state == where["state"]]
        params: dict[str, Any] = {
            **dict.fromkeys(WHERE),
            **{column: value for column, value in where.items() if column != "state"},
            "view": view,
            "generation": generation,
            "states": None if states is None else list(states),
            "since": since,
            "until": until,
            "after_ord": after[0] if after else None,
            "after_key": after[1] if after else None,
            "limit": limit,
        }
        rows = await self._pool.fetch(query.as_string().encode(), params)
        return [
            {"view": view, "key": key, "ord": order, "document": orjson.loads(text)}
            for key, order, text in rows
        ]

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        async with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._session)
            with translated():
                async with self._connection.transaction():
                    yield self._connection


class PostgresViewUpdate:
    """One transaction that brings views forward."""

    def __init__(self, connection: Connection, positions: Mapping[tuple[str, int], int]) -> None:
        self._connection = connection
        self.positions = positions

    async def load(self, wanted: Sequence[tuple[str, int, str]]) -> Sequence[Mapping[str, Any]]:
        """All rows of the groups ``(view, generation, group)``."""
        views, generations, groups = zip(*wanted, strict=True)
        cursor = await self._connection.execute(
            statements(FILE)["load"],
            {"views": list(views), "generations": list(generations), "groups": list(groups)},
        )
        return [
            {
                "view": view,
                "generation": generation,
                "group": group,
                "key": key,
                "ord": order,
                "document": orjson.loads(text),
            }
            async for view, generation, group, key, order, text in cursor
        ]

    async def save(self, rows: Sequence[Mapping[str, Any]], positions: Mapping[tuple[str, int], int]) -> None:
        """Insert or replace ``rows`` and set positions."""
        if rows:
            params: dict[str, Any] = {
                "views": [row["view"] for row in rows],
                "generations": [row["generation"] for row in rows],
                "keys": [row["key"] for row in rows],
                "groups": [row["group"] for row in rows],
                "ords": [row["ord"] for row in rows],
                "docs": [orjson.dumps(row["document"]).decode() for row in rows],
                "comment": [row["comment"] for row in rows],
                "author": [row["author"] for row in rows],
            }
            params |= {name: [_text(row[name]) for row in rows] for name in TEXT_COLUMNS}
            await self._connection.execute(statements(FILE)["save"], params)
        await self._connection.execute(
            statements(FILE)["advance"],
            {
                "views": [view for view, _ in positions],
                "generations": [generation for _, generation in positions],
                "positions": list(positions.values()),
            },
        )

    async def switch(self, view: str, generation: int) -> None:
        """Make ``generation`` the live one."""
        await _switch(self._connection, view, generation)


async def _add_generation(connection: Connection, name: str, version: int) -> int:
    cursor = await connection.execute(statements(FILE)["add_generation"], {"name": name, "version": version})
    found = await cursor.fetchone()
    if found is None:
        raise LookupError("the database returned no generation")
    number: int = found[0]
    return number


async def _switch(connection: Connection, name: str, generation: int) -> None:
    await connection.execute(statements(FILE)["unswitch"], {"name": name})
    await connection.execute(statements(FILE)["switch"], {"name": name, "generation": generation})


def _text(value: object) -> str | None:
    return None if value is None else str(value).replace("\x00", "")
