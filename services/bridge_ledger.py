"""The bridge's part of the log: what the agent asked for, the intents that follow, and their results."""

import secrets
from collections.abc import Sequence

from domain.contents import content
from domain.effects import EffectConcluded, Operation, ToolCalled, ToolRefused
from domain.faults import Conflict
from domain.tasks import QuestionAsked
from services.bridge_ports import EffectStatus
from services.carried import Carried


class RunLedger:
    """``services.bridge_ports.EffectLedger`` over one carried task, under its fence."""

    def __init__(self, carried: Carried) -> None:
        self._carried = carried

    async def intend(
        self, *, operation: Operation, tool: str, target: str, key: str, body_hash: str | None, turn_id: str
    ) -> str:
        """Record the call; the intent is derived from it in the same append. Returns the intent's id."""
        await self._carried.turn_recorded.wait()
        if self._carried.active_turn_id is None:
            raise Conflict("the turn is over: nothing was sent", code="turn_over")
        called = ToolCalled(
            task_id=self._carried.task.task_id,
            turn_id=turn_id,
            tool=tool,
            operation=operation,
            target=target,
            key=key,
            body_hash=body_hash,
        )
        task = await self._carried.record(called)
        ours = [intent for intent in task.intents_of("bridge") if intent.key == key and intent.tool == tool]
        return ours[-1].intent_id

    async def conclude(
        self,
        intent_id: str,
        *,
        status: EffectStatus,
        outside_id: str | None,
        error_code: str | None,
        http_status: int | None,
    ) -> None:
        """Record what became of it."""
        intent = self._carried.task.intents[intent_id]
        await self._carried.record(
            EffectConcluded(
                intent_id=intent_id,
                operation=intent.operation,
                task_id=intent.task_id,
                status=status,
                at=await self._carried.ledger.at(),
                outside_id=outside_id,
                http_status=http_status,
                error_code=error_code,
            )
        )

    async def final_comments(self) -> Sequence[int]:
        """Final comments that Gitea acknowledged, of any turn of the task."""
        return self._carried.task.final_comments

    async def refused(self, *, tool: str, reason: str, turn_id: str | None) -> None:
        """Record what the policy did not allow."""
        await self._carried.record(
            ToolRefused(task_id=self._carried.task.task_id, turn_id=turn_id, tool=tool[:100], reason=reason)
        )

    async def ask(self, question: str) -> None:
        """Record a question; it is posted once the turn has ended."""
        carried = self._carried
        turn_id = carried.active_turn_id
        await carried.turn_recorded.wait()
        if turn_id is None or carried.active_turn_id != turn_id:
            raise Conflict("the turn is over: nothing was asked", code="turn_over")
        item, reference = content(f"turn:{turn_id}:question", question, secrets.token_bytes(16))
        asked = QuestionAsked(
            task_id=carried.task.task_id,
            turn_id=turn_id,
            question=reference,
            at=await carried.ledger.at(),
        )
        await carried.record(asked, texts=[item])
