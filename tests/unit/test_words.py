"""Words said to the bot: who may say them, what they do, what is answered, once."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from domain import ids, sessions, tasks
from domain.commands import CommandGiven, Word
from domain.deliveries import DenialReceiptGranted, MentionConsumed
from domain.effects import EffectIntended
from domain.log import QueueDrop, QueuePut
from domain.mentions import WORDS
from domain.processes import words
from domain.processes.intake_state import State
from domain.sessions import SessionContinued, SessionMentionTaken, SessionTaskAdmitted, SessionWaiting
from domain.tasks import AbortRequested, QuestionAsked, Task, TaskCancelled, TaskReceived, TaskTransitioned
from domain.transitions import STATES
from domain.webhooks import Person
from tests.unit.intake_world import (
    KNOWN,
    READER,
    RULES,
    decided,
    delivery,
    events,
    full,
    queued,
    state,
)

BOB = Person(id=21, login="bob")
ASKED: Mapping[str, Any] = {"content": "c", "digest": "d", "length": 1}


def task(state_now: Any, *, number: int = 0, author: int = 11) -> Task:
    """A task of issue 12 in some state."""
    received = queued().task.received
    assert received is not None
    made = dataclasses.replace(received, task_id=f"gitea-task-{number}", author_id=author)
    return dataclasses.replace(
        tasks.fold((made,)), state=state_now, state_version=4, revision=9, instruction=ASKED
    )


def around(*known: Task, **changed: Any) -> State:
    """The state with these tasks in the session."""
    versions = {**state().versions, **{ids.task_stream(each.task_id): each.revision for each in known}}
    return state(versions=versions, around=known, asked=ASKED, **changed)


def said(word: str, given: State | None = None, **changed: Any) -> Any:
    """The decision about a word of alice's, who may write."""
    return decided(delivery(f"@ccweb-bot {word}", **changed), given)


def outcome(decision: Any) -> CommandGiven:
    (given,) = events(decision, CommandGiven)
    assert isinstance(given, CommandGiven)
    return given


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_word_makes_no_task_and_is_answered_once(word: str) -> None:
    """Each word, in either language, is one event with its author and one short comment, and no task of its own."""
    decision = said(word)
    assert decision.answer.body() == {
        "deliveryId": "d-1",
        "status": "accepted",
        "reason": "command",
        "taskId": None,
        "state": None,
    }
    given = outcome(decision)
    assert (given.word, given.author_id, given.delivery_key) == (WORDS[word], 11, "default:d-1")
    (letter,) = events(decision, EffectIntended)
    assert isinstance(letter, EffectIntended)
    assert (letter.executor, letter.operation) == ("receipts", "receipt.create")
    assert letter.key == f"{ids.task_id('default:d-1')}:status:{given.word}"
    text = words.answer_text(given.word, details=given.details, locale="en")
    assert letter.body_hash == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    (consumed,) = events(decision, MentionConsumed)
    assert isinstance(consumed, MentionConsumed)
    assert consumed.task_id is None
    assert not events(decision, TaskReceived)


@pytest.mark.parametrize("now", [each for each in STATES if each != "received"])
def test_stop_follows_the_one_rule(now: Any) -> None:
    """What waits is cancelled, what is under way is aborted, and what ends or ended is said so."""
    decision = said("stop", around(task(now)))
    given = outcome(decision)
    moved = [
        each.to_state for each in events(decision, TaskTransitioned) if isinstance(each, TaskTransitioned)
    ]
    if now in ("queued", "waiting_user", "blocked_workspace"):
        assert (given.outcome, moved) == ("cancelled", ["cancelled"])
        (cancelled,) = events(decision, TaskCancelled)
        assert isinstance(cancelled, TaskCancelled)
        assert (cancelled.reason, cancelled.actor) == ("cancelled_by_comment", "gitea:user:11")
    elif now in ("preparing", "running", "retry_wait"):
        assert given.outcome == "aborting"
        assert events(decision, AbortRequested)
        assert "aborting" in moved
    else:
        expected = {"verifying_reply": "verifying_reply", "aborting": "ending"}.get(now, "nothing_to_stop")
        assert (given.outcome, moved) == (expected, [])
    assert len(events(decision, CommandGiven)) == 1


def test_a_stopped_queued_task_leaves_the_queue() -> None:
    """Nobody claims what was stopped, and its stream is a premise of the append."""
    decision = said("stop", around(task("queued")))
    assert decision.queue == (QueueDrop(task="gitea-task-0"),)
    assert {premise.stream: premise.version for premise in decision.premises}["task:gitea-task-0"] == 9


