"""Appends that outlast a short absence of the database: a run of an hour must not end with a restart of a second.

A request keeps its id, so that sending it again is harmless. Fences decide when it was too late.
"""

import asyncio

import structlog

from domain.faults import Unavailable
from domain.log import Appended, AppendRequest
from services.ports import EventLog

log = structlog.get_logger(__name__)

LIMIT_S = 60.0
PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0


async def append_patiently(
    event_log: EventLog, request: AppendRequest, *, limit_s: float = LIMIT_S
) -> Appended:
    """Append, and again while the database does not answer, for ``limit_s`` seconds; then ``Unavailable``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    pause = PAUSE_S
    while True:
        try:
            return await event_log.append(request)
        except Unavailable as fault:
            if loop.time() + pause > end:
                raise
            log.warning("an append waits for the database", code=fault.code)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
