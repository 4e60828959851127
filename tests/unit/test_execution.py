"""The execution's process manager: facts in, transitions and intents out, nothing else read."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain import failures, tasks
from domain.effects import EffectConcluded, EffectIntended, ToolCalled
from domain.events import Event
from domain.log import QueueDrop, QueuePut
from domain.processes import execution
from domain.processes.endings import Rules
from domain.repositories import RepositoryUnblocked
from domain.tasks import (
    AbortConfirmed,
    AbortRequested,
    QuestionAsked,
    ReplyConfirmed,
    ReplyObserved,
    RunInterrupted,
    Task,
    TaskCancelled,
    TaskClaimed,
    TaskReceived,
    TaskTransitioned,
    TaskUnblocked,
    TimerFired,
    TransitionRefused,
    TriggerObserved,
    WorkspaceFoundBlocked,
)
from domain.transitions import STATES, TERMINAL
from domain.turns import TurnEnded, TurnStarted

TASK = "gitea-task-0123456789abcdef01234567"
REPO = "default:acme/widget"
SESSION = f"{REPO}:issue:1"
AT = "2026-11-30T12:00:00.000Z"
RULES = Rules(retry_delay_s=30.0)


def begun() -> list[Event]:
    received = TaskReceived(
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
    task = tasks.fold([received])
    return [received, tasks.transition(task, "queued", trigger="admitted")]


class Story:
    """A task's stream as it grows by facts."""

    def __init__(self) -> None:
        self.events: list[Event] = begun()
        self.queue: list[QueuePut | QueueDrop] = []
        self.others: list[Event] = []

    @property
    def task(self) -> Task:
        return tasks.fold(self.events)

    def tell(self, *facts: Event) -> list[Event]:
        followed = execution.follow(self.task, len(self.events), facts, RULES)
        new = [draft.event for draft in followed.drafts if draft.stream == f"task:{TASK}"]
        self.others += [draft.event for draft in followed.drafts if draft.stream != f"task:{TASK}"]
        self.events += new
        self.queue += followed.queue
        assert followed.task == self.task
        return new

    def claim(self, *, thread_id: str | None = None) -> None:
        self.tell(
            TaskClaimed(
                task_id=TASK,
                runner_id="r",
                lease_id="l",
                epoch=1,
                thread_id=thread_id,
                left=None,
                at=AT,
            )
        )

    def conclude(
        self,
        operation: str,
        status: str = "succeeded",
        *,
        code: str | None = None,
        outside_id: str | None = None,
        at: str = AT,
    ) -> list[Event]:
        intent = next(each for each in self.task.open_intents if each.operation == operation)
        return self.tell(
            EffectConcluded(
                intent_id=intent.intent_id,
                operation=intent.operation,
                task_id=TASK,
                status=status,  # type: ignore[arg-type]
                at=at,
                outside_id=outside_id,
                error_code=code,
            )
        )

    def start_turn(self) -> None:
        self.claim()
        for operation in ("mirror.sync", "workspace.checkout", "box.start"):
            self.conclude(operation)
        self.conclude("thread.start", outside_id="thread-1")
        self.conclude("turn.start", outside_id="codex-1")
        self.begin_turn(1, "normal")

    def begin_turn(self, number: int, kind: str) -> None:
        self.tell(
            TurnStarted(
                task_id=TASK,
                session_key=SESSION,
                turn_id=f"{TASK}-turn-{number}",
                codex_turn_id=f"codex-{number}",
                thread_id="thread-1",
                kind=kind,  # type: ignore[arg-type]
                ordinal=number,
                prompt_hash="sha256:0",
                at=AT,
            )
        )

    def end_turn(
        self,
        status: str = "completed",
        *,
        code: str | None = None,
        cause: str | None = None,
        number: int = 1,
        text: str | None = None,
    ) -> None:
        self.tell(
            TurnEnded(
                task_id=TASK,
                turn_id=f"{TASK}-turn-{number}",
                status=status,  # type: ignore[arg-type]
                at=AT,
                event_seq=3,
                error_code=code,
                cause=cause,
                message={"content": "m", "digest": f"hmac:{text}", "length": len(text)} if text else None,
            )
        )

    def comment(self, status: str = "succeeded") -> None:
        self.tell(
            ToolCalled(
                task_id=TASK,
                turn_id=f"{TASK}-turn-1",
                tool="issue_write",
                operation="comment.create",
                target=SESSION,
                key="k",
            )
        )
        self.conclude("comment.create", status, outside_id="77" if status == "succeeded" else None)

    def observe(self, outcome: str, *, at: str = AT) -> None:
        found = outcome == "found"
        self.tell(
            ReplyObserved(
                task_id=TASK,
                outcome=outcome,  # type: ignore[arg-type]
                comment_ids=(77,) if found else (),
                turn_id=f"{TASK}-turn-1" if found else None,
                listings=1,
                at=at,
            )
        )


