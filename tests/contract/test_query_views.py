"""The store of read models on PostgreSQL gives the same answers as its twin in memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.memory import MemoryLog
from adapters.postgres.views import PostgresViews
from projections.views import VIEWS
from services.projector import Projector
from services.view_store import MemoryViews, ViewStore
from tests.conftest import Schema
from tests.unit.projections_story import Story

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    *((view.name, {"where": {}}) for view in VIEWS),
    ("tasks", {"where": {"repo": "default:acme/widget"}}),
    ("tasks", {"where": {"resource": "default:acme/gadget:issue:43"}, "descending": False}),
    ("tasks", {"where": {}, "states": ["queued", "waiting_user"]}),
    ("tasks", {"where": {"author": 8}}),
    ("tasks", {"where": {"author": 8, "repo": "default:acme/widget"}}),
    ("comments", {"where": {"comment": 502}}),
    ("intents", {"where": {"state": "open"}}),
    ("intents", {"where": {"state": "open"}, "states": ["succeeded"]}),
    ("audit", {"where": {"repo": "default:acme/gadget"}, "through_tasks": True}),
    ("audit", {"where": {"resource": "default:acme/widget:issue:42"}, "through_tasks": True}),
    ("audit", {"where": {"thread": "thread-1"}, "through_tasks": True, "descending": False}),
    ("audit", {"where": {}, "since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z"}),
    ("audit", {"where": {}, "since": "2020-01-01T00:00:00Z"}),
]


class Stores:
    """A story's log with both stores, in step."""

    def __init__(self, views: PostgresViews) -> None:
        self.log = MemoryLog()
        self.story = Story(self.log)
        self.views = views
        self.twin = MemoryViews()
        self.projectors = [Projector(self.log, store, VIEWS, batch=9) for store in (self.views, self.twin)]
        self.tasks: dict[str, str] = {}

    async def catch_up(self) -> None:
        """Wait until both show the whole log."""
        for projector in self.projectors:
            await projector.wait_for(await self.log.head(), 20)


@pytest.fixture
async def stores(schema: Schema) -> AsyncIterator[Stores]:
    """Both stores, under the rights of the service's own role."""
    stores = Stores(await PostgresViews.open(schema.url, schema=schema.schema))
    stores.tasks = await stores.story.everything()
    for projector in stores.projectors:
        await projector.start()
    await stores.catch_up()
    yield stores
    for projector in stores.projectors:
        await projector.close()
    await stores.views.close()


async def ask(store: ViewStore, view: str, **question: Any) -> list[tuple[str, int, Any]]:
    """Key, order and document of a page."""
    rows = await store.select(view, **{"limit": 1000, **question})
    return [(row["key"], row["ord"], row["document"]) for row in rows]


async def test_every_question_has_the_same_answer(stores: Stores) -> None:
    """Both stores agree on every filter, order and bound of time; the questions together find something."""
    found = 0
    for view, question in QUESTIONS:
        answer = await ask(stores.views, view, **question)
        assert answer == await ask(stores.twin, view, **question), (view, question)
        found += len(answer)
    assert found > 200


async def test_an_unknown_column_is_refused(stores: Stores) -> None:
    """A condition is never passed over in silence: neither store takes a column that it does not know."""
    for store in (stores.views, stores.twin):
        with pytest.raises(ValueError, match="executor"):
            await ask(store, "intents", where={"executor": "receipts"})
    assert {doc["status"] for _, _, doc in await ask(stores.views, "intents", where={"state": "open"})} == {
        "open"
    }


async def test_pages_join_to_the_whole(stores: Stores) -> None:
    """Page after page, nothing is left out or told twice, in both directions."""
    for descending in (True, False):
        whole = await ask(stores.views, "audit", where={}, descending=descending)
        pages: list[tuple[str, int, Any]] = []
        after: tuple[int, str] | None = None
        while page := await ask(stores.views, "audit", where={}, descending=descending, after=after, limit=7):
            pages += page
            after = (page[-1][1], page[-1][0])
        assert pages == whole


async def test_documents_are_found_by_key(stores: Stores) -> None:
    """Known keys give their documents, unknown ones nothing."""
    task_id = stores.tasks["succeeded"]
    found = await stores.views.get("tasks", [task_id, "gitea-task-none"])
    assert set(found) == {task_id}
    assert found == await stores.twin.get("tasks", [task_id])
    turns = await stores.views.of_tasks("turns", list(stores.tasks.values()))
    assert turns == await stores.twin.of_tasks("turns", list(stores.tasks.values()))
    assert len(turns) == 2
    assert await stores.views.authors() == await stores.twin.authors() == [7, 8]


@pytest.mark.parametrize("view", ["tasks", "audit", "overview"])
async def test_a_rebuilt_view_equals_the_live_one(stores: Stores, view: str) -> None:
    """Rebuilt beside, switched in one transaction; the old generation stays until it is dropped."""
    live = await ask(stores.views, view, where={})
    await stores.projectors[0].rebuild(view)
    assert await ask(stores.views, view, where={}) == live
    assert await ask(stores.views, view, where={}, generation=1) == live
    await stores.views.drop_old(view)
    assert await ask(stores.views, view, where={}, generation=1) == []
    await stores.story.mention(70)
    await stores.catch_up()
    assert await ask(stores.views, view, where={}) == await ask(stores.twin, view, where={})


async def test_two_processes_share_the_views(stores: Stores, schema: Schema) -> None:
    """A second projector on the same tables does no harm, and both see every position."""
    second = await PostgresViews.open(schema.url, schema=schema.schema)
    other = Projector(stores.log, second, VIEWS, batch=4)
    await other.start()
    for number in range(80, 90):
        await stores.story.mention(number)
    await stores.catch_up()
    await other.wait_for(await stores.log.head(), 20)
    await other.close()
    await second.close()
    for view in VIEWS:
        assert await ask(stores.views, view.name, where={}) == await ask(stores.twin, view.name, where={})


async def test_odd_signs_survive(stores: Stores) -> None:
    """NUL, quotes and signs outside the basic plane come back as they were."""
    odd = {"title": 'a\x00b "q" \\ 𝒳 中', "n": None}
    row = {
        **dict.fromkeys(("repo", "resource", "delivery", "turn", "comment", "thread", "author", "at")),
        "view": "tasks", "generation": 1, "key": "odd", "group": "odd", "ord": 1, "task": "o\x00dd",
        "state": "queued",
        "document": odd,
    }  # fmt: skip
    async with stores.views.update() as update:
        await update.save([row], {})
    assert await stores.views.get("tasks", ["odd"]) == {"odd": odd}
