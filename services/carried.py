"""One task on its way through this process: what the runner, its steps and its bridge share."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Literal

from domain.effects import EffectConcluded, EffectIntended
from domain.events import Event
from domain.log import Content, Fence
from domain.repositories import WorkspaceRecorded
from domain.runs import RunPlan
from domain.tasks import Task
from services.ledger import Beside, Ledger
from services.ports import Run

ERROR_LIMIT = 500
"""Characters of a fault's message that an event keeps."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Carried:
    """One task on its way through this process. The bridge reads and records through it, too.

    ``turn_recorded`` is set once the running turn stands in the log, or is over: no tool call is recorded
    before its turn.
    """

    ledger: Ledger
    fence: Fence
    plan: RunPlan
    run: Run
    task: Task
    ended: asyncio.Future[None]
    head: str | None = None
    behind: bool = False
    active_turn_id: str | None = None
    codex_turn_id: str | None = None
    turn_recorded: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def accept(self, task: Task | None) -> None:
        """Take over the task as it stands after an append."""
        if task is not None and task.revision > self.task.revision:
            self.task = task

    async def record(
        self, *facts: Event, beside: Sequence[Beside] = (), texts: Sequence[Content] = ()
    ) -> Task:
        """Append facts of this task under the run's fence."""
        self.accept(
            await self.ledger.record(
                self.task.task_id, facts, fence=self.fence, beside=beside, contents=texts
            )
        )
        return self.task

    async def conclude(
        self,
        intent: EffectIntended,
        status: Literal["succeeded", "failed", "unknown"],
        at: str,
        *,
        code: str | None = None,
        error: str | None = None,
        outside_id: str | None = None,
        facts: Sequence[Event] = (),
        beside: Sequence[Beside] = (),
    ) -> None:
        """Append the result of an intent, with the facts that came with it."""
        concluded = EffectConcluded(
            intent_id=intent.intent_id,
            operation=intent.operation,
            task_id=intent.task_id,
            status=status,
            at=at,
            outside_id=outside_id,
            error_code=code,
            error=error[:ERROR_LIMIT] if error else None,
        )
        await self.record(*facts, concluded, beside=beside)

    async def left(self) -> list[Beside]:
        """What the workspace holds now, recorded beside the fact that ends its use. The box must be dead."""
        left = await self.run.record_workspace()
        received = self.task.received
        if left is None or received is None:
            return []
        return [
            Beside(
                stream=f"workspace:{received.repo_key}",
                event=WorkspaceRecorded(
                    repo_key=received.repo_key, task_id=received.task_id, left=dict(left)
                ),
            )
        ]


def concluded(
    intent: EffectIntended,
    status: Literal["succeeded", "failed", "unknown"],
    at: str,
    *,
    code: str | None = None,
) -> EffectConcluded:
    """The plain result of an intent."""
    return EffectConcluded(
        intent_id=intent.intent_id,
        operation=intent.operation,
        task_id=intent.task_id,
        status=status,
        at=at,
        error_code=code,
    )
