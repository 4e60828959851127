import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from domain import comments, ids
from domain.contents import digest
from domain.deliveries import DeliveryDecided, DeliveryReceived, DenialReceiptGranted, MentionConsumed
from domain.effects import EffectIntended
from domain.events import Event, encode
from domain.log import QueuePut, Recorded
from domain.mentions import LIMIT
from domain.policy import Listed, Rules, TriggerPolicy
from domain.processes.intake import judge
from domain.processes.intake_effects import REFUSAL_TEXTS
from domain.processes.intake_state import State, repeated
from domain.repositories import RepositoryKeyClaimed, RepositoryRegistered, RepositoryRenamed
from domain.sessions import Session, SessionOpened, SessionTaskAdmitted
from domain.tasks import TaskReceived, TaskTransitioned
from domain.webhooks import Delivery, Person
from tests.unit.intake_world import (
    ALICE,
    AT,
    BOT,
    CONSUMED,
    KNOWN,
    READER,
    REPOSITORY,
    RULES,
    WRITER,
    comment,
    decided,
    delivery,
    edit,
    events,
    full,
    queued,
    state,
    taken,
)

POLICIES: tuple[TriggerPolicy, ...] = ("write", "admin", "anyone", "allow-list")
World = tuple[Delivery, State, Rules]
Change = Callable[[World], World]


# Each entry makes its reason hold, and leaves the reasons before it alone.
HOLDS: list[tuple[str, Change]] = [
    (
        "foreign_instance",
        lambda w: (
            dataclasses.replace(
                w[0],
                repository=dataclasses.replace(
                    REPOSITORY, clone_url="https://elsewhere.example/acme/Widget.git"
                ),
            ),
            *w[1:],
        ),
    ),
    ("repository_not_allowed", lambda w: (*w[:2], dataclasses.replace(w[2], repositories=("other/*",)))),
    ("own_event", lambda w: (dataclasses.replace(w[0], sender=BOT), *w[1:])),
    (
        "bot_not_allowed",
        lambda w: (*w[:2], dataclasses.replace(w[2], other_bots=(Listed(id=11), Listed(id=99)))),
    ),
    ("not_a_trigger", lambda w: (dataclasses.replace(w[0], shape="closed"), *w[1:])),
    ("no_mention", lambda w: (dataclasses.replace(w[0], part=comment("just talk")), *w[1:])),
    (
        "repository_disabled",
        lambda w: (
            w[0],
            dataclasses.replace(w[1], repository=dataclasses.replace(KNOWN, disabled=True)),
            dataclasses.replace(w[2], disabled_answer="ignore"),
        ),
    ),
    ("comment_already_handled", lambda w: (w[0], dataclasses.replace(w[1], consumed=CONSUMED), w[2])),
    ("not_permitted", lambda w: (dataclasses.replace(w[0], permissions=READER), *w[1:])),
    ("rate_limited", lambda w: (w[0], dataclasses.replace(w[1], session=full()), w[2])),
    ("command", lambda w: (dataclasses.replace(w[0], part=comment("@ccweb-bot help")), *w[1:])),
]


@pytest.mark.parametrize("index", range(len(HOLDS)), ids=[reason for reason, _ in HOLDS])
def test_each_reason_alone(index: int) -> None:
    """A delivery with one thing against it is ignored for that reason; a word is accepted as one."""
    reason, change = HOLDS[index]
    answer = decided(*change((delivery(), state(), RULES))).answer
    status = "accepted" if reason == "command" else "ignored"
    assert (answer.http_status, answer.status, answer.reason) == (200, status, reason)


@pytest.mark.parametrize("index", range(len(HOLDS)), ids=[reason for reason, _ in HOLDS])
def test_the_first_reason_wins(index: int) -> None:
    """Of everything that holds, the reason that the page names first is the answer."""
    world: World = (delivery(), state(), RULES)
    for _, change in reversed(HOLDS[index:]):
        world = change(world)
    assert decided(*world).answer.reason == HOLDS[index][0]