def states(events: Sequence[Event]) -> list[str]:
    return [event.to_state for event in events if isinstance(event, TaskTransitioned)]


def test_the_whole_way_to_a_confirmed_reply() -> None:
    """The normal way goes through the seed's states, each step's intent following from the last step's result."""
    story = Story()
    story.start_turn()
    story.comment()
    story.end_turn()
    story.observe("found")
    assert states(story.events) == ["queued", "preparing", "running", "verifying_reply", "succeeded"]
    operations = [event.operation for event in story.events if isinstance(event, EffectIntended)]
    assert operations == [
        "mirror.sync",
        "workspace.checkout",
        "box.start",
        "thread.start",
        "turn.start",
        "comment.create",
    ]
    assert not story.task.open_intents
    assert [event.comment_ids for event in story.events if isinstance(event, ReplyConfirmed)] == [(77,)]


def test_a_known_thread_is_resumed_and_replaced_only_after_proof() -> None:
    """With a bound thread the next step resumes it; only thread_not_found leads to a new one."""
    story = Story()
    story.claim(thread_id="thread-0")
    for operation in ("mirror.sync", "workspace.checkout", "box.start"):
        story.conclude(operation)
    assert [each.operation for each in story.task.open_intents] == ["thread.resume"]
    story.conclude("thread.resume", "failed", code="thread_not_found")
    assert [each.operation for each in story.task.open_intents] == ["thread.start"]
    assert story.task.state == "preparing"


@pytest.mark.parametrize("code", sorted(failures.RETRIED))
def test_a_retryable_failure_uses_the_one_retry_and_then_fails(code: str) -> None:
    """The first failure waits with attempt 1 and a time; the second, of whatever cause, ends the task."""
    story = Story()
    story.claim()
    story.conclude("mirror.sync", "failed", code=code)
    task = story.task
    assert (task.state, task.attempt, task.error_code) == ("retry_wait", 1, code)
    assert task.next_retry_at == "2026-11-30T12:00:30.000Z"
    assert task.resume_state == "preparing"
    story.claim()
    story.conclude("mirror.sync", "failed", code="git_timeout")
    assert (story.task.state, story.task.attempt) == ("failed", 1)
    receipts = [each for each in story.task.open_intents if each.executor == "receipts"]
    assert [each.key for each in receipts] == [f"{TASK}:status:failed"]


@pytest.mark.parametrize(
    "code", ["gitea_mcp_missing", "gitea_token_invalid", "codex_too_old", "something_new"]
)
def test_other_failures_end_at_once_with_one_receipt(code: str) -> None:
    """What a retry cannot mend fails without one, and is told once."""
    story = Story()
    story.claim()
    story.conclude("mirror.sync", "failed", code=code)
    assert (story.task.state, story.task.attempt, story.task.error_code) == ("failed", 0, code)
    assert len(story.task.intents_of("receipts")) == 1


def test_a_blocked_workspace_waits_without_a_receipt() -> None:
    """A workspace that nobody may overwrite blocks the task, costs no attempt, and writes no comment."""
    story = Story()
    story.claim()
    story.conclude("mirror.sync")
    intent = story.task.intents_of("runner")[0]
    story.tell(
        EffectConcluded(
            intent_id=intent.intent_id,
            operation=intent.operation,
            task_id=TASK,
            status="failed",
            at=AT,
            error_code="workspace_dirty",
        ),
        WorkspaceFoundBlocked(task_id=TASK, reasons=("index.lock",), at=AT),
    )
    assert (story.task.state, story.task.attempt) == ("blocked_workspace", 0)
    assert not story.task.intents_of("receipts")