def test_stop_means_what_is_under_way_first() -> None:
    """Of several tasks the running one is stopped, then one that waits for people, then the oldest queued one."""
    known = [task("queued", number=3), task("waiting_user", number=2), task("running", number=1)]
    for expected in ("gitea-task-1", "gitea-task-2", "gitea-task-3"):
        assert outcome(said("stop", around(*known))).task_id == expected
        known.pop()


@pytest.mark.parametrize("now", [each for each in STATES if each != "received"])
def test_retry_is_a_new_task_of_whoever_says_it(now: Any) -> None:
    """A task that ended badly is done again as a new one that names it; of any other state it is said so."""
    decision = said("retry", around(task(now, author=21)))
    given = outcome(decision)
    if now in ("failed", "failed_reply", "aborted", "cancelled"):
        (received,) = events(decision, TaskReceived)
        assert isinstance(received, TaskReceived)
        assert (received.retry_of, received.author_id) == ("gitea-task-0", 11)
        assert received.instruction == ASKED
        assert decision.answer.task_id == received.task_id == ids.task_id("default:retry:d-1")
        assert decision.queue == (
            QueuePut(task=received.task_id, repo=received.repo_key, session=received.session_key),
        )
        (receipt,) = events(decision, EffectIntended)
        assert isinstance(receipt, EffectIntended)
        assert receipt.key == f"{received.task_id}:status:queued", "its receipt is the answer"
        (admitted,) = events(decision, SessionTaskAdmitted)
        assert isinstance(admitted, SessionTaskAdmitted)
        assert admitted.author_id == 11
    else:
        assert (given.outcome, given.task_id) == ("invalid_state", "gitea-task-0")
        assert not events(decision, TaskReceived)
        assert len(events(decision, EffectIntended)) == 1


def test_retry_takes_the_latest_task() -> None:
    """An older failure is not tried again once something newer was asked for."""
    decision = said("retry", around(task("failed", number=0), task("succeeded", number=1)))
    assert outcome(decision).outcome == "invalid_state"


@pytest.mark.parametrize("word", ["retry", "help"])
def test_who_lost_the_right_is_refused(word: str) -> None:
    """A word of somebody who may not trigger now does nothing, also to a task that was his own."""
    decision = said(word, around(task("failed", author=11)), permissions=READER)
    assert (decision.answer.status, decision.answer.reason) == ("ignored", "not_permitted")
    assert events(decision, DenialReceiptGranted)
    assert not events(decision, CommandGiven, TaskReceived, TaskTransitioned, MentionConsumed)


@pytest.mark.parametrize("word", ["stop", "status"])
def test_a_task_s_author_may_stop_it_and_ask_for_it(word: str) -> None:
    """Without the right to trigger, `stop` and `status` work on one's own tasks and on no others."""
    own, other = task("queued", number=1, author=11), task("running", number=2, author=21)
    decision = said(word, around(own, other), permissions=READER)
    given = outcome(decision)
    assert "gitea-task-2" not in repr(given)
    assert "gitea-task-1" in repr(given)
    stranger = said(word, around(other), permissions=READER)
    assert stranger.answer.reason == "not_permitted"
    assert not events(stranger, CommandGiven, TaskTransitioned)


def test_a_word_without_stated_rights_is_deferred() -> None:
    """Where the payload does not state the sender's right, nothing is done at once."""
    assert said("stop", around(task("running")), permissions=None).answer.status == "deferred"


def test_status_tells_of_what_has_not_ended() -> None:
    """Open tasks are told of; if there are none, the latest one."""
    failed = dataclasses.replace(task("failed", number=0), error_code="turn_stalled")
    both = outcome(said("status", around(failed, task("running", number=1))))
    assert [each["taskId"] for each in both.details["tasks"]] == ["gitea-task-1"]
    ended = outcome(said("status", around(failed)))
    text = words.answer_text("status", details=ended.details, locale="en")
    assert text == "giteabot: gitea-task-0 is failed (turn_stalled)"


def test_words_count_for_the_rate_limit_and_stop_is_never_limited() -> None:
    """Two bots that talk to each other in words are stopped by the limit; a person can always stop a task."""
    assert said("status", state(session=full())).answer.reason == "rate_limited"
    assert outcome(said("stop", around(task("running"), session=full()))).outcome == "aborting"
    (taken,) = events(said("status"), SessionMentionTaken)
    assert isinstance(taken, SessionMentionTaken)
    assert (taken.kind, taken.author_id) == ("word", 11)


