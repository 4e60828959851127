"""Sessions: one per issue or pull request, with one Codex thread. Stream ``session:<sessionKey>`` (seed §4.3)."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from domain.events import Event, derived, fact

Status = Literal["active", "waiting_user", "closed"]

LOOKED_AT = 16
"""How many of a session's latest tasks are looked at when a word is said."""


@derived
class SessionOpened(Event):
    """The first admitted mention on a resource."""

    session_key: str
    repo_key: str
    kind: Literal["issue", "pull_request"]
    number: int


@derived
class SessionTaskAdmitted(Event):
    """A task of this session was queued. ``at`` (UTC) and ``author_id`` serve the rate limit."""

    session_key: str
    task_id: str
    author_id: int
    at: str


@derived
class SessionWaiting(Event):
    """A task of this session asked a question: the next admitted comment is its answer, not a new task."""

    session_key: str
    task_id: str


@derived
class SessionContinued(Event):
    """The question was answered, or its task ended."""

    session_key: str
    task_id: str


@derived
class SessionMentionTaken(Event):
    """A permitted mention on this resource that made no task: an answer, or a word. It counts for the rate limit."""

    session_key: str
    kind: Literal["answer", "word"]
    author_id: int
    at: str
    task_id: str | None = None


@fact
class ThreadBound(Event):
    """The session's thread, bound at its first recorded turn (a thread without a turn can't be resumed)."""

    session_key: str
    thread_id: str
    task_id: str
    turn_id: str
    runner_id: str


@fact
class ThreadReplaced(Event):
    """A thread that provably can't be resumed was given up for a new one (seed §4.3)."""

    session_key: str
    thread_id: str
    replaced: str
    task_id: str
    error_code: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """The fold of one session stream.

    ``admitted``: author id and time of each mention that was taken, oldest first; ``task_ids``: its latest tasks
    (``LOOKED_AT`` of them), ``waiting``: those that wait for an answer, in the order in which they asked.
    """

    opened: SessionOpened | None = None
    thread_id: str | None = None
    thread_runner: str | None = None
    last_task_id: str | None = None
    admitted: tuple[tuple[int, str], ...] = ()
    task_ids: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def waiting_task(self) -> str | None:
        """The task that the next admitted comment answers: of those that wait, the one that asked last."""
        return self.waiting[-1] if self.waiting else None


def evolve(session: Session, event: Event) -> Session:
    """Apply one event."""
    match event:
        case SessionOpened():
            return dataclasses.replace(session, opened=event)
        case SessionTaskAdmitted():
            return dataclasses.replace(
                session,
                last_task_id=event.task_id,
                admitted=(*session.admitted, (event.author_id, event.at))[-100:],
                task_ids=(*session.task_ids, event.task_id)[-LOOKED_AT:],
            )
        case SessionMentionTaken():
            return dataclasses.replace(
                session, admitted=(*session.admitted, (event.author_id, event.at))[-100:]
            )
        case SessionWaiting():
            return dataclasses.replace(session, waiting=(*_without(session, event.task_id), event.task_id))
        case SessionContinued():
            return dataclasses.replace(session, waiting=_without(session, event.task_id))
        case ThreadBound():
            return dataclasses.replace(session, thread_id=event.thread_id, thread_runner=event.runner_id)
        case ThreadReplaced():
            return dataclasses.replace(session, thread_id=None)
        case _:
            return session


def _without(session: Session, task_id: str) -> tuple[str, ...]:
    return tuple(waiting for waiting in session.waiting if waiting != task_id)


def fold(events: Iterable[Event]) -> Session:
    """Rebuild a session from its events."""
    session = Session()
    for event in events:
        session = evolve(session, event)
    return session
