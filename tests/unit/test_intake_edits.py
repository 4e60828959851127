import dataclasses
from typing import Any

import pytest

from domain import ids, tasks
from domain.log import QueueDrop
from domain.tasks import InstructionAmended, TaskCancelled, TaskReceived, TaskTransitioned
from domain.webhooks import Delivery, Person
from tests.unit.intake_world import (
    BOT,
    READER,
    RULES,
    comment,
    decided,
    delivery,
    edit,
    events,
    queued,
)


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ("look", "@ccweb-bot look", None),
        ("> @ccweb-bot look", "@ccweb-bot look", None),
        ("@ccweb-bot look", "@ccweb-bot look", "not_a_trigger"),
        ("look", "look again", "not_a_trigger"),
        ("@ccweb-bot look", "@ccweb-bot look again", "not_a_trigger"),
        ("@ccweb-bot look", "look", "not_a_trigger"),
        (None, "@ccweb-bot look", "not_a_trigger"),
    ],
)
def test_only_an_edit_that_adds_the_mention_triggers(
    before: str | None, now: str, reason: str | None
) -> None:
    """An edit of a text that no task came from triggers only by bringing the mention in."""
    made = delivery(now, shape="comment_edited", action="edited", changed_from=before)
    assert decided(made).answer.reason == reason


def test_the_actor_of_an_edit_is_who_edited() -> None:
    """A writer who adds a mention to a reader's comment is the author of the task."""
    part = comment("@ccweb-bot look", author=Person(id=21, login="bob"))
    made = delivery(shape="comment_edited", changed_from="look", part=part)
    (received,) = events(decided(made), TaskReceived)
    assert isinstance(received, TaskReceived)
    assert received.author_id == 11
    assert received.trigger["author_id"] == 21


@pytest.mark.parametrize("trigger", ["comment", "edit"])
def test_triggers_can_be_switched_off(trigger: Any) -> None:
    """What is not among the triggers triggers nothing."""
    rules = dataclasses.replace(RULES, triggers=RULES.triggers - {trigger})
    edit = delivery("@ccweb-bot look", shape="comment_edited", changed_from="look")
    assert decided(edit, rules=rules).answer.reason == "not_a_trigger"
    created = decided(delivery(), rules=rules).answer
    assert created.reason == ("not_a_trigger" if trigger == "comment" else None)


def test_an_edit_amends_a_queued_task() -> None:
    """A permitted edit of the present text gives the queued task its new instruction, and moves nothing."""
    decision = decided(edit("@ccweb-bot fix it well"), queued())
    assert decision.answer.body() == {
        "deliveryId": "d-2",
        "status": "accepted",
        "reason": "instruction_amended",
        "taskId": ids.task_id("default:d-1"),
        "state": "queued",
    }
    (amended,) = events(decision, InstructionAmended)
    assert isinstance(amended, InstructionAmended)
    texts = {content.id: content.text for content in decision.contents}
    assert texts[amended.instruction["content"]] == "fix it well"
    assert not events(decision, TaskTransitioned)
    assert decision.queue == ()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (edit("@ccweb-bot fix it well", before="@ccweb-bot something else"), "not_a_trigger"),
        (edit("@ccweb-bot fix it well", permissions=READER), "not_permitted"),
        (edit("@ccweb-bot fix it well", permissions=None), "not_a_trigger"),
        (edit("@ccweb-bot help"), "not_a_trigger"),
        (edit("@ccweb-bot fix it well", sender=BOT), "own_event"),
        (edit("@ccweb-bot fix it", before="no mention"), "comment_already_handled"),
    ],
)
def test_else_the_admitted_text_stands(made: Delivery, reason: str) -> None:
    """An edit that starts from another text, or whose sender may not, changes no task."""
    decision = decided(made, queued())
    assert (decision.answer.status, decision.answer.reason) == ("ignored", reason)
    assert not events(decision, InstructionAmended, TaskTransitioned, TaskReceived)


def test_whoever_wrote_the_comment() -> None:
    """A writer may amend a task by editing another's comment."""
    part = comment("@ccweb-bot fix it well", author=Person(id=21, login="bob"))
    assert decided(edit("", part=part), queued()).answer.reason == "instruction_amended"


def test_an_amended_text_can_be_amended_again() -> None:
    """The text that the next edit must start from is the one of the last amendment."""
    before = queued()
    first = decided(edit("@ccweb-bot second"), before)
    task = before.task
    for event in events(first, InstructionAmended):
        task = tasks.evolve(task, event)
    after = dataclasses.replace(before, task=task, present="@ccweb-bot second")
    again = edit("@ccweb-bot third", before="@ccweb-bot second")
    assert decided(again, after).answer.reason == "instruction_amended"
    stale = edit("@ccweb-bot third")
    assert decided(stale, after).answer.reason == "not_a_trigger"


@pytest.mark.parametrize(
    "made",
    [
        edit("never mind", permissions=READER),
        delivery(delivery_id="d-2", shape="comment_deleted", action="deleted", permissions=READER),
    ],
    ids=["edited away", "deleted"],
)
def test_a_mention_that_is_gone_cancels(made: Delivery) -> None:
    """A queued task whose comment is deleted or no longer speaks to the bot is cancelled, by whoever did it."""
    decision = decided(made, queued())
    task_id = ids.task_id("default:d-1")
    assert (decision.answer.reason, decision.answer.state) == ("trigger_deleted", "cancelled")
    cancelled, moved = events(decision, TaskCancelled, TaskTransitioned)
    assert isinstance(cancelled, TaskCancelled)
    assert isinstance(moved, TaskTransitioned)
    assert (cancelled.reason, cancelled.actor) == ("trigger_deleted", "gitea:user:11")
    assert (moved.from_state, moved.to_state, moved.state_version) == ("queued", "cancelled", 2)
    assert decision.queue == (QueueDrop(task=task_id),)


@pytest.mark.parametrize("running", ["preparing", "running", "succeeded", "cancelled"])
def test_what_runs_or_ended_is_left_alone(running: Any) -> None:
    """Edits and deletions touch queued tasks only."""
    base = queued()
    given = dataclasses.replace(base, task=dataclasses.replace(base.task, state=running))
    gone = delivery(delivery_id="d-2", shape="comment_deleted")
    for made in (gone, edit("never mind"), edit("@ccweb-bot fix it well")):
        decision = decided(made, given)
        assert decision.answer.reason == "not_a_trigger"
        assert not events(decision, TaskTransitioned, InstructionAmended)
