"""Where read models are kept, as a protocol, and a twin in memory for tests.

A row is a mapping with ``view``, ``key``, ``group``, ``ord`` (the position at which the row first stood: lists are
ordered by it, so paging is stable under inserts), the columns of ``projections.view.COLUMNS`` and ``document``.
A view has generations: the live one is asked, another may be built beside it and take its place in one transaction.
"""

import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from domain.faults import NotFound
from projections.view import COLUMNS

Row = Mapping[str, Any]


class ViewUpdate(Protocol):
    """One transaction that brings views forward; nobody else does so meanwhile. Leaving it commits."""

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        """The position of every generation of every view, by ``(view, generation)``."""
        ...

    async def load(self, wanted: Sequence[tuple[str, int, str]]) -> Sequence[Row]:
        """All rows of the groups ``(view, generation, group)``; rows hold ``generation`` too."""
        ...

    async def save(self, rows: Sequence[Row], positions: Mapping[tuple[str, int], int]) -> None:
        """Insert or replace ``rows`` and set positions."""
        ...

    async def switch(self, view: str, generation: int) -> None:
        """Make ``generation`` the live one; the former is kept until ``ViewStore.drop_old``."""
        ...


class ViewStore(Protocol):
    """Implemented by ``adapters.postgres.views`` and ``MemoryViews``; raises ``Unavailable`` like the log."""

    async def prepare(self, views: Mapping[str, int]) -> None:
        """Create what is missing for these views and versions; a view of another version starts anew."""
        ...

    def update(self) -> AbstractAsyncContextManager[ViewUpdate]:
        """Begin to bring views forward."""
        ...

    async def add_generation(self, view: str, version: int) -> int:
        """A new, empty generation beside the live one."""
        ...

    async def drop_old(self, view: str) -> None:
        """Remove the generations of a view that are not live."""
        ...

    async def position(self) -> int:
        """What every live view has reached."""
        ...

    async def get(self, view: str, keys: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Live documents by key."""
        ...

    async def of_tasks(self, view: str, tasks: Sequence[str]) -> Sequence[dict[str, Any]]:
        """All live documents of a view that belong to these tasks, oldest first."""
        ...

    async def authors(self) -> Sequence[int]:
        """The user ids of everybody who has a task."""
        ...

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
    ) -> Sequence[Row]:
        """Rows in order of ``(ord, key)`` behind ``after``.

        ``where``: column and value, all of which must hold; ``ValueError`` for a column that there is not.
        ``through_tasks``: a row also counts if its task, as the live view ``tasks`` knows it, fulfils them all.
        ``since`` (included) and ``until`` (not) bound ``at``.
        """
        ...


@dataclasses.dataclass
class _Generation:
    version: int
    position: int = 0
    live: bool = False
    rows: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


class _MemoryUpdate:
    def __init__(self, generations: dict[tuple[str, int], _Generation]) -> None:
        self._generations = generations

    @property
    def positions(self) -> Mapping[tuple[str, int], int]:
        return {key: generation.position for key, generation in self._generations.items()}

    async def load(self, wanted: Sequence[tuple[str, int, str]]) -> Sequence[Row]:
        asked = set(wanted)
        return [
            row
            for (view, number), generation in self._generations.items()
            for row in generation.rows.values()
            if (view, number, row["group"]) in asked
        ]

    async def save(self, rows: Sequence[Row], positions: Mapping[tuple[str, int], int]) -> None:
        for row in rows:
            self._generations[row["view"], row["generation"]].rows[row["key"]] = copy.deepcopy(dict(row))
        for key, position in positions.items():
            self._generations[key].position = position

    async def switch(self, view: str, generation: int) -> None:
        for (name, number), held in self._generations.items():
            if name == view:
                held.live = number == generation


class MemoryViews:
    """``ViewStore`` in this process's memory."""

    def __init__(self) -> None:
        self._generations: dict[tuple[str, int], _Generation] = {}

    async def prepare(self, views: Mapping[str, int]) -> None:
        """Create what is missing."""
        for view, version in views.items():
            live = self._live(view)
            if live is None or self._generations[view, live].version != version:
                number = await self.add_generation(view, version)
                await _MemoryUpdate(self._generations).switch(view, number)

    @contextlib.asynccontextmanager
    async def update(self) -> AsyncIterator[ViewUpdate]:
        """Begin to bring views forward."""
        yield _MemoryUpdate(self._generations)

    async def add_generation(self, view: str, version: int) -> int:
        """A new, empty generation."""
        number = 1 + max((number for name, number in self._generations if name == view), default=0)
        self._generations[view, number] = _Generation(version=version)
        return number

    async def drop_old(self, view: str) -> None:
        """Remove what is not live."""
        for key, held in list(self._generations.items()):
            if key[0] == view and not held.live:
                del self._generations[key]

    async def position(self) -> int:
        """What every live view has reached."""
        return min((held.position for held in self._generations.values() if held.live), default=0)

    async def get(self, view: str, keys: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Live documents by key."""
        rows = self._rows(view, None)
        return {key: copy.deepcopy(rows[key]["document"]) for key in keys if key in rows}

    async def of_tasks(self, view: str, tasks: Sequence[str]) -> Sequence[dict[str, Any]]:
        """Documents of these tasks, oldest first."""
        found = [row for row in self._rows(view, None).values() if row["task"] in tasks]
        found.sort(key=lambda row: (row["ord"], row["key"]))
        return [copy.deepcopy(row["document"]) for row in found]

    async def authors(self) -> Sequence[int]:
        """Everybody who has a task."""
        return sorted({row["author"] for row in self._rows("tasks", None).values() if row["author"]})

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
    ) -> Sequence[Row]:
        """Rows in order behind ``after``."""
        unknown = set(where) - set(COLUMNS)
        if unknown:
            raise ValueError(f"rows cannot be found by {', '.join(sorted(unknown))}")
        tasks = self._rows("tasks", None) if through_tasks else {}

        def holds(row: Row) -> bool:
            return all(row.get(column) == value for column, value in where.items())

        def wanted(row: Row) -> bool:
            task = tasks.get(row["task"]) if row["task"] else None
            at = (row["ord"], row["key"])
            return (
                (holds(row) or (task is not None and holds(task)))
                and (states is None or row["state"] in states)
                and (since is None or (row["at"] or "") >= since)
                and (until is None or (row["at"] or "") < until)
                and (after is None or (at < after if descending else at > after))
            )

        found = [row for row in self._rows(view, generation).values() if wanted(row)]
        found.sort(key=lambda row: (row["ord"], row["key"]), reverse=descending)
        return copy.deepcopy(found[:limit])

    def _live(self, view: str) -> int | None:
        return next((n for (name, n), held in self._generations.items() if name == view and held.live), None)

    def _rows(self, view: str, generation: int | None) -> dict[str, dict[str, Any]]:
        number = self._live(view) if generation is None else generation
        if number is None or (view, number) not in self._generations:
            raise NotFound("there is no such view", code="view_unknown", params={"view": view})
        return self._generations[view, number].rows
