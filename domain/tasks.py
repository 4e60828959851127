"""Tasks: one per admitted mention, from queued to one confirmed reply. Stream ``task:<taskId>`` (seed §4.4)."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from domain.effects import EffectConcluded, EffectIntended
from domain.events import Event, derived, fact
from domain.transitions import State, allowed
from domain.turns import TurnEnded, TurnStarted


@derived
class TaskReceived(Event):
    """A mention was admitted (state ``received``, ``stateVersion`` 0).

    ``instruction``: content id, digest, length. ``trigger``: kind and id of what carried the mention, and its URL.
    """

    task_id: str
    delivery_key: str
    repo_key: str
    resource_key: str
    session_key: str
    comment_id: int | None
    trigger: dict[str, Any]
    author_id: int
    instruction: dict[str, Any]
    resource: dict[str, Any]
    refs: dict[str, Any] | None = None
    retry_of: str | None = None


@derived
class TaskTransitioned(Event):
    """One transition. ``state_version`` rises by exactly one.

    ``next_retry_at`` and ``resume_state`` stand in retry_wait; ``after_look``: where an interrupted run goes on once
    the comments were looked at and hold no answer; ``away_since``: since when this task waits for Gitea itself.
    """

    task_id: str
    repo_key: str
    session_key: str
    from_state: State
    to_state: State
    state_version: int
    trigger: str
    attempt: int
    reply_attempt: int
    error_code: str | None = None
    error: str | None = None
    next_retry_at: str | None = None
    resume_state: State | None = None
    after_look: State | None = None
    away_since: str | None = None


@fact
class TransitionRefused(Event):
    """An illegal or stale transition was asked for. Nothing changed; it is alerted, never coerced."""

    task_id: str
    from_state: str
    to_state: str
    state_version: int
    trigger: str


@derived
class InstructionAmended(Event):
    """The comment of a queued task was edited by somebody who may."""

    task_id: str
    instruction: dict[str, Any]
    editor_id: int
    delivery_key: str


@fact
class TaskClaimed(Event):
    """A runner took the task, and the repository's lease in the same append. ``thread_id``: the session's."""

    task_id: str
    runner_id: str
    lease_id: str
    epoch: int
    thread_id: str | None
    left: dict[str, Any] | None
    at: str


@fact
class TaskCancelled(Event):
    """Somebody, or an observation (``trigger_deleted``, ``trigger_mismatch``), ended a task that was not running."""

    task_id: str
    reason: str
    actor: str
    delivery_key: str | None = None


@fact
class TaskUnblocked(Event):
    """A person confirmed the workspace: the task is queued again, at the cost of no attempt."""

    task_id: str
    actor: str
    reason: str
    request_id: str | None = None


@fact
class AbortRequested(Event):
    """Somebody wants a running task to end. It ends when Codex confirms, or when its box is dead."""

    task_id: str
    actor: str
    reason: str
    at: str
    request_id: str | None = None


@fact
class AbortConfirmed(Event):
    """Nothing of the task runs any more. ``outcome`` timeout: Codex did not confirm, the box was killed."""

    task_id: str
    outcome: Literal["confirmed", "timeout"]
    at: str


@fact
class InterruptRequested(Event):
    """The runner is about to interrupt the turn (``stalled``, ``deadline``, ``drain``)."""

    task_id: str
    turn_id: str
    cause: str
    at: str


@fact
class QuestionAsked(Event):
    """The agent needs an answer from people. It is posted once the turn has ended; ``question``: content."""

    task_id: str
    turn_id: str
    question: dict[str, Any]
    at: str


@derived
class TaskAnswered(Event):
    """An admitted comment on the session of a waiting task: its text is the input of a new turn."""

    task_id: str
    delivery_key: str
    comment_id: int | None
    author_id: int
    instruction: dict[str, Any]


@fact
class TimerFired(Event):
    """A deadline passed, by the database's clock (``waiting``: nobody answered a question in time)."""

    task_id: str
    timer: Literal["waiting"]
    at: str


@fact
class TriggerObserved(Event):
    """What the claim's re-read of the comment found."""

    task_id: str
    outcome: Literal["same", "edited", "gone", "mismatch", "unknown"]
    at: str


@fact
class RunInterrupted(Event):
    """The run's process is gone, or gave up its lease: whoever finds it records it and goes on from the log."""

    task_id: str
    error_code: str
    at: str


@fact
class BoxStarted(Event):
    """A box runs the agent. ``identity``: boot id, pid namespace, pid, start time, by which it can be killed."""

    task_id: str
    identity: dict[str, Any]
    isolation: str
    agent: str
    at: str


