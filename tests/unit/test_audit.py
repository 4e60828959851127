import importlib
import pkgutil
from typing import get_args, get_type_hints

import domain
from adapters.memory import MemoryLog
from domain.effects import EffectConcluded, EffectIntended, Operation
from domain.events import event_types
from domain.tasks import ReplyObserved
from projections.audit import Audit
from projections.audit_actions import ACTIONS, action_of, is_listed
from projections.view import project
from services import story
from tests.unit.projections_story import Story


def own_event_types() -> set[str]:
    """Every event type that the domain declares."""
    for module in pkgutil.walk_packages(domain.__path__, "domain."):
        importlib.import_module(module.name)
    return {name for name, kind in event_types().items() if kind.__module__.startswith("domain.")}


def test_every_event_type_has_an_action() -> None:
    """The table names exactly the event types that there are."""
    assert own_event_types() - set(ACTIONS) == set()
    assert set(ACTIONS) - own_event_types() == set()


def test_plain_actions_are_on_the_closed_list() -> None:
    """No action is made up beside the list."""
    assert [action for action in ACTIONS.values() if isinstance(action, str) and not is_listed(action)] == []


async def test_every_event_stands_in_the_audit() -> None:
    """Each event of a log is named by exactly one entry, whose action is on the list."""
    log = MemoryLog()
    await Story(log).everything()
    events = await log.read(after=0, limit=1000)
    entries = project(Audit(), events).values()
    assert all(is_listed(entry["action"]) for entry in entries)
    named = [
        (part["stream"], part["version"], part["type"])
        for entry in entries
        for part in entry["metadata"]["events"]
    ]
    assert sorted(named) == sorted((event.stream, event.version, event.type) for event in events)
    assert all(is_listed(action_of(event.event)) for event in events)


async def test_the_chain_can_be_read_off() -> None:
    """From the delivery to the confirmed comment, each step is one entry with its ids, actor and states."""
    log = MemoryLog()
    tasks = await Story(log).everything()
    done = tasks["succeeded"]
    entries = [
        e for e in project(Audit(), await log.read(after=0, limit=1000)).values() if e["taskId"] == done
    ]
    actions = [entry["action"] for entry in entries]
    assert actions.count("webhook.accept") == 1
    assert actions.count("reply.confirm") == 1
    wanted = ["task.create", "task.claim", "turn.start", "mcp.call", "turn.end", "reply.confirm"]
    places = [actions.index(action) for action in wanted]
    assert places == sorted(places)
    accept = next(entry for entry in entries if entry["action"] == "webhook.accept")
    assert accept["deliveryId"]
    assert accept["actor"] == "gitea:user:7"
    confirm = next(entry for entry in entries if entry["action"] == "reply.confirm")
    assert (confirm["commentId"], confirm["turnId"]) == (502, f"{done}-turn-1")
    moves = [(e["fromState"], e["toState"]) for e in entries if e["action"] == "task.transition"]
    assert moves == [
        ("received", "queued"),
        ("queued", "preparing"),
        ("preparing", "running"),
        ("running", "verifying_reply"),
        ("verifying_reply", "succeeded"),
    ]


async def test_an_operators_act_names_its_actor() -> None:
    """The audit names who disabled a repository."""
    log = MemoryLog()
    await Story(log).everything()
    (entry,) = [
        entry
        for entry in project(Audit(), await log.read(after=0, limit=1000)).values()
        if entry["action"] == "repo.disable"
    ]
    assert entry["actor"] == "admin:operator"
    assert entry["metadata"]["reason"] == "tidying"


def test_every_operation_and_outcome_has_its_action_and_its_sentence() -> None:
    """No value that an event may hold is unknown to the audit or to the story: a view must not stop at it."""
    for operation in get_args(Operation):
        intended = EffectIntended(
            intent_id="i",
            operation=operation,
            executor="runner",
            task_id="t",
            target="x",
            key="k",
            attempt=0,
        )
        concluded = EffectConcluded(
            intent_id="i", operation=operation, task_id="t", status="succeeded", at="2026-01-01T00:00:00.000Z"
        )
        assert is_listed(action_of(intended))
        assert is_listed(action_of(concluded))
        assert operation in story._OPERATIONS
    outcomes = get_args(get_type_hints(ReplyObserved)["outcome"])
    assert len(outcomes) == 4
    for outcome in outcomes:
        observed = ReplyObserved(
            task_id="t",
            outcome=outcome,
            comment_ids=(),
            turn_id=None,
            listings=1,
            at="2026-01-01T00:00:00.000Z",
        )
        assert is_listed(action_of(observed))
