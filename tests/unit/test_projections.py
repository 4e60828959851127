import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from adapters.memory import MemoryLog
from domain.deliveries import STATUSES as DELIVERY_STATUSES
from domain.effects import COMMENT_STATUSES, EffectConcluded, EffectIntended
from domain.faults import NotFound, Unavailable
from domain.transitions import STATES
from domain.turns import KINDS, STATUSES
from projections.comments import Comments
from projections.view import FRESH, project
from projections.views import VIEWS
from services.projector import Projector
from services.view_store import MemoryViews, Row
from tests.unit.projections_story import HASH, Story, concluded

SEED = {
    "deliveries": "deliveryKey deliveryId eventType receivedAt signatureValid normalized taskId status payloadHash "
    "expiresAt",
    "repositories": "repoKey instanceId owner name cloneUrl workspacePath defaultBranch status registeredAt "
    "lastFetchAt version",
    "sessions": "sessionKey resourceKey kind number threadId runtime mcp status lastTaskId lastTurnId createdAt "
    "updatedAt version",
    "tasks": "taskId deliveryKey repoKey resourceKey sessionKey commentId state attempt replyAttempt threadId turnId "
    "leaseId nextRetryAt errorCode createdAt updatedAt stateVersion",
    "turns": "turnId taskId threadId kind status eventSeq startedAt completedAt",
    "comments": "commentKey taskId kind resourceKey turnId commentId bodyHash status",
    "audit": "eventId taskId action actor fromState toState deliveryId turnId commentId errorCode timestamp metadata",
    "intents": "intentId taskId stream operation executor status position createdAt",
}
ENUMS: dict[tuple[str, str], Any] = {
    ("deliveries", "status"): DELIVERY_STATUSES,
    ("repositories", "status"): {"active", "disabled", "blocked"},
    ("sessions", "status"): {"active", "waiting_user", "closed"},
    ("tasks", "state"): STATES,
    ("turns", "kind"): KINDS,
    ("turns", "status"): STATUSES,
    ("comments", "kind"): {"status", "mcp_final", "rest_fallback", "question"},
    ("comments", "status"): COMMENT_STATUSES,
}


class Told:
    """A log with a story, its views, and the ids of its tasks."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.story = Story(self.log)
        self.store = MemoryViews()
        self.projector = Projector(self.log, self.store, VIEWS, batch=7)
        self.tasks: dict[str, str] = {}

    async def rows(self, view: str, generation: int | None = None) -> list[Row]:
        """All rows of a view, oldest first."""
        found = await self.store.select(view, where={}, limit=10_000, descending=False, generation=generation)
        return list(found)

    async def documents(self, view: str) -> dict[str, Any]:
        """All documents of a view by key."""
        return {row["key"]: row["document"] for row in await self.rows(view)}


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    """A story, projected."""
    told = Told()
    told.tasks = await told.story.everything()
    await told.projector.start()
    await told.projector.wait_for(await told.log.head(), 10)
    yield told
    await told.projector.close()


@pytest.mark.parametrize("view", sorted(SEED))
async def test_every_field_of_the_seed_is_there(told: Told, view: str) -> None:
    """Each document has all fields of its section of the seed, under the seed's names."""
    documents = await told.documents(view)
    assert documents
    for document in documents.values():
        assert set(SEED[view].split()) <= set(document)


async def test_enumerations_are_closed(told: Told) -> None:
    """Kinds, states and statuses are only those of the seed."""
    for (view, field), values in ENUMS.items():
        assert {document[field] for document in (await told.documents(view)).values()} <= set(values)


async def test_a_task_is_told_to_its_end(told: Told) -> None:
    """The task shows its last state, thread and turn, and holds no lease at the end."""
    task = (await told.documents("tasks"))[told.tasks["succeeded"]]
    assert (task["state"], task["stateVersion"]) == ("succeeded", 5)
    assert (task["threadId"], task["codexTurnId"]) == ("thread-1", "0")
    assert task["turnId"] == f"{task['taskId']}-turn-1"
    assert task["leaseId"] is None
    assert task["title"] == "Issue 42"
    assert task["url"].endswith("#c")


