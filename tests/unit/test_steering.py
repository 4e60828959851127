"""What an operator's act means for a task in each of its states."""

import dataclasses
from typing import Any, get_args

import pytest

from domain import ids, tasks
from domain.events import Event
from domain.faults import Conflict
from domain.log import QueueDrop, QueuePut
from domain.processes import execution, steering
from domain.processes.endings import Rules
from domain.processes.steering import REPEATABLE, Act, Command, TaskAct
from domain.repositories import Repository, RepositoryUnblocked
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
from domain.transitions import STATES, State

TASK = "gitea-task-0123456789abcdef01234567"
REPO = "default:acme/widget"
SESSION = f"{REPO}:issue:1"
AT = "2026-11-30T12:00:00.000Z"
RECEIVED = TaskReceived(
    task_id=TASK,
    delivery_key="default:d",
    repo_key=REPO,
    resource_key=SESSION,
    session_key=SESSION,
    comment_id=1,
    trigger={"kind": "comment", "id": 1},
    author_id=3,
    instruction={"content": "c", "digest": "d", "length": 1},
    resource={"kind": "issue", "number": 1},
)
ALLOWED: dict[str, set[str]] = {
    "cancel": {"queued", "waiting_user", "blocked_workspace"},
    "abort": {"queued", "waiting_user", "blocked_workspace", "preparing", "running", "retry_wait"},
    "unblock": {"blocked_workspace"},
    "retry": {"failed", "failed_reply", "aborted", "cancelled"},
}
ENDS: dict[tuple[str, str], list[State]] = {
    ("cancel", "queued"): ["cancelled"],
    ("cancel", "waiting_user"): ["cancelled"],
    ("cancel", "blocked_workspace"): ["cancelled"],
    ("abort", "queued"): ["cancelled"],
    ("abort", "waiting_user"): ["cancelled"],
    ("abort", "blocked_workspace"): ["cancelled"],
    ("abort", "preparing"): ["running", "aborting"],
    ("abort", "running"): ["aborting"],
    ("abort", "retry_wait"): ["running", "aborting", "aborted"],
    ("unblock", "blocked_workspace"): ["queued"],
}


def command(act: str, **parts: Any) -> Command:
    fields = {"request_id": "r-1", "reason": "because", "actor": "admin:token", "target": TASK, **parts}
    return Command(act=act, **fields)  # type: ignore[arg-type]


def task_in(state: State) -> Task:
    return dataclasses.replace(tasks.fold([RECEIVED]), state=state, state_version=3, revision=4)


def act_on(act: str, task: Task) -> list[Event]:
    """The facts, or for a retry the new task's events."""
    if act == "retry":
        made = steering.again(command(act), task, Repository(), RECEIVED.instruction, at=AT, locale="en")
        return [made.received, made.queued, made.receipt, made.admitted]
    return steering.decide(command(act), task, at=AT)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", get_args(TaskAct))
def test_each_act_is_allowed_where_the_page_says(act: str, state: State) -> None:
    """In every state each act either has its effect or is a 409 that names the state; nothing else exists."""
    if state in ALLOWED[act]:
        assert act_on(act, task_in(state))
        return
    with pytest.raises(Conflict) as refused:
        act_on(act, task_in(state))
    assert refused.value.code == "invalid_state"
    assert refused.value.params == {"taskId": TASK, "action": act, "state": state}
    assert state in refused.value.message


@pytest.mark.parametrize(("act", "state"), ENDS)
def test_what_an_act_leads_to(act: str, state: State) -> None:
    """The facts of an act entail the transitions of the table, each one version up, and cost no attempt."""
    task = task_in(state)
    followed = execution.follow(task, 4, steering.decide(command(act), task, at=AT), Rules())
    moves = [draft.event for draft in followed.drafts if isinstance(draft.event, TaskTransitioned)]
    assert [move.to_state for move in moves] == ENDS[act, state]
    assert [move.state_version for move in moves] == [4 + n for n in range(len(moves))]
    assert {move.attempt for move in moves} == {0}
    unblocked = [draft for draft in followed.drafts if isinstance(draft.event, RepositoryUnblocked)]
    assert len(unblocked) == (state == "blocked_workspace")
    if state in ("queued", "retry_wait"):
        assert followed.queue == (QueueDrop(task=TASK),)
    if act == "unblock":
        assert followed.queue == (QueuePut(task=TASK, repo=REPO, session=SESSION),)