@pytest.mark.parametrize("one", range(len(HOLDS)))
@pytest.mark.parametrize("other", range(len(HOLDS)))
def test_the_first_reason_of_any_two_wins(one: int, other: int) -> None:
    """The order holds for every pair of reasons."""
    first, second = sorted((one, other))
    world = HOLDS[first][1](HOLDS[second][1]((delivery(), state(), RULES)))
    assert decided(*world).answer.reason == HOLDS[first][0]


def test_one_append_holds_everything() -> None:
    """Admission registers the repository, opens the session, queues the task and intends its receipt at once."""
    unknown = State(versions={}, repo_key="default:acme/widget")
    decision = decided(delivery(), unknown)
    assert [type(event) for event in events(decision)] == [
        DeliveryReceived,
        DeliveryDecided,
        RepositoryKeyClaimed,
        RepositoryRegistered,
        SessionOpened,
        SessionTaskAdmitted,
        TaskReceived,
        TaskTransitioned,
        EffectIntended,
        MentionConsumed,
    ]
    task_id = ids.task_id("default:d-1")
    assert decision.answer.body() == {
        "deliveryId": "d-1",
        "status": "accepted",
        "taskId": task_id,
        "state": "queued",
    }
    assert decision.answer.http_status == 202
    assert {premise.stream: premise.version for premise in decision.premises} == {
        "delivery:default:d-1": 0,
        "repository-id:default:7": 0,
        "repo:default:acme/widget": 0,
        "session:default:acme/widget:issue:12": 0,
        f"task:{task_id}": 0,
        "mention:7:comment:3001:2026-11-03T09:15:30Z": 0,
    }
    assert decision.queue == (
        QueuePut(task=task_id, repo="default:acme/widget", session="default:acme/widget:issue:12"),
    )
    assert {draft.causation for draft in decision.drafts} == {None, "delivery:default:d-1@1"}
    assert {premise.stream for premise in decision.premises} >= {draft.stream for draft in decision.drafts}


def test_the_task_is_received_then_queued() -> None:
    """The state's version is 0 when received and 1 when queued."""
    (moved,) = events(decided(delivery()), TaskTransitioned)
    assert isinstance(moved, TaskTransitioned)
    assert (moved.from_state, moved.to_state, moved.state_version) == ("received", "queued", 1)


def test_the_receipt_is_intended_once() -> None:
    """The receipt's intent names its key, its kind and the hash of what will be written."""
    (intent,) = events(decided(delivery()), EffectIntended)
    assert isinstance(intent, EffectIntended)
    task_id = ids.task_id("default:d-1")
    assert (intent.executor, intent.operation, intent.comment_kind) == (
        "receipts",
        "receipt.create",
        "status",
    )
    assert intent.key == intent.comment_key == comments.receipt_key(task_id, "queued")
    assert intent.target == "default:acme/widget:issue:12"
    assert (intent.body_hash or "").startswith("sha256:")


def test_the_instruction_is_content() -> None:
    """The event holds a digest of the instruction; the text and its salt stand beside it, to be erased."""
    decision = decided(delivery("@ccweb-bot fix it\u202e now"))
    (received,) = events(decision, TaskReceived)
    assert isinstance(received, TaskReceived)
    texts = {content.id: content for content in decision.contents}
    stored = texts[received.instruction["content"]]
    assert stored.text == "fix it now"
    assert received.instruction["digest"] == digest(stored.text, stored.salt)
    assert received.instruction["stripped"] == ["bidirectional_controls"]
    assert "fix it" not in repr(events(decision))
    assert texts["login:default:11"].text == "alice"
    assert "alice" not in repr(events(decision))


def test_an_open_session_and_a_known_repository_are_left_alone() -> None:
    """A second mention on an issue opens nothing again."""
    opened = SessionOpened(
        session_key="default:acme/widget:issue:12", repo_key="default:acme/widget", kind="issue", number=12
    )
    decision = decided(delivery(), state(session=Session(opened=opened)))
    assert not events(decision, SessionOpened, RepositoryKeyClaimed, RepositoryRegistered, RepositoryRenamed)