async def test_a_running_task_shows_its_lease(told: Told) -> None:
    """From the claim to its end a task names the lease that it runs under."""
    task_id = await told.story.mention(50, repo="acme/third")
    await told.story.run(task_id, last="running")
    await told.projector.wait_for(await told.log.head(), 10)
    task = (await told.documents("tasks"))[task_id]
    assert (task["state"], task["leaseId"]) == ("running", "lease-1")
    overview = (await told.documents("overview"))["overview"]
    assert [lease["taskId"] for lease in overview["leases"].values()] == [task_id]


async def test_a_comment_is_pending_then_sent_then_confirmed(told: Told) -> None:
    """The receipt is acknowledged only, the final reply was read back, another receipt still waits."""
    comments = await told.documents("comments")
    done, queued = told.tasks["succeeded"], told.tasks["queued"]
    receipt, final = comments[f"{done}:status:queued"], comments[f"{done}:final:{done}-turn-1"]
    assert (receipt["status"], receipt["commentId"], receipt["kind"]) == ("sent", 501, "status")
    assert (final["status"], final["commentId"], final["kind"]) == ("confirmed", 502, "mcp_final")
    assert final["resourceKey"] == receipt["resourceKey"] == "default:acme/widget:issue:42"
    assert comments[f"{queued}:status:queued"]["status"] == "pending"


@pytest.mark.parametrize(("status", "shown"), [("failed", "failed"), ("unknown", "pending")])
async def test_a_comment_that_was_not_acknowledged(status: Any, shown: str) -> None:
    """A refused comment has failed; one whose answer was lost is pending until somebody looks."""
    log = MemoryLog()
    intent = EffectIntended(
        intent_id="i",
        operation="comment.create",
        executor="bridge",
        task_id="t",
        target="default:a/b:issue:1",
        key="k",
        attempt=0,
        turn_id="t-turn-1",
        body_hash=HASH,
        comment_key="t:final:t-turn-1",
        comment_kind="mcp_final",
    )
    result = EffectConcluded(
        intent_id="i", operation="comment.create", task_id="t", status=status, at="", error_code="gitea_lost"
    )
    await Story(log).put(("task:t", intent), ("task:t", result))
    (comment,) = project(Comments(), await log.read(after=0, limit=10)).values()
    assert (comment["status"], comment["errorCode"]) == (shown, "gitea_lost")
    await Story(log).put(("task:t", concluded("i", "comment.create", "t", outside_id="9", reconciled=True)))
    (comment,) = project(Comments(), await log.read(after=0, limit=10)).values()
    assert (comment["status"], comment["commentId"], comment["errorCode"]) == ("sent", 9, None)


async def test_turns_sessions_and_repositories_follow(told: Told) -> None:
    """A turn counts its events and ends, a session waits with its task, a disabled repository says why."""
    turn = (await told.documents("turns"))[f"{told.tasks['succeeded']}-turn-1"]
    assert (turn["status"], turn["eventSeq"], turn["usage"]) == ("completed", 3, {"total_tokens": 9})
    sessions = await told.documents("sessions")
    assert sessions["default:acme/gadget:issue:43"]["status"] == "waiting_user"
    first = sessions["default:acme/widget:issue:42"]
    assert (first["lastTaskId"], first["threadId"]) == (told.tasks["queued"], "thread-1")
    repository = (await told.documents("repositories"))["default:acme/gadget"]
    assert (repository["status"], repository["statusReason"], repository["version"]) == (
        "disabled",
        "tidying",
        2,
    )
    assert repository["workspacePath"] == "/workspace/default/acme/gadget"


async def test_deliveries_tell_what_was_decided(told: Told) -> None:
    """Accepted ones name their task, unreadable ones are rejected, repeats are counted; all expire in 30 days."""
    deliveries = await told.documents("deliveries")
    assert {d["status"] for d in deliveries.values() if d["taskId"]} == {"accepted"}
    odd = deliveries["default:odd"]
    assert (odd["status"], odd["normalized"], odd["repeats"]) == ("rejected", False, 1)


