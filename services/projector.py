"""The projector: one reader of the log feeds every read model in batches.

A batch is one transaction: load the documents of all touched groups, fold in order of position, store what changed
with the views' positions. Two processes may do this on one database: the transaction holds the views, and whoever
comes second finds the positions ahead and has nothing left to do.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from domain.faults import Fault, NotFound, Unavailable
from domain.log import Recorded
from projections.view import FRESH, Document, View, columns
from services.ports import EventLog
from services.telemetry import Metrics, logger
from services.view_store import Row, ViewStore, ViewUpdate

log = logger("projector")

_Rows = dict[str, tuple[int, Document]]


class Projector:
    """Keeps ``views`` up to date. ``start`` it once, ``close`` it at the end."""

    def __init__(
        self,
        event_log: EventLog,
        store: ViewStore,
        views: Sequence[View],
        *,
        batch: int = 500,
        metrics: Metrics | None = None,
    ) -> None:
        self._log = event_log
        self._store = store
        self._views = {view.name: view for view in views}
        self._batch = batch
        self._metrics = metrics
        self._position = 0
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Prepare the views and follow the log in the background. Raises ``Unavailable``."""
        await self._store.prepare({view.name: view.version for view in self._views.values()})
        self._position = await self._store.position()
        self._task = asyncio.create_task(self._follow(), name="projector")

    async def close(self) -> None:
        """Stop following; what was stored stays."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def position(self) -> int:
        """The position that every view has reached, as far as this process knows."""
        return self._position

    async def wait_for(self, position: int, timeout: float) -> None:  # noqa: ASYNC109 - a bound for the caller
        """Wait until the views show ``position``; ``Unavailable`` ``view_behind`` after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout), self._moved:
                await self._moved.wait_for(lambda: self._position >= position)
        except TimeoutError:
            raise Unavailable(
                "the lists do not show this position yet: ask again in a moment",
                code="view_behind",
                params={"position": self._position, "minPosition": position},
            ) from None

    async def apply(self, batch: Sequence[Recorded]) -> None:
        """Bring every view that is behind ``batch``'s end forward by it."""
        async with self._store.update() as update:
            live = {key: at for key, at in update.positions.items() if key[0] in self._views}
            await self._apply(update, batch, live)
        await self._reached(batch[-1].position)

    async def rebuild(self, name: str) -> None:
        """Build a view anew beside the live one, and switch when it has caught up.

        The former rows stay until ``ViewStore.drop_old``. ``NotFound`` for an unknown view.
        """
        view = self._views.get(name)
        if view is None:
            raise NotFound("there is no such view", code="view_unknown", params={"view": name})
        generation = await self._store.add_generation(name, view.version)
        key, at = (name, generation), 0
        while True:
            batch = await self._log.read(after=at, limit=self._batch)
            async with self._store.update() as update:
                others = [place for (other, _), place in update.positions.items() if other == name]
                if batch:
                    await self._apply(update, batch, {key: update.positions[key]})
                    at = batch[-1].position
                if at >= max(others):
                    await update.switch(name, generation)
                    return

    async def _follow(self) -> None:
        while True:
            try:
                async for batch in self._log.tail(after=self._position, limit=self._batch):
                    await self.apply(batch)
                    if self._metrics:
                        self._metrics.take(batch)
            except Unavailable:
                log.warning("views_wait_for_database")
            except Fault:
                log.exception("view_failed")
            except Exception:
                log.exception("view_failed")
            if self._metrics:
                self._metrics.view_failures.inc()
            await asyncio.sleep(1)  # whatever it was, hammering the database does not mend it

    async def _apply(
        self, update: ViewUpdate, batch: Sequence[Recorded], behind: Mapping[tuple[str, int], int]
    ) -> None:
        due = {key: [recorded for recorded in batch if recorded.position > at] for key, at in behind.items()}
        work = {
            (name, generation): [
                (group, recorded)
                for recorded in events
                if (group := self._views[name].group(recorded)) is not None
            ]
            for (name, generation), events in due.items()
            if events
        }
        if not work:
            return
        wanted = {(*key, group) for key, events in work.items() for group, _ in events if group != FRESH}
        groups: dict[tuple[str, int, str], _Rows] = {place: {} for place in wanted}
        for row in await update.load(sorted(wanted)) if wanted else ():
            groups[row["view"], row["generation"], row["group"]][row["key"]] = (row["ord"], row["document"])
        changed: dict[tuple[str, int, str], Row] = {}
        for (name, generation), events in work.items():
            view = self._views[name]
            for group, recorded in events:
                rows = {} if group == FRESH else groups[name, generation, group]
                documents = {key: document for key, (_, document) in rows.items()}
                for key, document in view.fold(documents, recorded).items():
                    first = rows[key][0] if key in rows else recorded.position
                    rows[key] = (first, document)
                    changed[name, generation, key] = {
                        "view": name,
                        "generation": generation,
                        "key": key,
                        "group": group,
                        "ord": first,
                        **columns(document),
                        "document": document,
                    }
        last = batch[-1].position
        await update.save(list(changed.values()), dict.fromkeys(work, last))

    async def _reached(self, position: int) -> None:
        async with self._moved:
            self._position = max(self._position, position)
            self._moved.notify_all()
        if self._metrics:
            self._metrics.view_position.set(self._position)
