"""Turns: one run of the agent on a thread (seed §4.5). Facts on the task's stream; items on ``turn:<turnId>``.

``turn_id`` is ours: stable and unique; Codex's own id is an attribute (it is not unique in old versions).
"""

from typing import Any, Literal, get_args

from domain.events import Event, fact

Kind = Literal["normal", "reply_retry"]
Status = Literal["started", "completed", "interrupted", "failed", "cancelled"]

KINDS: frozenset[str] = frozenset(get_args(Kind))
STATUSES: frozenset[str] = frozenset(get_args(Status))


@fact
class TurnStarted(Event):
    """The app-server accepted the turn."""

    task_id: str
    session_key: str
    turn_id: str
    codex_turn_id: str
    thread_id: str
    kind: Kind
    ordinal: int
    prompt_hash: str
    at: str


@fact
class TurnEnded(Event):
    """The turn is over: its status, the last message's content, the tokens, the error where it failed.

    ``cause``: why we ended it, where we did (``stalled``, ``deadline``, ``drain``, ``abort``, ``agent_exited``).
    """

    task_id: str
    turn_id: str
    status: Status
    at: str
    event_seq: int
    error_code: str | None = None
    error: str | None = None
    cause: str | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, int] | None = None


@fact
class TurnItemSeen(Event):
    """One item event of the agent, numbered by us within the turn. ``summary`` is bounded and free of secrets."""

    task_id: str
    turn_id: str
    seq: int
    method: str
    item_type: str | None
    item_id: str | None
    summary: dict[str, Any]


@fact
class CapabilityDowngraded(Event):
    """A collaboration mode was rejected, or settings did not take effect: a plain turn was started at once."""

    task_id: str
    turn_id: str | None
    capability: str
    detail: str


@fact
class UnsolicitedTurnInterrupted(Event):
    """The app-server started a turn by itself; it was interrupted."""

    task_id: str
    thread_id: str
    codex_turn_id: str
