"""The last rung of the ladder: one comment by REST with the same marker (seed §5.4.4)."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from domain import ids, markers, repositories
from domain.effects import EffectIntended
from domain.faults import Fault
from domain.tasks import Task
from services.bridge_text import Redactor, marked, split_body
from services.ports import EventLog, GiteaSide

MARKER_ROOM = 300
"""Characters that a marker may take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of it. ``outside_id``: the first part's comment."""

    status: Literal["succeeded", "failed", "unknown"]
    outside_id: str | None = None
    code: str | None = None
    error: str | None = None


class Fallback:
    """Posts the last text of a task's turns. ``limit``: characters of one comment."""

    def __init__(self, *, event_log: EventLog, gitea: GiteaSide, secrets: Sequence[str], limit: int) -> None:
        self._log = event_log
        self._gitea = gitea
        self._redactor = Redactor(secrets)
        self._limit = limit

    async def post(self, task: Task, intent: EffectIntended) -> Sent:
        """Post it, in parts where it is long. Nothing is repeated here: an answer that was lost is ``unknown``."""
        received, message = task.received, task.last_message
        if received is None or message is None:
            return Sent(status="failed", code="no_text", error="no turn ended with a text")
        texts = await self._log.contents([str(message["content"])])
        text = markers.strip_markers(self._redactor.text(texts.get(str(message["content"]), "")))[0]
        if not text.strip():
            return Sent(status="failed", code="no_text", error="the text was erased")
        rows = await self._log.read_stream(ids.repo_stream(received.repo_key))
        registered = repositories.fold(row.event for row in rows).registered
        if registered is None:
            raise LookupError("the repository of this task is not registered")
        parts = split_body(text, self._limit - MARKER_ROOM)
        first: str | None = None
        for number, part in enumerate(parts, 1):
            marker = markers.format_marker(
                task_id=task.task_id,
                turn_id=intent.turn_id or "",
                part=(number, len(parts)) if len(parts) > 1 else None,
            )
            try:
                owner, name = await self._gitea.names(registered.repository_id)
                posted = await self._gitea.create_comment(
                    owner,
                    name,
                    int(received.resource["number"]),
                    marked(part, marker),
                    repository_id=registered.repository_id,
                )
            except Fault as fault:
                lost = fault.params.get("outcome") == "unknown" or first is not None
                return Sent(
                    status="unknown" if lost else "failed",
                    outside_id=first,
                    code=fault.code,
                    error=fault.message,
                )
            first = first or str(posted.id)
        return Sent(status="succeeded", outside_id=first)
