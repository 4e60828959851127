"""Deadlines of tasks that hold no lease: a question that nobody answers ends its task (gitea-workflow, Task)."""

import asyncio
from datetime import datetime, timedelta

import structlog

from domain.faults import Fault
from domain.tasks import TimerFired
from services.ledger import Ledger, stamp
from services.ports import EventLog
from services.view_store import ViewStore

log = structlog.get_logger(__name__)

_BATCH = 1000


class Timers:
    """Fires what is due. ``waiting_timeout`` and ``interval`` in seconds."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        views: ViewStore,
        ledger: Ledger,
        waiting_timeout: float,
        interval: float,
    ) -> None:
        self._log = event_log
        self._views = views
        self._ledger = ledger
        self._waiting_timeout = waiting_timeout
        self._interval = interval

    async def run(self) -> None:
        """Look at start, then every ``interval`` seconds, until cancelled."""
        while True:
            try:
                await self.tick()
            except Fault as fault:
                log.error("the timers could not be looked at", code=fault.code)
            await asyncio.sleep(self._interval)

    async def tick(self) -> int:
        """Fire what is due by the database's clock; how many."""
        now = await self._log.now()
        due = now - timedelta(seconds=self._waiting_timeout)
        fired = 0
        rows = await self._views.select(
            "tasks", where={}, states=("waiting_user",), limit=_BATCH, descending=False
        )
        for row in rows:
            if datetime.fromisoformat(row["document"]["updatedAt"]) > due:
                continue
            timer = TimerFired(task_id=row["document"]["taskId"], timer="waiting", at=stamp(now))
            recorded = await self._ledger.record(
                timer.task_id, [timer], only_if=lambda found: found.state == "waiting_user"
            )
            fired += recorded is not None
        return fired