def test_a_rename_keeps_the_key() -> None:
    """A known repository id under another name is recorded as renamed, and its tasks keep the key."""
    renamed = dataclasses.replace(
        REPOSITORY, name="gadget", clone_url="https://git.example.com/acme/gadget.git"
    )
    decision = decided(delivery(repository=renamed))
    (event,) = events(decision, RepositoryRenamed)
    assert isinstance(event, RepositoryRenamed)
    assert (event.repo_key, event.name) == ("default:acme/widget", "gadget")
    (received,) = events(decision, TaskReceived)
    assert isinstance(received, TaskReceived)
    assert received.repo_key == "default:acme/widget"


def test_a_replay_brings_no_old_name_back() -> None:
    """A text that was handled already says nothing new about its repository."""
    old = dataclasses.replace(REPOSITORY, name="gadget", clone_url="https://git.example.com/acme/gadget.git")
    decision = decided(delivery(repository=old), state(consumed=CONSUMED))
    assert decision.answer.reason == "comment_already_handled"
    assert decision.answer.task_id == "gitea-task-0"
    assert not events(decision, RepositoryRenamed)


@pytest.mark.parametrize("reason", ["foreign_instance", "repository_not_allowed"])
def test_strangers_are_not_registered(reason: str) -> None:
    """A repository that is not served leaves a delivery in the log and nothing else."""
    change = dict(HOLDS)[reason]
    made, _, rules = change((delivery(), state(), RULES))
    decision = decided(made, State(versions={}, repo_key="default:acme/widget"), rules)
    assert [type(event) for event in events(decision)] == [DeliveryReceived, DeliveryDecided]


def test_a_disabled_repository_is_a_conflict_by_default() -> None:
    """Without a setting, a disabled repository refuses with 409."""
    answer = decided(delivery(), state(repository=dataclasses.replace(KNOWN, disabled=True))).answer
    assert (answer.http_status, answer.status, answer.reason) == (409, "rejected", "repository_disabled")


@pytest.mark.parametrize(
    "made",
    [
        delivery(shape="review_submitted", part=dataclasses.replace(comment(""), kind="review", id=None)),
        delivery(permissions=None),
    ],
    ids=["review", "no permissions"],
)
@pytest.mark.parametrize("policy", ["write", "admin", "anyone", "allow-list"])
def test_what_the_payload_does_not_say_is_deferred(made: Delivery, policy: Any) -> None:
    """Reviews and payloads that state no right wait for a worker, under every policy."""
    decision = decided(made, rules=dataclasses.replace(RULES, trigger_policy=policy))
    assert decision.answer.body() == {
        "deliveryId": "d-1",
        "status": "deferred",
        "reason": "deferred",
        "taskId": None,
        "state": "received",
    }
    assert decision.answer.http_status == 202
    assert not events(decision, TaskReceived)


def body_edit(sender: Person) -> Delivery:
    part = dataclasses.replace(comment("@ccweb-bot look"), kind="issue", id=12)
    return delivery(shape="issue_edited", part=part, sender=sender, changed_from="look")


def test_a_body_edited_by_another_is_deferred() -> None:
    """An issue's edit states its poster's right: that decides only if the poster edits."""
    assert decided(body_edit(ALICE)).answer.status == "accepted"
    assert decided(body_edit(Person(id=12, login="mallory"))).answer.status == "deferred"


def test_a_denied_author_gets_one_short_receipt() -> None:
    """The first denial grants a receipt, whose intent stands on the delivery's own stream."""
    decision = decided(delivery(permissions=READER))
    granted, intent = events(decision, DenialReceiptGranted, EffectIntended)
    assert isinstance(granted, DenialReceiptGranted)
    assert isinstance(intent, EffectIntended)
    assert (granted.repository_id, granted.author_id, granted.reason) == (7, 11, "not_permitted")
    streams = {draft.stream for draft in decision.drafts if draft.event is intent}
    assert streams == {"delivery:default:d-1"}
    assert intent.target == "default:acme/widget:issue:12"
    assert intent.comment_key == f"{ids.task_id('default:d-1')}:status:not_permitted"


