"""Whatever comes in whatever order, the log stays right, and every decision can be taken again from it."""

import asyncio
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.memory import MemoryLog
from domain import ids, tasks
from domain.commands import CommandGiven
from domain.deliveries import DeliveryDecided, DeliveryReceived, MentionConsumed
from domain.log import Recorded
from domain.policy import Rules
from domain.processes import intake, intake_state
from domain.processes.intake_facts import Taken, Texts
from domain.tasks import TaskReceived, TaskTransitioned
from domain.webhooks import Delivery, Person
from services.intake import Intake
from tests.unit.intake_world import ALICE, BOT, READER, REPOSITORY, RULES, WRITER, comment, delivery

BODIES = [
    "@ccweb-bot one",
    "@ccweb-bot two",
    "@ccweb-bot help",
    "@ccweb-bot stop",
    "@ccweb-bot retry",
    "@ccweb-bot status",
    "nothing",
    "> @ccweb-bot quoted",
]
RENAMED = dataclasses.replace(REPOSITORY, name="gadget", clone_url="https://git.example.com/acme/gadget.git")
NEWCOMER = dataclasses.replace(REPOSITORY, id=8)


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    """One of few deliveries, so that repeats, replays and edits of one comment are common."""
    shape = draw(
        st.sampled_from(["comment_created", "comment_edited", "comment_deleted", "review_submitted"])
    )
    sender = draw(st.sampled_from([ALICE, Person(id=21, login="bob"), BOT]))
    part = comment(draw(st.sampled_from(BODIES)), ident=draw(st.sampled_from([1, 2])))
    if shape == "review_submitted":
        part = dataclasses.replace(part, kind="review", id=None)
    return delivery(
        delivery_id=f"d-{draw(st.integers(0, 15))}",
        shape=shape,
        sender=sender,
        part=part,
        permissions=draw(st.sampled_from([WRITER, WRITER, READER, None])),
        changed_from=draw(st.sampled_from(BODIES)) if shape == "comment_edited" else None,
        repository=draw(st.sampled_from([REPOSITORY, REPOSITORY, RENAMED, NEWCOMER])),
    )


def run(sequence: Iterable[Delivery], *, at_once: bool, rules: Rules = RULES) -> MemoryLog:
    """Take deliveries in, one after the other or all at once, with two processes' worth of intakes."""

    async def all_of_them() -> MemoryLog:
        log = MemoryLog()
        doors = itertools.cycle([Intake(log, lambda: rules), Intake(log, lambda: rules)])
        received = [door.receive(made, "plain") for made, door in zip(sequence, doors, strict=False)]
        if at_once:
            await asyncio.gather(*received)
        else:
            for one in received:
                await one
        return log

    return asyncio.run(all_of_them())


def everything(log: MemoryLog) -> Sequence[Recorded]:
    return asyncio.run(log.read(after=0, limit=100_000))


def check_log(log: MemoryLog) -> None:
    """What must hold of every log that intake wrote."""
    rows = everything(log)
    received = [row.event for row in rows if isinstance(row.event, TaskReceived)]
    mentions = [event.trigger["mention_key"] for event in received if event.retry_of is None]
    assert len(mentions) == len(set(mentions)), "two tasks of one mention"
    assert sorted(mentions) == sorted(
        row.event.mention_key for row in rows if isinstance(row.event, MentionConsumed) and row.event.task_id
    )
    consumed = [row.event.mention_key for row in rows if isinstance(row.event, MentionConsumed)]
    assert len(consumed) == len(set(consumed)), "a mention was handled twice"
    words = [row.event.delivery_key for row in rows if isinstance(row.event, CommandGiven)]
    assert len(words) == len(set(words)), "a word was answered twice"
    for event in received:
        stream = [row.event for row in rows if row.stream == ids.task_stream(event.task_id)]
        versions = [moved.state_version for moved in stream if isinstance(moved, TaskTransitioned)]
        assert versions == list(range(1, len(versions) + 1))
        assert tasks.fold(stream).state in ("queued", "cancelled")
    facts = [row.event.delivery_key for row in rows if isinstance(row.event, DeliveryReceived)]
    decided = [row.event.delivery_key for row in rows if isinstance(row.event, DeliveryDecided)]
    assert facts == decided
    assert len(facts) == len(set(facts)), "a delivery was decided twice"
    waiting = {row.task for row in log._queue.values() if row.available_at is not None}
    assert waiting == {
        event.task_id
        for event in received
        if tasks.fold(r.event for r in rows if r.stream == ids.task_stream(event.task_id)).state == "queued"
    }


def decide_again(log: MemoryLog, rules: Rules = RULES) -> None:
    """Derive every delivery's events from its fact, the log before it and the texts, and compare."""
    asyncio.run(decided_again(log, rules))