async def test_counts_agree_with_the_tasks(told: Told) -> None:
    """The overview counts exactly the tasks that are listed in each state."""
    tasks = await told.documents("tasks")
    counts = (await told.documents("overview"))["overview"]["counts"]
    for state in STATES:
        assert counts.get(state, 0) == sum(task["state"] == state for task in tasks.values())


async def test_no_text_of_people_is_copied(told: Told) -> None:
    """Instructions and logins stand in no view: they are looked up, so that erasing them is enough."""
    for view in VIEWS:
        text = str(await told.documents(view.name))
        assert "fix number" not in text
        assert "alice" not in text


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
async def test_rebuilt_equals_live(told: Told, view: str) -> None:
    """A view built anew from the whole log has exactly the rows that grew event by event."""
    live = await told.rows(view)
    await told.projector.rebuild(view)
    assert [{**row, "generation": 0} for row in await told.rows(view)] == [
        {**row, "generation": 0} for row in live
    ]
    assert live
    assert await told.rows(view, generation=1) == live
    await told.store.drop_old(view)
    with pytest.raises(NotFound):
        await told.rows(view, generation=1)


async def test_a_rebuilt_view_goes_on(told: Told) -> None:
    """After the switch the new rows are the ones that events change."""
    await told.projector.rebuild("tasks")
    task_id = await told.story.mention(60)
    await told.projector.wait_for(await told.log.head(), 10)
    assert (await told.documents("tasks"))[task_id]["state"] == "queued"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_batches_do_not_matter(told: Told, size: int) -> None:
    """The same rows come out, however the log is cut into batches."""
    store = MemoryViews()
    other = Projector(told.log, store, VIEWS, batch=size)
    await other.start()
    await other.wait_for(await told.log.head(), 10)
    await other.close()
    for view in VIEWS:
        rows = await store.select(view.name, where={}, limit=10_000, descending=False)
        assert list(rows) == await told.rows(view.name)


async def test_a_batch_that_was_taken_already_changes_nothing(told: Told) -> None:
    """Two projectors on one store: whoever comes second has nothing left to do."""
    before = {view.name: await told.rows(view.name) for view in VIEWS}
    await told.projector.apply(await told.log.read(after=0, limit=1000))
    assert {view.name: await told.rows(view.name) for view in VIEWS} == before


async def test_a_view_of_another_version_starts_anew(told: Told) -> None:
    """A changed version empties the view; the rows come back from the log."""
    await told.projector.close()
    await told.store.prepare({"tasks": 99})
    assert await told.store.position() == 0
    await told.projector.start()
    await told.projector.wait_for(await told.log.head(), 10)
    assert set(told.tasks.values()) <= set(await told.documents("tasks"))


async def test_waiting_for_a_position_is_bounded(told: Told) -> None:
    """Asked for a position that is not there, the projector says ``view_behind``, with both positions."""
    head = await told.log.head()
    with pytest.raises(Unavailable) as caught:
        await told.projector.wait_for(head + 1, 0.01)
    assert caught.value.code == "view_behind"
    assert caught.value.params == {"position": head, "minPosition": head + 1}


async def test_the_projector_goes_on_after_the_database_was_away(told: Told, monkeypatch: Any) -> None:
    """A batch that could not be stored is taken again; nothing is left out."""
    update: Callable[[], Any] = told.store.update
    failures = [Unavailable("away")]

    @contextlib.asynccontextmanager
    async def flaky() -> AsyncIterator[Any]:
        if failures:
            raise failures.pop()
        async with update() as inner:
            yield inner

    monkeypatch.setattr(told.store, "update", flaky)
    task_id = await told.story.mention(61)
    await told.projector.wait_for(await told.log.head(), 10)
    assert not failures
    assert task_id in await told.documents("tasks")


async def test_an_unknown_view_cannot_be_rebuilt(told: Told) -> None:
    """A misspelt name is refused."""
    with pytest.raises(NotFound):
        await told.projector.rebuild("taks")


def test_names_and_versions_are_distinct() -> None:
    """Each view has a name of its own, and fresh rows have no group."""
    assert len({view.name for view in VIEWS}) == len(VIEWS)
    assert FRESH == ""
