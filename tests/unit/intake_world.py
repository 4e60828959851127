"""Deliveries and states that tests of intake build by hand."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from domain import ids, tasks
from domain.deliveries import MentionConsumed
from domain.events import Event
from domain.policy import Rules
from domain.processes.intake import decide
from domain.processes.intake_effects import Decision
from domain.processes.intake_facts import Route, Taken, stamped, take
from domain.processes.intake_state import State
from domain.repositories import Repository as RepositoryFold
from domain.repositories import RepositoryRegistered
from domain.sessions import Session
from domain.webhooks import CommentPart, Delivery, Permissions, Person, Repository, Resource, utc

AT = datetime(2026, 11, 3, 9, 15, 31, tzinfo=UTC)
ALICE = Person(id=11, login="alice")
BOT = Person(id=99, login="ccweb-bot")
SALTS = (b"salt one", b"salt two")
WRITER = Permissions(admin=False, push=True, pull=True)
READER = Permissions(admin=False, push=False, pull=True)
REPOSITORY = Repository(
    id=7,
    owner="acme",
    name="Widget",
    full_name="acme/Widget",
    clone_url="https://git.example.com/acme/Widget.git",
    default_branch="main",
)
RULES = Rules(
    bot_login="ccweb-bot", bot_id=99, gitea_urls=("https://git.example.com",), repositories=("acme/*",)
)
KEY = "default:acme/widget"
KNOWN = RepositoryFold(
    registered=RepositoryRegistered(
        repo_key=KEY,
        repository_id=7,
        owner="acme",
        name="Widget",
        clone_url=REPOSITORY.clone_url,
        default_branch="main",
        private=False,
    ),
    owner="acme",
    name="Widget",
    clone_url=REPOSITORY.clone_url,
    default_branch="main",
)
CONSUMED = MentionConsumed(mention_key="m", delivery_key="default:d-0", task_id="gitea-task-0")


def comment(
    body: str, *, author: Person = ALICE, ident: int = 3001, created: str = "2026-11-03T09:15:30Z"
) -> CommentPart:
    """A comment's text."""
    return CommentPart(
        kind="comment",
        id=ident,
        body=body,
        author=author,
        created_at=created,
        updated_at=created,
        created_at_utc=utc(created),
        updated_at_utc=utc(created),
        html_url="https://git.example.com/acme/Widget/issues/12#issuecomment-3001",
    )


def delivery(body: str = "@ccweb-bot fix it", **changed: Any) -> Delivery:
    """A created comment by alice, who may write, with the given fields changed."""
    made = Delivery(
        delivery_id="d-1",
        event="issue_comment",
        event_type="issue_comment",
        action="created",
        shape="comment_created",
        payload_hash="sha256:00",
        sender=ALICE,
        repository=REPOSITORY,
        permissions=WRITER,
        resource=Resource(
            kind="issue",
            number=12,
            title="It fails",
            body="see the log",
            author=ALICE,
            state="open",
            html_url="https://git.example.com/acme/Widget/issues/12",
        ),
        refs=None,
        part=comment(body),
        changed_from=None,
        is_pull=False,
    )
    return dataclasses.replace(made, **changed)


def state(**changed: Any) -> State:
    """A registered repository, and nothing else."""
    made = State(
        versions={f"repo:{KEY}": 1, "repository-id:default:7": 1},
        repo_key=KEY,
        claimed=True,
        repository=KNOWN,
    )
    return dataclasses.replace(made, **changed)


def taken(made: Delivery, rules: Rules = RULES, route: Route = "plain") -> Taken:
    """The delivery as a fact."""
    return stamped(take(made, rules, route, salts=SALTS), AT)


def decided(made: Delivery, given: State | None = None, rules: Rules = RULES) -> Decision:
    """The decision about a delivery."""
    return decide(taken(made, rules), given or state(), rules, salt=b"salt three")


def events(decision: Decision, *kinds: type[Event]) -> list[Event]:
    """The events that a decision appends, of some kinds only."""
    return [draft.event for draft in decision.drafts if not kinds or isinstance(draft.event, kinds)]


def full(count: int = 60) -> Session:
    """A session with many tasks of just now."""
    at = (AT - timedelta(minutes=1)).isoformat()
    return Session(admitted=((11, at),) * count)


def queued(text: str = "@ccweb-bot fix it", **changed: Any) -> State:
    """The state after alice's comment became a queued task."""
    first = decided(delivery(text))
    task = tasks.fold(draft.event for draft in first.drafts if draft.stream.startswith("task:"))
    consumed = MentionConsumed(mention_key="m", delivery_key="default:d-1", task_id=task.task_id)
    stream = ids.task_stream(task.task_id)
    versions = {**state().versions, stream: 3}
    return state(versions=versions, consumed=consumed, task=task, present=text, **changed)


def edit(now: str, before: str = "@ccweb-bot fix it", **changed: Any) -> Delivery:
    """An edit of alice's comment."""
    made = delivery(now, delivery_id="d-2", shape="comment_edited", action="edited", changed_from=before)
    return dataclasses.replace(made, **changed)