async def decided_again(log: MemoryLog, rules: Rules) -> int:
    """The same inside a running loop; how many decisions were taken again."""
    rows = await log.read(after=0, limit=100_000)
    contents = await log.salted_contents(log._contents)
    taken = 0
    for index, row in enumerate(rows):
        fact = row.event
        if not isinstance(fact, DeliveryReceived):
            continue
        by_stream: dict[str, list[Recorded]] = {}
        for earlier in rows[:index]:
            by_stream.setdefault(earlier.stream, []).append(earlier)
        read: dict[str, list[Recorded]] = {}
        while wanted := intake_state.streams(fact, read) - read.keys():
            read |= {stream: by_stream.get(stream, []) for stream in wanted}
        state = intake_state.fold(fact, read)
        present = intake_state.present_id(state)
        if present is not None:
            state = intake_state.with_present(state, contents[present].text)
        before = fact.facts.get("before")
        texts = Texts(
            now=contents[fact.text["content"]].text if fact.text else None,
            before=contents[before["content"]].text if before else None,
        )
        salt = next(
            (
                found.salt
                for name, found in contents.items()
                if name.endswith(f":instruction:{fact.delivery_key}")
            ),
            b"",
        )
        decision = intake.decide(Taken(fact=fact, texts=texts, contents=()), state, rules, salt=salt)
        written = [
            (found.stream, found.event)
            for found in rows[index:]
            if found.metadata["request_id"] == row.metadata["request_id"]
        ]
        assert [(draft.stream, draft.event) for draft in decision.drafts] == written
        taken += 1
    return taken


@settings(max_examples=60, deadline=None)
@given(st.lists(deliveries(), max_size=25))
def test_any_sequence_leaves_at_most_one_task_per_mention(sequence: list[Delivery]) -> None:
    """Created, edited, deleted, repeated and replayed in any order: one task per mention, versions without a gap."""
    check_log(run(sequence, at_once=False))


@settings(max_examples=40, deadline=None)
@given(st.lists(deliveries(), max_size=25))
def test_the_same_at_once(sequence: list[Delivery]) -> None:
    """The same holds when all come at once through two intakes that know nothing of each other."""
    check_log(run(sequence, at_once=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(deliveries(), max_size=25))
def test_every_decision_can_be_taken_again_from_the_log(sequence: list[Delivery]) -> None:
    """The facts and their texts are enough to derive exactly the events that were appended with them."""
    decide_again(run(sequence, at_once=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(deliveries(), min_size=1, max_size=12))
def test_a_repeat_changes_nothing_and_answers_the_same(sequence: list[Delivery]) -> None:
    """Sending everything once more appends repeats only, and gives each delivery's first answer."""

    async def story() -> None:
        log = MemoryLog()
        door = Intake(log, lambda: RULES)
        first: dict[str, Any] = {}
        for made in sequence:
            answer = await door.receive(made, "plain")
            assert answer.body() == first.setdefault(made.delivery_id, answer.body())
        head = await log.head()
        for made in sequence:
            again = await door.receive(made, "plain")
            assert again.body() == first[made.delivery_id]
            assert again.http_status in (200, 409)
        added = await log.read(after=head, limit=1000)
        assert {row.type for row in added} == {"DeliveryRepeated"}
        assert len(added) == len(sequence)

    asyncio.run(story())


async def test_a_newcomer_on_an_occupied_name_gets_its_own_key() -> None:
    """A repository's key is fixed for its id; another repository of the same name is told apart by its id."""
    log = MemoryLog()
    door = Intake(log, lambda: RULES)
    await door.receive(delivery(delivery_id="d-1"), "plain")
    await door.receive(
        delivery(delivery_id="d-2", repository=RENAMED, part=comment("@ccweb-bot x", ident=2)), "plain"
    )
    await door.receive(delivery(delivery_id="d-3", repository=NEWCOMER), "plain")
    keys = [
        row.event.repo_key
        for row in await log.read(after=0, limit=100)
        if isinstance(row.event, TaskReceived)
    ]
    assert keys == ["default:acme/widget", "default:acme/widget", "default:acme/widget~8"]


async def test_request_ids_are_drawn_from_the_given_source() -> None:
    """Randomness is injected: the same source gives the same ids."""
    log = MemoryLog()
    known = [UUID(int=number) for number in range(1, 5)]
    source = iter(known)
    await Intake(log, lambda: RULES, new_id=lambda: next(source)).receive(delivery(), "plain")
    (request_id,) = {row.metadata["request_id"] for row in await log.read(after=0, limit=100)}
    assert request_id == str(known[0])
    assert request_id != str(uuid4())
