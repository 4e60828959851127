"""What an operator's act means (gitea-workflow, Task): the facts to append, or a refusal that says why not.

Pure: the act and the state as read, in; facts out. ``cancel`` and ``abort`` obey ``stop``, the one rule that the word
of the same name obeys too:

    queued, waiting_user, blocked_workspace → cancelled
    preparing, retry_wait                   → recorded, then running → aborting → aborted, without a turn started
    running                                 → aborting → aborted, or failed(abort_timeout)
    verifying_reply, aborting, ended        → 409 invalid_state
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import orjson

from domain import ids, tasks, transitions
from domain.control import GloballyPaused, GloballyResumed
from domain.effects import EffectIntended
from domain.events import Event
from domain.faults import Conflict
from domain.processes import execution
from domain.repositories import Repository, RepositoryDisabled, RepositoryEnabled
from domain.sessions import SessionTaskAdmitted
from domain.tasks import (
    AbortRequested,
    InstructionAmended,
    Task,
    TaskAnswered,
    TaskCancelled,
    TaskReceived,
    TaskTransitioned,
    TaskUnblocked,
)

ControlAct = Literal["pause", "resume"]
TaskAct = Literal["cancel", "abort", "unblock", "retry"]
RepositoryAct = Literal["disable", "enable"]
Act = ControlAct | TaskAct | RepositoryAct

AT_REST: frozenset[str] = frozenset(("queued", "waiting_user", "blocked_workspace"))
"""States of a task that nobody works on: it can be cancelled."""

UNDER_WAY: frozenset[str] = frozenset(("preparing", "running", "retry_wait"))
"""States in which a task is aborted."""

REPEATABLE: frozenset[str] = frozenset(("failed", "failed_reply", "aborted", "cancelled"))
"""States from which a retry makes a new task."""

CANCELLED = "cancelled_by_operator"
"""The error code of a task that an operator cancelled; the reason stands in the request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """An operator's act. ``target``: task id or repository key, None for the whole service."""

    act: Act
    request_id: str
    reason: str
    actor: str
    target: str | None = None

    @property
    def digest(self) -> str:
        """What was asked, by whom: the same request id with another digest is another request."""
        asked = orjson.dumps([self.act, self.target, self.reason, self.actor])
        return "sha256:" + hashlib.sha256(asked).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
    """A new task in the place of one that ended: its events in order, with its receipt's intent."""

    task_id: str
    received: TaskReceived
    queued: TaskTransitioned
    receipt: EffectIntended
    admitted: SessionTaskAdmitted

    @property
    def task(self) -> Task:
        """The new task."""
        return tasks.fold((self.received, self.queued, self.receipt))


def refused(act: str, task: Task, message: str) -> Conflict:
    """409 ``invalid_state`` with the state that does not allow it."""
    return Conflict(
        message,
        code="invalid_state",
        params={"taskId": task.task_id, "action": act, "state": task.state},
    )


def decide(command: Command, task: Task, *, at: str) -> list[Event]:
    """The facts of a cancel, an abort or an unblock; raises ``Conflict`` ``invalid_state``. ``at``: ISO 8601."""
    match command.act:
        case "cancel":
            if task.state not in AT_REST:
                raise refused("cancel", task, _uncancellable(task))
            return _cancelled(command, task)
        case "abort":
            return stop(command, task, at=at)
        case "unblock":
            if task.state != "blocked_workspace":
                message = f"the task is {task.state}: only a task whose workspace is blocked is unblocked"
                raise refused("unblock", task, message)
            return [
                TaskUnblocked(
                    task_id=task.task_id,
                    actor=command.actor,
                    reason=command.reason,
                    request_id=command.request_id,
                )
            ]
        case _:
            raise ValueError(f"{command.act} is not decided by a task's state alone")


def stop(command: Command, task: Task, *, at: str, code: str = CANCELLED) -> list[Event]:
    """The facts that end a task that has not ended; raises ``Conflict`` ``invalid_state``.

    ``code``: the error code of the task if it is cancelled.
    """
    if task.state in AT_REST:
        return _cancelled(command, task, code=code)
    if task.state not in UNDER_WAY:
        raise refused("abort", task, _unstoppable(task))
    return [
        AbortRequested(
            task_id=task.task_id,
            actor=command.actor,
            reason=command.reason,
            at=at,
            request_id=command.request_id,
        )
    ]


def asked(events: Iterable[Event]) -> Mapping[str, Any]:
    """What a task was asked to do: its instruction as admitted and amended, without later answers to questions.

    What is amended after an answer is the answer: only the text that was given last can be.
    """
    instruction: Mapping[str, Any] = {}
    for event in events:
        if isinstance(event, TaskAnswered):
            break
        if isinstance(event, TaskReceived | InstructionAmended):
            instruction = event.instruction
    return instruction


def again(
    command: Command,
    task: Task,
    repository: Repository,
    instruction: Mapping[str, Any],
    *,
    at: str,
    locale: str,
) -> Again:
    """A retry: a new task that names the old one; raises ``Conflict`` ``invalid_state``, ``repository_disabled``."""
    former = task.received
    if former is None or task.state not in REPEATABLE:
        raise refused("retry", task, _unrepeatable(task))
    if repository.disabled:
        raise Conflict(
            "the repository is disabled: enable it first",
            code="repository_disabled",
            params={"taskId": task.task_id, "repoKey": former.repo_key},
        )
    key = ids.deferred_key("retry", command.request_id)
    task_id = ids.task_id(key)
    received = dataclasses.replace(
        former,
        task_id=task_id,
        delivery_key=key,
        instruction=dict(instruction),
        retry_of=former.task_id,
    )
    made = tasks.fold((received,))
    queued = tasks.transition(made, "queued", trigger="admitted")
    made = tasks.evolve(made, queued)
    return Again(
        task_id=task_id,
        received=received,
        queued=queued,
        receipt=execution.receipt_intent(made, "queued", 2, locale=locale, code=None),
        admitted=SessionTaskAdmitted(
            session_key=former.session_key, task_id=task_id, author_id=former.author_id, at=at
        ),
    )


def of_service(command: Command) -> Event:
    """Pause or resume. Either may be repeated: the newest act's actor and reason are what is shown."""
    made = GloballyPaused if command.act == "pause" else GloballyResumed
    return made(actor=command.actor, reason=command.reason, request_id=command.request_id)


def of_repository(command: Command, repo_key: str) -> Event:
    """Disable or enable a repository; either may be repeated."""
    made = RepositoryDisabled if command.act == "disable" else RepositoryEnabled
    return made(repo_key=repo_key, actor=command.actor, reason=command.reason, request_id=command.request_id)


def _cancelled(command: Command, task: Task, *, code: str = CANCELLED) -> list[Event]:
    return [TaskCancelled(task_id=task.task_id, reason=code, actor=command.actor)]


def _uncancellable(task: Task) -> str:
    if task.state in UNDER_WAY:
        return f"the task is {task.state}: abort it instead"
    return _unstoppable(task)


def _unstoppable(task: Task) -> str:
    if task.state == "verifying_reply":
        return "the task is verifying_reply: its turn has ended, and its answer is being read back"
    if task.state == "aborting":
        return "the task is aborting already"
    return f"the task is {task.state}: it has ended"


def _unrepeatable(task: Task) -> str:
    if task.state in transitions.TERMINAL:
        return f"the task is {task.state}: there is nothing to try again"
    return f"the task is {task.state}: it has not ended yet"