@pytest.mark.parametrize(("minutes", "granted"), [(0, False), (59, False), (60, True), (600, True)])
def test_at_most_one_receipt_per_author_and_hour(minutes: int, *, granted: bool) -> None:
    """Further denials within the hour say nothing."""
    at = (AT - timedelta(minutes=minutes)).isoformat()
    decision = decided(delivery(permissions=READER), state(denied_at=at))
    assert decision.answer.reason == "not_permitted"
    assert bool(events(decision, DenialReceiptGranted)) is granted
    assert bool(events(decision, EffectIntended)) is granted


def test_a_denial_consumes_nothing() -> None:
    """A denied mention leaves its key free for one that may."""
    assert not events(decided(delivery(permissions=READER)), MentionConsumed)


def test_the_rate_counts_a_window_only() -> None:
    """Tasks of long ago do not count against a resource."""
    old = (AT - timedelta(hours=2)).isoformat()
    assert decided(delivery(), state(session=Session(admitted=((11, old),) * 90))).answer.reason is None
    rules = dataclasses.replace(RULES, rate_limit=0)
    assert decided(delivery(), state(session=full(90)), rules).answer.reason is None


def test_a_shared_account_is_told_by_the_marker() -> None:
    """Where a person writes with the bot's account, only what carries our marker outside quotes is our own."""
    rules = dataclasses.replace(RULES, shared_account=True)
    marked = "@ccweb-bot done\n\n<!-- ccweb taskId=t1 turnId=u1 -->"
    quoted = "> done\n> <!-- ccweb taskId=t1 turnId=u1 -->\n\n@ccweb-bot go on"
    assert decided(delivery(marked, sender=BOT), rules=rules).answer.reason == "own_event"
    assert decided(delivery(quoted, sender=BOT), rules=rules).answer.reason is None
    assert decided(delivery("@ccweb-bot fix it", sender=BOT), rules=rules).answer.reason is None


def test_an_allowed_bot_may() -> None:
    """A listed bot is refused unless it is allowed."""
    rules = dataclasses.replace(RULES, other_bots=(Listed(login="alice"),))
    assert decided(delivery(), rules=rules).answer.reason == "bot_not_allowed"
    rules = dataclasses.replace(rules, allowed_bots=(Listed(login="Alice"),))
    assert decided(delivery(), rules=rules).answer.reason is None


def test_a_text_is_bounded() -> None:
    """At most 64 KiB of a text are kept, and exactly what is kept decides."""
    made = taken(delivery("@ccweb-bot " + "ß" * LIMIT))
    assert made.texts.now is not None
    assert len(made.texts.now.encode()) <= LIMIT
    assert made.fact.facts["truncated"] is True
    late = delivery("x" * LIMIT + " @ccweb-bot")
    assert decided(late).answer.reason == "no_mention"


def test_odd_characters_can_be_stored() -> None:
    """NUL and lone halves of pairs, which no database takes, are replaced."""
    made = taken(delivery("@ccweb-bot \x00 \ud800"))
    assert made.texts.now is not None
    assert "\x00" not in made.texts.now
    made.texts.now.encode()


def test_a_push_is_no_trigger() -> None:
    """Gitea's test button sends a push by nobody: it is ignored, whatever it holds."""
    bare = delivery(shape="push", sender=None, repository=None, permissions=None, resource=None, part=None)
    for made in (
        bare,
        dataclasses.replace(bare, repository=REPOSITORY),
        delivery(shape="unknown", part=None),
    ):
        assert (
            decided(made, State(versions={}, repo_key="default:acme/widget")).answer.reason == "not_a_trigger"
        )


