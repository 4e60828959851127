"""The final comment of a task: one reply, however often the agent posts it (gitea-workflow, The MCP bridge).

* The first one is created, in parts where it is too long; each part carries the marker with ``part=1/3``.
* A later one edits what stands: part by part, further parts are created, and parts that are no longer needed are
  edited into one line with ``status=superseded``, which the verifier does not count (the bridge deletes nothing).
  The id of the first part is returned.
* A comment that somebody has deleted meanwhile is not edited; a new one is created.
* When the answer to a creation was lost, no further one is created by this run: the comment may stand. Its intent
  is ``unknown`` and the verifier looks. Edits can be repeated and go on.
"""

import asyncio
import dataclasses
import json

from domain.faults import NotFound
from domain.markers import format_marker
from domain.tool_dialects import Dialect, object_id
from domain.tools import ToolResult
from services.bridge_effects import Effect, Write, carry_out, of_answer
from services.bridge_ports import ActiveTurn, BridgeRun, BridgeSettings, Comments, EffectLedger, ToolBackend
from services.bridge_text import body_hash, marked, split_body

MARKER_ROOM = 64
LOST = (
    "the answer to the comment was lost: it may stand in the issue. Do not post it again; end your turn, "
    "the service looks for it"
)
EDIT_LOST = "the answer to the edit was lost: the old or the new text stands. Post it again or end your turn"
SUPERSEDED = "*(replaced by the comment above)*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posted:
    """How far a reply came: ids of its parts, and the effect that stopped it, if one did."""

    ids: tuple[int, ...]
    edited: bool
    stopped: Effect | None = None


def comment_result(comment_id: int | None, code: str | None, *notes: str) -> ToolResult:
    """``{accepted, commentId, errorCode}`` as JSON (seed §6.4), and sentences for the model beside it."""
    answer = {"accepted": code is None, "commentId": comment_id, "errorCode": code}
    return ToolResult(texts=(json.dumps(answer), *notes), is_error=code is not None)


