"""The items of a running turn, appended to ``turn:<turnId>`` under the run's fence. Deltas never come here."""

import uuid

from domain import ids
from domain.log import AppendRequest, Draft, Fence, Metadata, Premise
from domain.runs import Seen
from domain.turns import TurnItemSeen
from services.patience import append_patiently
from services.ports import EventLog


class TurnItems:
    """Writes one turn's items. The run is the stream's only writer, so its version is counted here."""

    def __init__(
        self, event_log: EventLog, *, task_id: str, turn_id: str, fence: Fence, runner_id: str
    ) -> None:
        self._log = event_log
        self._task_id = task_id
        self._turn_id = turn_id
        self._fence = fence
        self._metadata = Metadata(correlation_id=task_id, runner_id=runner_id)
        self._version = 0

    async def add(self, seen: Seen) -> None:
        """Append one item event; ``LeaseStale``, ``LeaseExpired`` when the run has lost its right to write."""
        stream = ids.turn_stream(self._turn_id)
        event = TurnItemSeen(
            task_id=self._task_id,
            turn_id=self._turn_id,
            seq=seen.seq,
            method=seen.method,
            item_type=seen.item_type,
            item_id=seen.item_id,
            summary=dict(seen.summary),
        )
        request = AppendRequest(
            request_id=uuid.uuid4(),
            premises=(Premise(stream, self._version),),
            drafts=(Draft(stream=stream, event=event),),
            metadata=self._metadata,
            fences=(self._fence,),
        )
        await append_patiently(self._log, request)
        self._version += 1
