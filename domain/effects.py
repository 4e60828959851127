"""Intents and results: every outside write has one event before it and one after (architecture).

Both stand on the task's stream. An intent is derived from a fact; its id is a hash of the causing stream, version,
kind and ordinal, so that deriving it again gives the same id.
"""

from typing import Literal

from domain.events import Event, derived, fact

Operation = Literal[
    "mirror.sync",
    "workspace.checkout",
    "box.start",
    "thread.start",
    "thread.resume",
    "turn.start",
    "turn.interrupt",
    "comment.create",
    "comment.edit",
    "receipt.create",
    "question.create",
    "mcp.write",
    "branch.publish",
]

Executor = Literal["runner", "bridge", "receipts"]

CommentKind = Literal["status", "mcp_final", "rest_fallback", "question"]
"""Seed §4.5, and ``question``."""

COMMENT_STATUSES: frozenset[str] = frozenset(("pending", "sent", "confirmed", "failed"))


@derived
class EffectIntended(Event):
    """An outside write will be attempted.

    ``target``: what it writes to (a resource key, a workspace, a thread); ``key``: the idempotency key outside;
    ``body_hash``: ``sha256:…`` of what is written, where there is a body; ``comment_key`` and ``comment_kind`` for
    comments (seed §4.5); ``attempt`` the task's; ``fence`` scope and epoch under which it is allowed.
    """

    intent_id: str
    operation: Operation
    executor: Executor
    task_id: str
    target: str
    key: str
    attempt: int
    turn_id: str | None = None
    body_hash: str | None = None
    comment_key: str | None = None
    comment_kind: CommentKind | None = None
    tool: str | None = None
    fence: str | None = None


@fact
class EffectConcluded(Event):
    """What became of an intent. ``unknown``: it may or may not have happened, and must be looked up.

    ``at``: the database's time, UTC. ``retry_after_s``: what the outside asked for.
    """

    intent_id: str
    operation: Operation
    task_id: str
    status: Literal["succeeded", "failed", "unknown"]
    at: str
    outside_id: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    error: str | None = None
    reconciled: bool = False


@fact
class ToolCalled(Event):
    """The agent asked the bridge for a write. The intent that follows is derived from it."""

    task_id: str
    turn_id: str
    tool: str
    operation: Operation
    target: str
    key: str
    body_hash: str | None = None


@fact
class ToolRefused(Event):
    """The agent asked the bridge for what the policy does not allow."""

    task_id: str
    turn_id: str | None
    tool: str
    reason: str