def test_an_answer_continues_the_task_that_asked() -> None:
    """An admitted comment of a session whose task waits is that task's answer, and counts for the rate limit."""
    asked = QuestionAsked(task_id="gitea-task-0", turn_id="t", question={}, at="2026-11-03T09:00:00Z")
    waiting = dataclasses.replace(task("waiting_user"), question=asked)
    given = around(waiting=waiting)
    decision = decided(delivery("@ccweb-bot the second"), given)
    assert (decision.answer.http_status, decision.answer.task_id) == (202, "gitea-task-0")
    assert not events(decision, TaskReceived, EffectIntended)
    assert events(decision, SessionMentionTaken)
    limited = decided(delivery("@ccweb-bot the second"), dataclasses.replace(given, session=full()))
    assert limited.answer.reason == "rate_limited"
    outsider = decided(delivery("@ccweb-bot the second", permissions=READER), given)
    assert outsider.answer.reason == "not_permitted"
    assert not events(outsider, TaskTransitioned)


def test_a_disabled_repository_takes_no_words() -> None:
    """The order of reasons holds for words."""
    disabled = around(task("failed"), repository=dataclasses.replace(KNOWN, disabled=True))
    assert said("retry", disabled).answer.reason == "repository_disabled"


def test_an_edit_into_stop_stops_the_task_of_that_text() -> None:
    """Whoever edits a queued task's comment into the word stop cancels that task."""
    before = queued()
    made = delivery(
        "@ccweb-bot stop", delivery_id="d-2", shape="comment_edited", changed_from="@ccweb-bot fix it"
    )
    decision = decided(made, before)
    assert outcome(decision).outcome == "cancelled"
    assert not events(decision, MentionConsumed)
    denied = decided(dataclasses.replace(made, permissions=READER, sender=BOB), before)
    assert denied.answer.reason == "not_permitted"
    assert not events(denied, TaskTransitioned)


def test_an_edit_of_a_word_changes_nothing() -> None:
    """A word's text belongs to no task: editing it afterwards neither amends nor starts one."""
    consumed = MentionConsumed(mention_key="m", delivery_key="default:d-1", task_id=None)
    made = delivery(
        "@ccweb-bot fix it", delivery_id="d-2", shape="comment_edited", changed_from="@ccweb-bot stop"
    )
    assert decided(made, state(consumed=consumed)).answer.reason == "not_a_trigger"
    replay = decided(delivery("@ccweb-bot stop", delivery_id="d-3"), state(consumed=consumed))
    assert replay.answer.body() == {
        "deliveryId": "d-3",
        "status": "ignored",
        "reason": "comment_already_handled",
    }


def test_every_answer_has_a_text_in_each_language() -> None:
    """Every word and every outcome can be told in every locale."""
    assert frozenset(get_args(Word)) == words.ANSWERED
    outcomes = {
        "stop": ("cancelled", "aborting", "verifying_reply", "ending", "nothing_to_stop"),
        "retry": ("nothing_to_retry", "invalid_state"),
        "status": ("told",),
        "help": ("told",),
    }
    for word, each in outcomes.items():
        for told in each:
            details = {"outcome": told, "taskId": "gitea-task-0", "state": "queued", "tasks": []}
            texts = {words.answer_text(word, details=details, locale=locale) for locale in ("en", "zh")}
            assert len(texts) == 2
            assert all(text.startswith("giteabot: ") for text in texts)


def test_own_texts_take_the_place_of_ours() -> None:
    """An operator's template is what is written, and what the intent's hash is of."""
    rules = dataclasses.replace(RULES, receipt_templates={"help": "ask at the desk"})
    decision = decided(delivery("@ccweb-bot help"), rules=rules)
    (letter,) = events(decision, EffectIntended)
    assert isinstance(letter, EffectIntended)
    assert letter.body_hash == "sha256:" + hashlib.sha256(b"ask at the desk").hexdigest()


def test_sessions_remember_who_waits() -> None:
    """The latest to ask is answered first; the others go on waiting."""
    session = sessions.Session()
    for asked in ("one", "two"):
        session = sessions.evolve(session, SessionWaiting(session_key="s", task_id=asked))
    assert session.waiting_task == "two"
    session = sessions.evolve(session, SessionContinued(session_key="s", task_id="two"))
    assert session.waiting_task == "one"
    assert sessions.evolve(session, SessionContinued(session_key="s", task_id="one")).waiting_task is None
