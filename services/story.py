"""A run told in sentences: what each event of the log means to a person (``turnkeeper demo``)."""

import dataclasses
from typing import Any

from domain import deliveries, effects, leases, repositories, sessions, tasks, turns
from domain.log import Recorded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the story. ``chapter``: the noun it is about."""

    position: int
    at: str
    chapter: str
    text: str


_OPERATIONS = {
    "mirror.sync": ("mirror", "clone or fetch the trusted mirror"),
    "workspace.checkout": ("workspace", "lay out the files of this session"),
    "box.start": ("box", "start the agent in its box"),
    "thread.start": ("thread", "start a thread for this issue"),
    "thread.resume": ("thread", "resume this issue's thread"),
    "turn.start": ("turn", "start the turn"),
    "turn.interrupt": ("turn", "interrupt the turn"),
    "question.create": ("question", "ask the people of this issue"),
    "receipt.create": ("receipt", "tell that the request was received"),
    "comment.create": ("comment", "post the final comment"),
    "comment.edit": ("comment", "edit the final comment"),
    "mcp.write": ("tool call", "write to Gitea for the agent"),
    "branch.publish": ("branch", "push the agent's commits to the branch of this task"),
}


def tell(recorded: Recorded) -> Line | None:
    """The line of one event, None for what only matters to machines."""
    told = _told(recorded)
    if told is None:
        return None
    at = recorded.recorded_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Line(position=recorded.position, at=at, chapter=told[0], text=told[1])


def _told(recorded: Recorded) -> tuple[str, str] | None:  # noqa: C901 - one arm per event
    match recorded.event:
        case deliveries.DeliveryReceived() as event:
            return "delivery", f"{event.shape} {event.delivery_id} by user {event.sender_id}, signature valid"
        case deliveries.DeliveryDecided() as event:
            reason = f" ({event.reason})" if event.reason else ""
            return "delivery", f"{event.status}{reason}"
        case repositories.RepositoryRegistered() as event:
            return "repository", f"{event.repo_key} registered on first sight"
        case tasks.TaskReceived() as event:
            return "task", f"{event.task_id} for {event.resource_key}"
        case tasks.TaskTransitioned() as event:
            why = f" [{event.error_code}]" if event.error_code else ""
            return "task", f"{event.from_state} -> {event.to_state}, version {event.state_version}{why}"
        case leases.LeaseAcquired() as event:
            return (
                "lease",
                f"{event.scope} taken, epoch {event.epoch}, for {event.ttl_ms / 1000:g} s at a time",
            )
        case leases.LeaseEnded() as event:
            return "lease", f"{event.scope} {event.cause}"
        case effects.EffectIntended() as event:
            chapter, what = _OPERATIONS[event.operation]
            return chapter, f"intent: {what}"
        case effects.EffectConcluded() as event:
            return _OPERATIONS[event.operation][0], _result(event)
        case effects.ToolCalled() as event:
            return "tool call", f"the agent calls {event.tool} on {event.target}"
        case effects.ToolRefused() as event:
            return "tool call", f"refused: {event.tool} ({event.reason})"
        case repositories.MirrorFetched() as event:
            return "mirror", "at " + ", ".join(f"{ref} {str(sha)[:10]}" for ref, sha in event.heads.items())
        case repositories.WorkspaceRecorded() as event:
            state = "with uncommitted work" if event.left.get("dirty") else "clean"
            return "workspace", f"recorded: head {str(event.left.get('head'))[:10]}, {state}"
        case tasks.BoxStarted() as event:
            return "box", f"{event.agent} runs, isolation {event.isolation}, pid {event.identity['pid']}"
        case tasks.BoxEnded() as event:
            return "box", f"dead ({event.cause})"
        case sessions.ThreadBound() as event:
            return "thread", f"{event.thread_id} now belongs to {event.session_key}"
        case turns.TurnStarted() as event:
            return "turn", f"{event.turn_id} started"
        case turns.TurnEnded() as event:
            tokens = (event.usage or {}).get("totalTokens")
            return "turn", f"{event.status} after {event.event_seq} events, {tokens or 0} tokens"
        case tasks.ReplyObserved() as event:
            return (
                "confirmation",
                f"read back from Gitea: {event.outcome}, comments {list(event.comment_ids)}",
            )
        case tasks.ReplyConfirmed() as event:
            return "confirmation", f"the final reply stands once, comment {list(event.comment_ids)}"
        case _:
            return None


def _result(event: effects.EffectConcluded) -> str:
    outside = f", id {event.outside_id}" if event.outside_id else ""
    code = f" ({event.error_code})" if event.error_code else ""
    return f"result: {event.status}{code}{outside}"


@dataclasses.dataclass(kw_only=True)
class Summary:
    """What ``demo --json`` prints as its last line."""

    outcome: str = "unfinished"
    task_id: str | None = None
    delivery_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    final_comments: list[int] = dataclasses.field(default_factory=list)
    receipts: list[int] = dataclasses.field(default_factory=list)
    events: int = 0
    agent: str = "scripted"
    isolation: str = "none"
    seconds: float = 0.0

    def take(self, recorded: Recorded) -> None:
        """Note what one event adds."""
        self.events = max(self.events, recorded.position)
        match recorded.event:
            case deliveries.DeliveryDecided(status="accepted") as event if self.task_id is None:
                self.task_id = event.task_id
                self.delivery_id = event.delivery_key.partition(":")[2]
            case turns.TurnStarted() as event:
                self.thread_id, self.turn_id = event.thread_id, event.turn_id
            case tasks.TaskTransitioned() as event if event.task_id == self.task_id:
                self.outcome = event.to_state
            case _:
                pass

    def as_json(self) -> dict[str, Any]:
        """The one object."""
        return dataclasses.asdict(self)