def test_an_abort_starts_no_turn() -> None:
    """Aborting a task that is being prepared or waits for its retry intends nothing but its receipt."""
    for state in ("preparing", "retry_wait"):
        task = task_in(state)  # type: ignore[arg-type]
        followed = execution.follow(task, 4, steering.decide(command("abort"), task, at=AT), Rules())
        assert {intent.operation for intent in followed.task.open_intents} <= {"receipt.create"}


def test_acts_carry_who_and_why() -> None:
    """The facts hold the operator and the request; an abort and an unblock the reason too."""
    (aborted,) = steering.decide(command("abort"), task_in("running"), at=AT)
    assert aborted == AbortRequested(
        task_id=TASK, actor="admin:token", reason="because", at=AT, request_id="r-1"
    )
    (unblocked,) = steering.decide(command("unblock"), task_in("blocked_workspace"), at=AT)
    assert unblocked == TaskUnblocked(task_id=TASK, actor="admin:token", reason="because", request_id="r-1")
    (cancelled,) = steering.decide(command("cancel"), task_in("queued"), at=AT)
    assert cancelled == TaskCancelled(task_id=TASK, actor="admin:token", reason="cancelled_by_operator")


@pytest.mark.parametrize("state", sorted(REPEATABLE))
def test_a_retry_is_a_new_task_that_names_the_old_one(state: State) -> None:
    """The new task has its own key and id, the old one's everything else, no attempt, and a receipt to send."""
    made = steering.again(
        command("retry"), task_in(state), Repository(), {"content": "n"}, at=AT, locale="zh"
    )
    assert made.received.retry_of == TASK
    assert made.received.delivery_key == "default:retry:r-1"
    assert made.task_id == ids.task_id("default:retry:r-1") == made.received.task_id
    same = dataclasses.replace(
        made.received,
        task_id=TASK,
        delivery_key="default:d",
        instruction=RECEIVED.instruction,
        retry_of=None,
    )
    assert same == RECEIVED
    assert (made.task.state, made.task.state_version, made.task.attempt) == ("queued", 1, 0)
    assert made.task.instruction == {"content": "n"}
    assert [intent.executor for intent in made.task.open_intents] == ["receipts"]
    assert made.receipt.task_id == made.task_id
    assert made.admitted.session_key == SESSION


def test_a_retry_in_a_disabled_repository_is_refused() -> None:
    """A disabled repository takes no new task, by a retry neither."""
    with pytest.raises(Conflict) as refused:
        steering.again(command("retry"), task_in("failed"), Repository(disabled=True), {}, at=AT, locale="en")
    assert refused.value.code == "repository_disabled"


def test_a_retry_asks_what_was_asked() -> None:
    """Amendments count; an answer to a question is not the request itself."""
    amended = InstructionAmended(
        task_id=TASK, instruction={"content": "amended"}, editor_id=3, delivery_key="default:e"
    )
    answer = TaskAnswered(
        task_id=TASK,
        delivery_key="default:f",
        comment_id=2,
        author_id=3,
        instruction={"content": "the second one"},
    )
    assert steering.asked([RECEIVED]) == RECEIVED.instruction
    assert steering.asked([RECEIVED, amended, answer]) == {"content": "amended"}
    assert steering.asked([RECEIVED, answer, amended]) == RECEIVED.instruction


def test_another_request_has_another_digest() -> None:
    """Everything that was asked, and by whom, tells one request from another under the same id."""
    digests = {command(act).digest for act in (*get_args(TaskAct), "pause", "disable")}
    digests |= {
        command("cancel", reason="other").digest,
        command("cancel", target="gitea-task-other").digest,
        command("cancel", actor="admin:alice").digest,
    }
    assert len(digests) == len(get_args(TaskAct)) + 2 + 3
    assert command("cancel").digest == command("cancel", request_id="r-2").digest
    assert len(get_args(Act)) == 3