class FinalReply:
    """The one final reply of a run's task."""

    def __init__(
        self,
        *,
        run: BridgeRun,
        settings: BridgeSettings,
        backend: ToolBackend,
        ledger: EffectLedger,
        comments: Comments,
    ) -> None:
        self._run = run
        self._settings = settings
        self._backend = backend
        self._ledger = ledger
        self._comments = comments
        self._one_at_a_time = asyncio.Lock()
        self._written: list[int] = []
        self._lost = False

    async def ids(self) -> list[int]:
        """Ids of all final comments of the task that are known."""
        known = [*await self._ledger.final_comments(), *self._written]
        return list(dict.fromkeys(known))

    async def post(self, body: str, *, dialect: Dialect, key: str, turn: ActiveTurn) -> ToolResult:
        """Create the reply, or edit the one that stands. ``body`` is clean already. Faults of the ledger pass on."""
        async with self._one_at_a_time:
            parts = self._parts(body, turn)
            standing = await self._standing()
            if self._lost and len(parts) > len(standing):
                return comment_result(standing[0] if standing else None, "outcome_unknown", LOST)
            posted = await self._write(parts, standing, dialect=dialect, key=key, turn=turn)
        return self._told(posted, len(parts))

    def _parts(self, body: str, turn: ActiveTurn) -> list[str]:
        plain = format_marker(task_id=self._run.task_id, turn_id=turn.turn_id)
        room = max(self._settings.comment_limit - len(plain) - MARKER_ROOM, 1)
        texts = split_body(body, room)
        if len(texts) == 1:
            return [marked(body, plain)]
        return [
            marked(
                text,
                format_marker(task_id=self._run.task_id, turn_id=turn.turn_id, part=(number, len(texts))),
            )
            for number, text in enumerate(texts, 1)
        ]

    async def _standing(self) -> list[int]:
        standing = []
        for comment_id in await self.ids():
            try:
                if await self._comments.author_of(comment_id) == self._run.bot_id:
                    standing.append(comment_id)
            except NotFound:
                continue
        return standing

    async def _write(
        self, parts: list[str], standing: list[int], *, dialect: Dialect, key: str, turn: ActiveTurn
    ) -> Posted:
        ids: list[int] = []
        left_over = format_marker(task_id=self._run.task_id, turn_id=turn.turn_id, status="superseded")
        bodies = [*parts, *[marked(SUPERSEDED, left_over) for _ in standing[len(parts) :]]]
        for ordinal, body in enumerate(bodies):
            target = standing[ordinal] if ordinal < len(standing) else None
            part_key = key if ordinal == 0 else f"{key}:{ordinal + 1}"
            write = self._edit(target, body, dialect) if target is not None else self._create(body, dialect)
            effect = await carry_out(
                dataclasses.replace(write, key=part_key, body_hash=body_hash(body), turn_id=turn.turn_id),
                self._ledger,
            )
            if effect.status != "succeeded":
                self._lost = self._lost or (target is None and effect.status == "unknown")
                return Posted(ids=tuple(ids), edited=bool(standing), stopped=effect)
            ids.append(int(effect.outside_id or 0))
            if target is None:
                self._written.append(ids[-1])
        return Posted(ids=tuple(ids[: len(parts)]), edited=bool(standing))

    def _create(self, body: str, dialect: Dialect) -> Write:
        run, verb = self._run, dialect.create_comment

        async def send() -> Effect:
            if verb is None:
                made = await self._comments.create(run.number, body)
                return Effect(status="succeeded", outside_id=str(made))
            arguments = verb.arguments(
                owner=run.scope.owner, repo=run.scope.repo, number=run.number, body=body
            )
            effect = of_answer(await self._backend.call(verb.tool, arguments, self._settings.call_timeout_s))
            if effect.status != "succeeded":
                return effect
            made_id = object_id(effect.text)
            if made_id is None:
                return Effect(status="unknown", code="answer_not_understood")
            return dataclasses.replace(effect, outside_id=str(made_id))

        return Write(
            operation="comment.create",
            tool=verb.label if verb else "rest.create_comment",
            target=f"{run.scope.owner}/{run.scope.repo}#{run.number}",
            key="",
            body_hash=None,
            turn_id="",
            send=send,
        )

    def _edit(self, comment_id: int, body: str, dialect: Dialect) -> Write:
        run, verb = self._run, dialect.edit_comment

        async def send() -> Effect:
            if verb is None:
                await self._comments.edit(comment_id, body)
                return Effect(status="succeeded", outside_id=str(comment_id))
            arguments = verb.arguments(
                owner=run.scope.owner, repo=run.scope.repo, number=comment_id, body=body
            )
            effect = of_answer(await self._backend.call(verb.tool, arguments, self._settings.call_timeout_s))
            return dataclasses.replace(effect, outside_id=str(comment_id))

        return Write(
            operation="comment.edit",
            tool=verb.label if verb else "rest.edit_comment",
            target=f"{run.scope.owner}/{run.scope.repo}#{run.number}:comment:{comment_id}",
            key="",
            body_hash=None,
            turn_id="",
            send=send,
        )

    def _told(self, posted: Posted, parts: int) -> ToolResult:
        first = posted.ids[0] if posted.ids else None
        if posted.stopped is not None:
            if posted.stopped.status == "unknown":
                return comment_result(first, "outcome_unknown", LOST if self._lost else EDIT_LOST)
            note = f"part {len(posted.ids) + 1} of {parts} was refused: {posted.stopped.text}"
            return comment_result(first, posted.stopped.code or "gitea_refused", note)
        notes = ["this task had its reply already, which was edited"] if posted.edited else []
        if parts > 1:
            notes.append(f"the text was too long for one comment and stands in {parts} parts")
        return comment_result(first, None, *notes)