@fact
class BoxEnded(Event):
    """The box is dead: nothing of it writes any more."""

    task_id: str
    cause: str
    at: str


@fact
class WorkspaceFoundBlocked(Event):
    """The workspace holds what nobody may overwrite. ``reasons``: what was found."""

    task_id: str
    reasons: tuple[str, ...]
    at: str


@fact
class ReplyObserved(Event):
    """What the resource's comments showed: the bot's comment with this task's marker, its absence, or no answer.

    ``away``: Gitea itself does not answer, also to a cheap probe.

    ``comment_ids``: parts of one reply in order. ``listings``: successful listings that were made.
    """

    task_id: str
    outcome: Literal["found", "missing", "unknown", "away"]
    comment_ids: tuple[int, ...]
    turn_id: str | None
    listings: int
    at: str
    error_code: str | None = None


@derived
class ReplyConfirmed(Event):
    """The final reply stands in Gitea and was read back (seed §5.4)."""

    task_id: str
    turn_id: str
    comment_ids: tuple[int, ...]


Closed = Literal["succeeded", "failed", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn as its task sees it."""

    started: TurnStarted
    ended: TurnEnded | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The fold of one task stream; ``revision`` counts its events, and is the stream's version."""

    revision: int = 0
    received: TaskReceived | None = None
    state: State = "received"
    state_version: int = 0
    attempt: int = 0
    reply_attempt: int = 0
    error_code: str | None = None
    error: str | None = None
    next_retry_at: str | None = None
    resume_state: State | None = None
    after_look: State | None = None
    instruction: Mapping[str, Any] | None = None
    thread_id: str | None = None
    lease_id: str | None = None
    epoch: int | None = None
    runner_id: str | None = None
    left: Mapping[str, Any] | None = None
    away_since: str | None = None
    unblocked: bool = False
    question: QuestionAsked | None = None
    questions: tuple[QuestionAsked, ...] = ()
    answered: bool = False
    box: BoxStarted | None = None
    turns: tuple[Turn, ...] = ()
    intents: Mapping[str, EffectIntended] = dataclasses.field(default_factory=dict)
    results: Mapping[str, EffectConcluded] = dataclasses.field(default_factory=dict)
    reply: ReplyConfirmed | None = None

    @property
    def task_id(self) -> str:
        """Its id; only for a task that exists."""
        if self.received is None:
            raise LookupError("no such task")
        return self.received.task_id

    @property
    def turn(self) -> Turn | None:
        """The latest turn."""
        return self.turns[-1] if self.turns else None

    @property
    def open_intents(self) -> tuple[EffectIntended, ...]:
        """Intents without a result, oldest first."""
        return tuple(intent for key, intent in self.intents.items() if key not in self.results)

    def intents_of(self, executor: str) -> tuple[EffectIntended, ...]:
        """Open intents that this executor carries out."""
        return tuple(intent for intent in self.open_intents if intent.executor == executor)

    @property
    def final_comments(self) -> tuple[int, ...]:
        """Ids of the final comments that Gitea acknowledged, in order."""
        return tuple(
            int(result.outside_id)
            for key, result in self.results.items()
            if result.status == "succeeded"
            and result.outside_id is not None
            and key in self.intents
            and self.intents[key].operation == "comment.create"
            and self.intents[key].comment_kind in ("mcp_final", "rest_fallback")
        )

    @property
    def reply_retrying(self) -> bool:
        """Whether the running turn, or the one about to start, only posts a lost reply again."""
        return self.state == "running" and self.reply_attempt > 0

    @property
    def last_message(self) -> Mapping[str, Any] | None:
        """The content reference of the last text that a turn ended with."""
        for turn in reversed(self.turns):
            if turn.ended is not None and turn.ended.message is not None:
                return turn.ended.message
        return None

    @property
    def fallbacks(self) -> tuple[tuple[EffectIntended, EffectConcluded | None], ...]:
        """Fallback comments that were intended, with their results."""
        return tuple(
            (intent, self.results.get(key))
            for key, intent in self.intents.items()
            if intent.comment_kind == "rest_fallback"
        )

    @property
    def may_have_answered(self) -> bool:
        """Whether a final comment was sent, or may have been."""
        for key, intent in self.intents.items():
            if intent.comment_kind not in ("mcp_final", "rest_fallback"):
                continue
            result = self.results.get(key)
            if result is None or result.status in ("succeeded", "unknown"):
                return True
        return False


def _transitioned(task: Task, event: TaskTransitioned) -> Task:
    leased = event.to_state in ("preparing", "running", "verifying_reply", "aborting")
    return dataclasses.replace(
        task,
        state=event.to_state,
        state_version=event.state_version,
        attempt=event.attempt,
        reply_attempt=event.reply_attempt,
        error_code=event.error_code,
        error=event.error,
        next_retry_at=event.next_retry_at,
        resume_state=event.resume_state,
        after_look=event.after_look,
        away_since=event.away_since,
        unblocked=task.unblocked or event.trigger == "unblocked",
        lease_id=task.lease_id if leased else None,
        epoch=task.epoch if leased else None,
        runner_id=task.runner_id if leased else None,
    )


def evolve(task: Task, event: Event) -> Task:
    """Apply one event."""
    return dataclasses.replace(_applied(task, event), revision=task.revision + 1)


def _applied(task: Task, event: Event) -> Task:
    match event:
        case TaskReceived():
            return dataclasses.replace(task, received=event, instruction=event.instruction)
        case TaskTransitioned():
            return _transitioned(task, event)
        case InstructionAmended():
            return dataclasses.replace(task, instruction=event.instruction)
        case TaskClaimed():
            return dataclasses.replace(
                task,
                lease_id=event.lease_id,
                epoch=event.epoch,
                runner_id=event.runner_id,
                thread_id=event.thread_id,
                left=event.left,
            )
        case EffectIntended():
            return dataclasses.replace(task, intents={**task.intents, event.intent_id: event})
        case EffectConcluded():
            thread = task.thread_id
            if event.operation in ("thread.start", "thread.resume") and event.status == "succeeded":
                thread = event.outside_id
            return dataclasses.replace(
                task, thread_id=thread, results={**task.results, event.intent_id: event}
            )
        case QuestionAsked():
            return dataclasses.replace(task, question=event, questions=(*task.questions, event))
        case TaskAnswered():
            return dataclasses.replace(task, question=None, answered=True, instruction=event.instruction)
        case WorkspaceFoundBlocked():
            return dataclasses.replace(task, unblocked=False)
        case BoxStarted():
            return dataclasses.replace(task, box=event, unblocked=False)
        case BoxEnded():
            return dataclasses.replace(task, box=None)
        case TurnStarted():
            return dataclasses.replace(task, turns=(*task.turns, Turn(started=event)))
        case TurnEnded():
            return dataclasses.replace(
                task,
                turns=tuple(
                    dataclasses.replace(turn, ended=event) if turn.started.turn_id == event.turn_id else turn
                    for turn in task.turns
                ),
            )
        case ReplyConfirmed():
            return dataclasses.replace(task, reply=event)
        case _:
            return task


def fold(events: Iterable[Event]) -> Task:
    """Rebuild a task from its events."""
    task = Task()
    for event in events:
        task = evolve(task, event)
    return task


class IllegalTransition(Exception):
    """The transition is not in the table: refused, recorded and alerted by the caller, never coerced."""

    def __init__(self, refused: TransitionRefused) -> None:
        super().__init__(f"{refused.from_state} -> {refused.to_state} ({refused.trigger})")
        self.refused = refused


def transition(
    task: Task,
    target: State,
    *,
    trigger: str,
    attempt: int | None = None,
    reply_attempt: int | None = None,
    error_code: str | None = None,
    error: str | None = None,
    next_retry_at: str | None = None,
    resume_state: State | None = None,
    after_look: State | None = None,
    away_since: str | None = None,
) -> TaskTransitioned:
    """The event that takes ``task`` to ``target``; raises ``IllegalTransition`` where the table has no such edge."""
    received = task.received
    if received is None or not allowed(task.state, target):
        raise IllegalTransition(
            TransitionRefused(
                task_id=received.task_id if received else "",
                from_state=task.state,
                to_state=target,
                state_version=task.state_version,
                trigger=trigger,
            )
        )
    return TaskTransitioned(
        task_id=received.task_id,
        repo_key=received.repo_key,
        session_key=received.session_key,
        from_state=task.state,
        to_state=target,
        state_version=task.state_version + 1,
        trigger=trigger,
        attempt=task.attempt if attempt is None else attempt,
        reply_attempt=task.reply_attempt if reply_attempt is None else reply_attempt,
        error_code=error_code,
        error=error,
        next_retry_at=next_retry_at,
        resume_state=resume_state,
        after_look=after_look,
        away_since=away_since,
    )