def test_refusals_speak_every_locale() -> None:
    """Each reason for a short receipt has a text in each language of the receipts."""
    assert REFUSAL_TEXTS.keys() == comments.RECEIPT_TEXTS.keys()
    assert {frozenset(texts) for texts in REFUSAL_TEXTS.values()} == {
        frozenset(("not_permitted", "rate_limited", "permission_unknown"))
    }


def test_the_right_is_recorded_only_where_it_is_the_senders() -> None:
    """A review's rights are nobody's, an edited body's are its poster's: neither is recorded as the sender's."""
    assert taken(delivery()).fact.permissions == {"admin": False, "push": True, "pull": True}
    assert taken(body_edit(Person(id=12, login="mallory"))).fact.permissions is None
    review = delivery(shape="review_submitted", permissions=WRITER)
    assert taken(review).fact.permissions is None


def recorded(*found: Event) -> list[Recorded]:
    """Events as they would stand on one stream."""
    return [
        Recorded(number, "delivery:default:d-1", number, event.type, event.schema, encode(event), b"{}", AT)
        for number, event in enumerate(found, 1)
    ]


def test_a_repeat_of_a_deferred_delivery_tells_its_present_outcome() -> None:
    """While it waits it is received; once a worker decided, the repeat gets that decision, with 200."""
    review = delivery(shape="review_submitted", part=dataclasses.replace(comment(""), kind="review", id=None))
    first = events(decided(review))
    waiting = repeated(recorded(*first))
    assert waiting is not None
    assert (waiting.http_status, waiting.status, waiting.state) == (200, "deferred", "received")
    later = DeliveryDecided(
        delivery_key="default:d-1", status="accepted", reason=None, http_status=202, task_id="gitea-task-1"
    )
    outcome = repeated(recorded(*first, later))
    assert outcome is not None
    assert (outcome.http_status, outcome.task_id, outcome.state) == (200, "gitea-task-1", "queued")
    assert repeated([]) is None


def test_another_policy_can_be_asked_about_the_same_fact() -> None:
    """What a delivery recorded is enough to say what other rules would have decided."""
    fact = taken(delivery()).fact
    texts = taken(delivery()).texts
    verdicts = {
        policy: judge(fact, texts, state(), dataclasses.replace(RULES, trigger_policy=policy))
        for policy in POLICIES
    }
    assert {policy: type(verdict).__name__ for policy, verdict in verdicts.items()} == {
        "write": "Admitted",
        "admin": "Denied",
        "anyone": "Admitted",
        "allow-list": "Denied",
    }


REPOSITORY_STREAMS = {"repository-id:default:7", "repo:default:acme/widget"}
MENTION_STREAM = "mention:7:comment:3001:2026-11-03T09:15:30Z"


@pytest.mark.parametrize(
    ("made", "given", "also"),
    [
        (delivery("nothing"), state(), set()),
        (delivery(), state(consumed=CONSUMED), set()),
        (delivery(permissions=READER), state(denied_at=AT.isoformat()), {"denial:7:11"}),
        (
            delivery(),
            state(session=full(), denied_at=AT.isoformat()),
            {"denial:7:11", "session:default:acme/widget:issue:12"},
        ),
        (edit("@ccweb-bot x", before="stale @ccweb-bot"), queued(), {"task"}),
        (delivery(delivery_id="d-2", shape="comment_deleted"), queued(), {"task"}),
    ],
    ids=["no_mention", "handled", "not_permitted", "rate_limited", "stale edit", "deleted"],
)
def test_what_decided_is_a_premise(made: Delivery, given: State, also: set[str]) -> None:
    """Every stream that a decision was read from must stand where it stood, else it is decided again."""
    task = ids.task_stream(ids.task_id("default:d-1"))
    wanted = {f"delivery:default:{made.delivery_id}", MENTION_STREAM, *REPOSITORY_STREAMS}
    wanted |= {task if name == "task" else name for name in also}
    assert {premise.stream for premise in decided(made, given).premises} == wanted
