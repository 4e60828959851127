"""The verifier: a reply counts only when it was read back from Gitea (seed §5.4)."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Literal

import structlog

from domain import ids, markers, repositories
from domain.faults import Fault
from domain.runs import Comment
from domain.tasks import ReplyObserved, Task
from services.gitea_watch import GiteaWatch
from services.ledger import Ledger
from services.ports import EventLog, GiteaSide

log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifierSettings:
    """``grace``: seconds after the turn at which the comments are listed before a reply counts as missing.

    ``unknown_limit``: seconds for which failing listings are repeated; ``pause``: seconds between two of them.
    """

    bot_id: int
    grace: tuple[float, ...] = (0.0, 2.0, 10.0)
    unknown_limit: float = 60.0
    pause: float = 2.0


def find_reply(comments: Sequence[Comment], task_id: str, bot_id: int) -> tuple[str, tuple[int, ...]] | None:
    """The final reply of a task among a resource's comments: its turn and the ids of its parts in order.

    Only the bot's own comments count, only markers outside quotes, and only whole replies; of several the first.
    """
    parts: dict[str, dict[int, int]] = {}
    whole: dict[str, int] = {}
    for comment in comments:
        marker = markers.our_marker(comment.body) if comment.author_id == bot_id else None
        if marker is None or marker.task_id != task_id or not marker.final:
            continue
        number, of = marker.part or (1, 1)
        parts.setdefault(marker.turn_id, {}).setdefault(number, comment.id)
        whole[marker.turn_id] = of
        if len(parts[marker.turn_id]) == of:
            found = parts[marker.turn_id]
            return marker.turn_id, tuple(found[number] for number in sorted(found))
    return None


class Verifier:
    """Looks for a task's reply. It only reads."""

    def __init__(
        self,
        *,
        event_log: EventLog,
        ledger: Ledger,
        gitea: GiteaSide,
        watch: GiteaWatch,
        settings: VerifierSettings,
    ) -> None:
        self._log = event_log
        self._ledger = ledger
        self._gitea = gitea
        self._watch = watch
        self._settings = settings

    async def look(self, task: Task) -> ReplyObserved:
        """List the resource's comments until the reply is there, or is provably missing, or nobody answers."""
        received = task.received
        if received is None:
            raise LookupError("no such task")
        rows = await self._log.read_stream(ids.repo_stream(received.repo_key))
        registered = repositories.fold(row.event for row in rows).registered
        if registered is None:
            raise LookupError("the repository of this task is not registered")
        number = int(received.resource["number"])
        loop = asyncio.get_running_loop()
        began = loop.time()
        give_up = began + self._settings.unknown_limit
        listings = 0
        error_code: str | None = None
        waits = list(self._settings.grace)
        while waits:
            await asyncio.sleep(max(0.0, began + waits[0] - loop.time()))
            try:
                owner, name = await self._gitea.names(registered.repository_id)
                comments = await self._gitea.comments(owner, name, number)
            except Fault as fault:
                error_code = fault.code
                log.warning("the comments could not be listed", task_id=task.task_id, code=fault.code)
                if loop.time() + self._settings.pause > give_up:
                    there = await self._watch.reachable()
                    return await self._observed(
                        task, "unknown" if there else "away", listings, error_code=error_code
                    )
                await asyncio.sleep(self._settings.pause)
                continue
            listings += 1
            waits.pop(0)
            found = find_reply(comments, task.task_id, self._settings.bot_id)
            if found is not None:
                return await self._observed(task, "found", listings, found=found)
        return await self._observed(task, "missing", listings)

    async def _observed(
        self,
        task: Task,
        outcome: Literal["found", "missing", "unknown", "away"],
        listings: int,
        *,
        found: tuple[str, tuple[int, ...]] | None = None,
        error_code: str | None = None,
    ) -> ReplyObserved:
        return ReplyObserved(
            task_id=task.task_id,
            outcome=outcome,
            comment_ids=found[1] if found else (),
            turn_id=found[0] if found else None,
            listings=listings,
            at=await self._ledger.at(),
            error_code=error_code,
        )