def test_a_reply_that_is_unknown_fails_and_nothing_is_written() -> None:
    """Unknown is not missing: failed_reply at once, one receipt, and no second body is intended."""
    story = Story()
    story.start_turn()
    story.end_turn()
    story.observe("unknown")
    assert (story.task.state, story.task.error_code) == ("failed_reply", "reply_unknown")
    assert [each.operation for each in story.task.open_intents] == ["receipt.create"]


def climbed(*, text: bool = True) -> Story:
    """A task whose reply retry is over, too, and whose reply is missing still."""
    story = Story()
    story.start_turn()
    story.end_turn(text="the answer" if text else None)
    story.observe("missing")
    assert (story.task.state, story.task.resume_state, story.task.reply_attempt) == (
        "retry_wait",
        "running",
        1,
    )
    story.claim(thread_id="thread-1")
    for operation in ("mirror.sync", "workspace.checkout", "box.start"):
        story.conclude(operation)
    story.conclude("thread.resume", outside_id="thread-1")
    story.conclude("turn.start", outside_id="codex-2")
    story.begin_turn(2, "reply_retry")
    assert story.task.state == "running"
    story.end_turn(number=2)
    assert story.task.state == "verifying_reply"
    story.observe("missing")
    return story


def test_a_missing_reply_climbs_to_one_comment_by_rest() -> None:
    """One reply retry, then one fallback, then confirmed by a look: the MCP error stays on the task."""
    story = climbed()
    fallback = story.task.intents_of("runner")
    assert [(each.operation, each.comment_kind) for each in fallback] == [("comment.create", "rest_fallback")]
    story.conclude("comment.create", outside_id="77")
    story.observe("found")
    assert story.task.state == "succeeded_with_rest_fallback"
    assert story.task.error_code == "mcp_reply_missing"


@pytest.mark.parametrize("status", ["succeeded", "unknown"])
def test_a_fallback_that_is_not_found_is_never_posted_again(status: str) -> None:
    """After a fallback that was sent, or may have been, missing is the end of the ladder."""
    story = climbed()
    story.conclude(
        "comment.create", status, outside_id="77" if status == "succeeded" else None, code="gitea_unavailable"
    )
    assert story.task.state == "verifying_reply"
    story.observe("missing")
    assert (story.task.state, story.task.error_code) == ("failed_reply", "mcp_reply_missing")
    assert not story.task.intents_of("runner")


def test_without_a_text_there_is_no_fallback() -> None:
    """A task none of whose turns ended with a text has nothing to post."""
    story = climbed(text=False)
    assert story.task.state == "failed_reply"


def test_a_late_original_reply_is_no_fallback() -> None:
    """If what is found is not the fallback's comment, the task simply succeeded."""
    story = climbed()
    story.conclude("comment.create", outside_id="99")
    story.observe("found")
    assert story.task.state == "succeeded"


@pytest.mark.parametrize("where", ["preparing", "verifying_reply"])
def test_a_gitea_that_is_away_costs_no_attempt_up_to_a_limit(where: str) -> None:
    """Away means waiting without a lease and without an attempt; after the limit it fails and says why."""
    story = Story()
    if where == "preparing":
        story.claim()
        story.conclude("mirror.sync", "failed", code="gitea_unavailable")
    else:
        story.start_turn()
        story.end_turn()
        story.observe("away")
    task = story.task
    assert (task.state, task.attempt, task.resume_state) == ("retry_wait", 0, where)
    assert (task.error_code, task.away_since) == ("gitea_unavailable", AT)
    late = "2026-12-01T12:00:00.000Z"
    story.claim()
    if where == "preparing":
        story.conclude("mirror.sync", "failed", code="gitea_unavailable", at=late)
        assert (story.task.state, story.task.error_code) == ("failed", "gitea_unavailable")
    else:
        story.observe("away", at=late)
        assert (story.task.state, story.task.error_code) == ("failed_reply", "gitea_unavailable")


