"""Which action an event is in the audit: a closed list (workflow, Overview, audit; seed §4.5).

``ACTIONS`` names an action for every event type, or a function where the event's content decides. A test fails on a
type without one. ``FAMILIES`` and ``SINGLE`` are the list that actions are taken from.
"""

from collections.abc import Callable
from typing import Any

from domain.events import Event

FAMILIES = (
    "workspace.",
    "thread.",
    "turn.",
    "question.",
    "command.",
    "box.",
    "control.",
    "repo.",
)
SINGLE = frozenset(
    (
        "webhook.accept",
        "webhook.defer",
        "webhook.ignore",
        "webhook.duplicate",
        "webhook.reject",
        "task.create",
        "task.amend",
        "task.claim",
        "task.transition",
        "task.transition_refused",
        "task.cancel",
        "task.abort",
        "task.unblock",
        "task.retry",
        "lease.acquire",
        "lease.lost",
        "lease.release",
        "mcp.call",
        "receipt.send",
        "reply.confirm",
        "reply.missing",
        "reply.unknown",
        "reply.retry",
        "reply.fallback",
        "comment.dedupe",
        "permission.read",
        "branch.publish",
        "intent.reconcile",
        "auth.deny",
        "capability.downgrade",
        "content.erase",
        "configuration.activate",
    )
)

Naming = str | Callable[[Any], str]

_DECIDED = {
    "accepted": "webhook.accept",
    "deferred": "webhook.defer",
    "ignored": "webhook.ignore",
    "duplicate": "webhook.duplicate",
    "rejected": "webhook.reject",
}
_OBSERVED = {
    "found": "reply.confirm",
    "missing": "reply.missing",
    "unknown": "reply.unknown",
    "away": "reply.unknown",
}
_EFFECTS = {
    "mirror.sync": "workspace.sync",
    "workspace.checkout": "workspace.checkout",
    "box.start": "box.start",
    "thread.start": "thread.start",
    "thread.resume": "thread.resume",
    "turn.start": "turn.start",
    "turn.interrupt": "turn.interrupt",
    "comment.create": "mcp.call",
    "comment.edit": "mcp.call",
    "receipt.create": "receipt.send",
    "question.create": "question.post",
    "mcp.write": "mcp.call",
    "branch.publish": "branch.publish",
}


def _intended(event: Any) -> str:  # noqa: ANN401 - EffectIntended, chosen by the table
    if event.comment_kind == "question":
        return "question.post"
    if event.comment_kind == "rest_fallback":
        return "reply.fallback"
    return _EFFECTS[event.operation]


def _concluded(event: Any) -> str:  # noqa: ANN401 - EffectConcluded
    return "intent.reconcile" if event.reconciled else _EFFECTS[event.operation]


ACTIONS: dict[str, Naming] = {
    # deliveries
    "DeliveryReceived": "webhook.defer",  # until its decision, which stands in the same entry
    "DeliveryDecided": lambda event: _DECIDED[event.status],
    "DeliveryRefused": "webhook.reject",
    "DeliveryRepeated": "webhook.duplicate",
    "SignaturesRefused": "webhook.reject",
    "MentionConsumed": "comment.dedupe",
    "DenialReceiptGranted": "receipt.send",
    "PermissionObserved": "permission.read",
    "CommentsReconciled": "intent.reconcile",
    # repositories and workspaces
    "RepositoryKeyClaimed": "repo.claim_key",
    "RepositoryRegistered": "repo.register",
    "RepositoryRenamed": "repo.rename",
    "RepositoryDisabled": "repo.disable",
    "RepositoryEnabled": "repo.enable",
    "RepositoryBlocked": "repo.block",
    "RepositoryUnblocked": "repo.unblock",
    "MirrorFetched": "workspace.fetch",
    "WorkspaceRecorded": "workspace.record",
    "WorkspaceFoundBlocked": "workspace.block",
    "LeftoversParked": "workspace.park",
    # sessions and threads
    "SessionOpened": "thread.open_session",
    "SessionTaskAdmitted": "thread.admit",
    "SessionMentionTaken": "thread.admit",
    "ThreadBound": "thread.bind",
    "ThreadReplaced": "thread.replace",
    # tasks
    "TaskReceived": "task.create",
    "TaskTransitioned": "task.transition",
    "TransitionRefused": "task.transition_refused",
    "InstructionAmended": "task.amend",
    "TaskClaimed": "task.claim",
    "TaskCancelled": "task.cancel",
    "TriggerObserved": "command.reread",
    "RunInterrupted": "box.lost",
    "BoxStarted": "box.start",
    "BoxEnded": "box.end",
    # turns and tools
    "TurnStarted": "turn.start",
    "TurnEnded": "turn.end",
    "TurnItemSeen": "turn.item",
    "UnsolicitedTurnInterrupted": "turn.interrupt",
    "CapabilityDowngraded": "capability.downgrade",
    "ToolCalled": "mcp.call",
    "ToolRefused": "mcp.call",
    "EffectIntended": _intended,
    "EffectConcluded": _concluded,
    # words
    "CommandGiven": lambda event: f"command.{event.word}",
    # replies
    "ReplyObserved": lambda event: _OBSERVED[event.outcome],
    "ReplyConfirmed": "reply.confirm",
    # leases
    "LeaseAcquired": "lease.acquire",
    "LeaseEnded": lambda event: "lease.release" if event.cause == "released" else "lease.lost",
    # control
    "SessionWaiting": "question.wait",
    "SessionContinued": "question.continue",
    "QuestionAsked": "question.ask",
    "TaskAnswered": "question.answer",
    "TaskUnblocked": "task.unblock",
    "AbortRequested": "task.abort",
    "AbortConfirmed": "task.abort",
    "InterruptRequested": "turn.interrupt",
    "TimerFired": "question.timeout",
    "GiteaReachabilityObserved": "control.gitea",
    "GloballyPaused": "control.pause",
    "RequestRecorded": "control.request",
    "GloballyResumed": "control.resume",
    "ConfigurationActivated": "configuration.activate",
}


def action_of(event: Event) -> str:
    """The action of an event. Raises ``LookupError`` for a type that has none."""
    naming = ACTIONS[event.type]
    return naming if isinstance(naming, str) else naming(event)


def is_listed(action: str) -> bool:
    """Whether an action belongs to the closed list."""
    return action in SINGLE or action.startswith(FAMILIES)
