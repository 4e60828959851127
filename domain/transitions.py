"""The task's transition table as data (seed §5.6, read as gitea-workflow.md, Task, says).

Used by ``domain.tasks``, by the diagram in the docs and by one exhaustive test of all pairs of states.
"""

import dataclasses
from typing import Literal, get_args

State = Literal[
    "received",
    "queued",
    "preparing",
    "running",
    "waiting_user",
    "verifying_reply",
    "retry_wait",
    "blocked_workspace",
    "aborting",
    "succeeded",
    "succeeded_with_rest_fallback",
    "failed",
    "failed_reply",
    "cancelled",
    "aborted",
    "ignored",
    "duplicate",
    "rejected",
]

STATES: tuple[State, ...] = get_args(State)

TERMINAL: frozenset[State] = frozenset(
    (
        "succeeded",
        "succeeded_with_rest_fallback",
        "failed",
        "failed_reply",
        "cancelled",
        "aborted",
        "ignored",
        "duplicate",
        "rejected",
    )
)
"""No way leads out of these, and no turn is ever created in them."""

LEASED: frozenset[State] = frozenset(("preparing", "running", "verifying_reply", "aborting"))
"""A task in one of these holds the lease of its repository."""

WAITING: frozenset[State] = frozenset(("queued", "retry_wait"))
"""A task in one of these stands in the queue."""


@dataclasses.dataclass(frozen=True)
class Transition:
    """One edge: ``trigger`` names what causes it, ``guard`` what must hold."""

    source: State
    target: State
    trigger: str
    guard: str


TABLE: tuple[Transition, ...] = (
    Transition("received", "queued", "admitted", "the mention was admitted"),
    Transition("received", "ignored", "filtered", "kept for the seed's enumeration; no task exists then"),
    Transition("received", "duplicate", "filtered", "kept for the seed's enumeration; no task exists then"),
    Transition("received", "rejected", "filtered", "kept for the seed's enumeration; no task exists then"),
    Transition("queued", "preparing", "claimed", "the repository's lease was taken in the same append"),
    Transition("queued", "cancelled", "cancelled", "an operator, or the comment is gone"),
    Transition("preparing", "running", "turn_started", "the app-server accepted the turn"),
    Transition(
        "preparing", "blocked_workspace", "workspace_blocked", "the workspace holds what nobody may overwrite"
    ),
    Transition(
        "preparing", "retry_wait", "execution_failed", "a retryable failure, and the one retry is left"
    ),
    Transition("preparing", "failed", "execution_failed", "not retryable, or the retry is used"),
    Transition("running", "waiting_user", "question_asked", "the question was recorded"),
    Transition(
        "running", "verifying_reply", "turn_ended", "a normal end, or an end after a comment was sent"
    ),
    Transition("running", "retry_wait", "execution_failed", "a retryable failure, and the one retry is left"),
    Transition("running", "aborting", "abort_requested", "an operator, or the word stop"),
    Transition("running", "failed", "execution_failed", "not retryable, or the retry is used"),
    Transition("waiting_user", "queued", "answered", "an admitted comment on the session"),
    Transition("waiting_user", "cancelled", "cancelled", "an operator, or the word stop"),
    Transition("waiting_user", "failed", "waiting_timeout", "nobody answered in time"),
    Transition("verifying_reply", "succeeded", "reply_found", "the comment was read back"),
    Transition(
        "verifying_reply",
        "succeeded_with_rest_fallback",
        "fallback_found",
        "the reply retry was used and the fallback was read back",
    ),
    Transition(
        "verifying_reply", "retry_wait", "retry_due", "the interrupted turn left no comment, or a restart"
    ),
    Transition("verifying_reply", "failed_reply", "reply_lost", "missing after every rung, or unknown"),
    Transition("retry_wait", "preparing", "claimed", "nextRetryAt has passed; resumes at preparing"),
    Transition("retry_wait", "running", "claimed", "nextRetryAt has passed; a turn on a known thread"),
    Transition("retry_wait", "verifying_reply", "claimed", "nextRetryAt has passed; looks first"),
    Transition("retry_wait", "failed", "execution_failed", "the retry is used"),
    Transition("blocked_workspace", "queued", "unblocked", "an operator confirmed the workspace"),
    Transition("blocked_workspace", "cancelled", "cancelled", "an operator, or the word stop"),
    Transition("aborting", "aborted", "abort_confirmed", "turn/completed, or the box is dead"),
    Transition("aborting", "failed", "abort_timeout", "no confirmation in time; the box was killed first"),
)

_EDGES: frozenset[tuple[State, State]] = frozenset((edge.source, edge.target) for edge in TABLE)


def allowed(source: State, target: State) -> bool:
    """Whether a task may go from ``source`` to ``target``."""
    return (source, target) in _EDGES