def test_a_question_waits_for_its_answer_without_a_lease() -> None:
    """A question is posted once its turn has ended; the answer is the input of a new turn; no attempt is consumed."""
    story = Story()
    story.start_turn()
    story.tell(
        QuestionAsked(task_id=TASK, turn_id=f"{TASK}-turn-1", question={"content": "q", "digest": "d"}, at=AT)
    )
    story.end_turn()
    assert (story.task.state, story.task.lease_id, story.task.attempt) == ("waiting_user", None, 0)
    assert [(each.operation, each.comment_kind) for each in story.task.intents_of("receipts")] == [
        ("question.create", "question")
    ]
    story.tell(TimerFired(task_id=TASK, timer="waiting", at=AT))
    assert (story.task.state, story.task.error_code) == ("failed", "waiting_timeout")


@pytest.mark.parametrize("where", ["preparing", "running", "retry_wait"])
def test_an_abort_ends_aborted_from_wherever_the_task_is(where: str) -> None:
    """Running goes through aborting; before a turn none is started; a waiting task ends at once."""
    story = Story()
    if where == "running":
        story.start_turn()
    else:
        story.claim()
        if where == "retry_wait":
            story.conclude("mirror.sync", "failed", code="git_timeout")
    story.tell(AbortRequested(task_id=TASK, actor="admin", reason="enough", at=AT))
    if where == "running":
        assert [each.operation for each in story.task.intents_of("runner")] == ["turn.interrupt"]
        story.end_turn("cancelled", cause="abort")
    elif where == "preparing":
        assert story.task.state == "aborting"
        story.tell(AbortConfirmed(task_id=TASK, outcome="confirmed", at=AT))
    assert story.task.state == "aborted"
    assert states(story.events)[-3:] == ["running", "aborting", "aborted"]
    assert [each.key for each in story.task.intents_of("receipts")] == [f"{TASK}:status:aborted"]


def test_an_unblocked_task_waits_again_at_no_cost() -> None:
    """Unblocking frees the repository and costs no attempt; the next run knows that a person looked."""
    story = Story()
    story.claim()
    story.tell(WorkspaceFoundBlocked(task_id=TASK, reasons=("x",), at=AT))
    story.tell(TaskUnblocked(task_id=TASK, actor="admin", reason="looked"))
    assert (story.task.state, story.task.attempt, story.task.unblocked) == ("queued", 0, True)
    assert story.others[-1] == RepositoryUnblocked(repo_key=REPO, task_id=TASK)


def test_an_interrupted_turn_is_looked_up_before_it_is_done_again() -> None:
    """After a crash in mid-turn the comments are looked at first; only their absence starts the one retry."""
    story = Story()
    story.start_turn()
    story.tell(RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT))
    assert (story.task.state, story.task.resume_state, story.task.attempt) == (
        "retry_wait",
        "verifying_reply",
        1,
    )
    story.claim()
    assert story.task.state == "verifying_reply"
    story.observe("missing")
    assert (story.task.state, story.task.resume_state, story.task.attempt) == ("retry_wait", "preparing", 1)
    story.claim()
    assert story.task.state == "preparing"


def test_an_interrupted_turn_that_had_answered_is_not_done_again() -> None:
    """If the lost turn's comment stands, it is the reply."""
    story = Story()
    story.start_turn()
    story.comment("unknown")
    story.tell(RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT))
    story.claim()
    story.observe("found")
    assert story.task.state == "succeeded"


def test_a_second_interruption_looks_once_more_and_then_ends() -> None:
    """The retry is used once: after a second crash the comments are looked at, and nothing is run again."""
    story = Story()
    story.start_turn()
    story.tell(RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT))
    story.claim()
    story.observe("missing")
    story.claim()
    for operation in ("mirror.sync", "workspace.checkout", "box.start"):
        story.conclude(operation)
    story.conclude("thread.resume" if story.task.thread_id else "thread.start", outside_id="thread-1")
    story.conclude("turn.start", outside_id="codex-2")
    story.tell(RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT))
    story.claim()
    story.observe("missing")
    assert story.task.state in {"failed_reply", "failed"}


def test_an_interruption_while_verifying_costs_no_attempt() -> None:
    """A restart in verifying_reply only looks again."""
    story = Story()
    story.start_turn()
    story.end_turn()
    story.tell(RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT))
    assert (story.task.state, story.task.attempt, story.task.resume_state) == (
        "retry_wait",
        0,
        "verifying_reply",
    )


