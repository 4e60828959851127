"""The main job in front of the reader: a signed mention in, one confirmed reply out, every step with its position."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from domain import markers
from domain.effects import EffectConcluded, EffectIntended
from domain.faults import Fault
from domain.transitions import TERMINAL
from services.ports import EventLog, GiteaSide
from services.story import Line, Summary, tell

LIMIT_S = 120.0
"""The demo gives up after this many seconds."""


async def play(
    *,
    event_log: EventLog,
    gitea: GiteaSide,
    bot_id: int,
    repository: tuple[str, str, int],
    mention: Callable[[], Awaitable[None]],
    show: Callable[[Line], None],
    summary: Summary,
    began: float,
) -> dict[str, Any]:
    """Write the mention, tell what the log says until the task has ended and its lease is free, read Gitea back.

    ``repository``: owner, name, issue. Raises ``Fault`` ``demo_unfinished`` if that takes too long.
    """
    head = await event_log.head()
    await mention()
    try:
        async with asyncio.timeout(LIMIT_S):
            await _follow(event_log, head, show, summary)
    except TimeoutError:
        raise Fault(
            f"the demo did not end within {LIMIT_S:g} s; the story above says how far it came",
            code="demo_unfinished",
        ) from None
    owner, name, number = repository
    for comment in await gitea.comments(owner, name, number):
        marker = markers.our_marker(comment.body) if comment.author_id == bot_id else None
        if marker is None or marker.task_id != summary.task_id:
            continue
        (summary.final_comments if marker.final else summary.receipts).append(comment.id)
    summary.seconds = round(time.monotonic() - began, 2)
    return summary.as_json()


async def _follow(event_log: EventLog, head: int, show: Callable[[Line], None], summary: Summary) -> None:
    """Until the task is terminal and every intent has its result."""
    open_intents: set[str] = set()
    async for batch in event_log.tail(after=head):
        for recorded in batch:
            summary.take(recorded)
            line = tell(recorded)
            if line is not None:
                show(line)
            match recorded.event:
                case EffectIntended() as intended:
                    open_intents.add(intended.intent_id)
                case EffectConcluded() as concluded:
                    open_intents.discard(concluded.intent_id)
                case _:
                    pass
        if summary.outcome in TERMINAL and not open_intents:
            return