def test_a_failed_turn_whose_comment_was_sent_is_verified_not_repeated() -> None:
    """A turn that failed after its comment was sent goes to verifying_reply, not to a second turn."""
    story = Story()
    story.start_turn()
    story.comment()
    story.end_turn("failed", code="model_unavailable")
    assert story.task.state == "verifying_reply"
    story.observe("found")
    assert story.task.state == "succeeded"


@pytest.mark.parametrize(("outcome", "code"), [("gone", "trigger_deleted"), ("mismatch", "trigger_mismatch")])
def test_a_trigger_that_is_gone_or_anothers_cancels(outcome: str, code: str) -> None:
    """What the claim's re-read finds cancels a queued task under its own code, without a receipt."""
    story = Story()
    story.tell(TriggerObserved(task_id=TASK, outcome=outcome, at=AT))  # type: ignore[arg-type]
    assert (story.task.state, story.task.error_code) == ("cancelled", code)
    assert not story.task.open_intents


def test_the_queue_is_the_fold_of_the_transitions() -> None:
    """A claim takes the task out of the queue, a retry puts it back with its time."""
    story = Story()
    story.claim()
    assert story.queue == [QueueDrop(task=TASK)]
    story.conclude("mirror.sync", "failed", code="git_timeout")
    put = story.queue[-1]
    assert isinstance(put, QueuePut)
    assert put.available_at is not None
    assert put.available_at.isoformat() == "2026-11-30T12:00:30+00:00"


FACTS = st.sampled_from(
    [
        TaskClaimed(task_id=TASK, runner_id="r", lease_id="l", epoch=1, thread_id=None, left=None, at=AT),
        RunInterrupted(task_id=TASK, error_code="interrupted_by_restart", at=AT),
        TriggerObserved(task_id=TASK, outcome="gone", at=AT),
        TaskCancelled(task_id=TASK, reason="operator", actor="admin"),
        WorkspaceFoundBlocked(task_id=TASK, reasons=("x",), at=AT),
        TurnStarted(
            task_id=TASK,
            session_key=SESSION,
            turn_id="t",
            codex_turn_id="c",
            thread_id="th",
            kind="normal",
            ordinal=1,
            prompt_hash="p",
            at=AT,
        ),
        TurnEnded(task_id=TASK, turn_id="t", status="completed", at=AT, event_seq=1),
        TurnEnded(task_id=TASK, turn_id="t", status="failed", at=AT, event_seq=1, error_code="model_quota"),
        ReplyObserved(task_id=TASK, outcome="found", comment_ids=(1,), turn_id="t", listings=1, at=AT),
        ReplyObserved(task_id=TASK, outcome="missing", comment_ids=(), turn_id=None, listings=3, at=AT),
        ReplyObserved(task_id=TASK, outcome="unknown", comment_ids=(), turn_id=None, listings=0, at=AT),
        "conclude",
        "fail",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(FACTS, max_size=25))
def test_any_order_of_facts_keeps_the_rules(steps: list[object]) -> None:
    """Whatever facts come in whatever order: versions rise by one, terminal is terminal, attempts stay within one."""
    story = Story()
    for step in steps:
        before = story.task
        if isinstance(step, Event):
            new = story.tell(step)
        elif before.intents_of("runner"):
            operation = before.intents_of("runner")[0].operation
            ok = step == "conclude"
            new = story.conclude(
                operation,
                "succeeded" if ok else "failed",
                code=None if ok else "git_timeout",
                outside_id="x",
            )
        else:
            continue
        versions = [event.state_version for event in new if isinstance(event, TaskTransitioned)]
        assert versions == list(range(before.state_version + 1, before.state_version + 1 + len(versions)))
        if before.state in TERMINAL:
            assert story.task.state == before.state
        assert story.task.attempt <= 1
        assert story.task.state in STATES
        for event in new:
            if isinstance(event, TransitionRefused):
                assert event.from_state == before.state or event.from_state in STATES
    ids = [event.intent_id for event in story.events if isinstance(event, EffectIntended)]
    assert len(ids) == len(set(ids))
    assert len([each for each in story.events if isinstance(each, ReplyConfirmed)]) <= 1
