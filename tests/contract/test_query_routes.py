"""The GET routes: who may ask, what they answer, how errors look."""

import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from adapters.memory import MemoryLog
from adapters.postgres.log import PostgresLog
from adapters.postgres.views import PostgresViews
from domain import contents, ids
from domain.control import GloballyPaused
from domain.faults import Unavailable
from domain.transitions import STATES
from projections.views import VIEWS
from services.http.app import create_app
from services.projector import Projector
from services.queries import Queries
from services.telemetry import Metrics, configure_logging
from services.view_store import MemoryViews
from tests.conftest import Schema
from tests.unit.projections_story import Story

TOKEN = "canary-admin-token"
BASE = "/api/gitea-workflow"
LISTS = ("tasks", "audit", "sessions", "turns", "comments", "repositories", "deliveries", "intents")
PROTECTED = (
    *(f"{BASE}/{name}" for name in (*LISTS, "overview", "tasks/x")),
    "/metrics",
    "/",
    "/nothing",
    f"{BASE}/",
)


class Surface:
    """The application over a story's log, and a client with the token."""

    def __init__(self, log: Any, views: Any) -> None:
        self.log = log
        self.story = Story(log)
        self.projector = Projector(log, views, VIEWS)
        self.metrics = Metrics()
        self.started = True
        self.tasks: dict[str, str] = {}

        async def webhook(_request: Request) -> Response:
            return PlainTextResponse("taken", status_code=202)

        async def broken(_request: Request) -> Response:
            raise RuntimeError("canary-detail")

        self.app = create_app(
            ingress=[Route("/api/gitea/webhook", webhook, methods=["POST"])],
            queries=Queries(log, views, self.projector, wait=0.05),
            admin_token=TOKEN,
            metrics=self.metrics,
            ready=lambda: self.started,
            more=[Route("/broken", broken)],
        )
        self.client = self.make_client(f"Bearer {TOKEN}")

    def make_client(self, authorization: str | None) -> httpx.AsyncClient:
        """A client of the application."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://turnkeeper.example",
            headers={"Authorization": authorization} if authorization else {},
        )

    async def get(self, path: str, **params: Any) -> Any:
        """The JSON of a 200."""
        answer = await self.client.get(f"{BASE}/{path}", params=params)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    async def catch_up(self) -> None:
        """Wait until the lists show everything."""
        await self.projector.wait_for(await self.log.head(), 10)


@contextlib.asynccontextmanager
async def surface_over(log: Any, views: Any) -> AsyncIterator[Surface]:
    """A surface with the whole story, shown."""
    surface = Surface(log, views)
    surface.tasks = await surface.story.everything()
    await surface.projector.start()
    await surface.catch_up()
    async with surface.client:
        yield surface
    await surface.projector.close()


@pytest.fixture
async def surface() -> AsyncIterator[Surface]:
    """In memory."""
    async with surface_over(MemoryLog(), MemoryViews()) as made:
        yield made


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"]
)
@pytest.mark.parametrize("path", PROTECTED)
async def test_every_route_needs_the_token(surface: Surface, path: str, authorization: str | None) -> None:
    """Without the right bearer nothing is told, not even whether a path exists."""
    async with surface.make_client(authorization) as client:
        answer = await client.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json()) == {"code", "message", "params", "traceId"}
    assert answer.json()["code"] == "unauthorised"
    assert TOKEN not in answer.text


async def test_probes_and_webhook_need_no_token(surface: Surface) -> None:
    """The probes answer anybody; the webhook has its own signature."""
    async with surface.make_client(None) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/api/gitea/webhook")).status_code == 202
        assert (await client.get("/api/gitea/webhook")).status_code == 405
        assert (await client.get("/api/gitea/webhook/../../metrics")).status_code == 401


async def test_ready_only_while_started_and_the_log_answers(surface: Surface, monkeypatch: Any) -> None:
    """While starting, stopping, or without a database, the service is alive but not ready."""
    surface.started = False
    assert (await surface.client.get("/readyz")).json()["code"] == "not_ready"
    surface.started = True

    async def away() -> int:
        raise Unavailable("the database does not answer", code="database_unavailable")

    monkeypatch.setattr(surface.log, "head", away)
    answer = await surface.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert (await surface.client.get("/healthz")).status_code == 200


async def test_a_task_is_told_whole(surface: Surface) -> None:
    """One task: author and instruction looked up, its turns and comments beside it; the list says the same."""
    task_id = surface.tasks["succeeded"]
    task = await surface.get(f"tasks/{task_id}")
    assert (task["author"], task["instruction"], task["state"]) == ("alice", "fix number 42", "succeeded")
    assert [turn["turnId"] for turn in task["turns"]] == [task["turnId"]]
    assert task["turns"][0]["eventSeq"] == 3
    assert [(item["kind"], item["status"], item["commentId"]) for item in task["comments"]] == [
        ("status", "sent", 501),
        ("mcp_final", "confirmed", 502),
    ]
    assert not [name for name in task if name.startswith("_")]
    listed = {item["taskId"]: item for item in (await surface.get("tasks"))["items"]}
    assert listed[task_id] == task


async def test_a_task_is_there_before_the_lists_know_it(surface: Surface) -> None:
    """Right after its delivery was answered a task can be read, even if no view has caught up."""
    await surface.projector.close()
    task_id = await surface.story.mention(77)
    assert (await surface.get(f"tasks/{task_id}"))["state"] == "queued"
    assert task_id not in [item["taskId"] for item in (await surface.get("tasks"))["items"]]
    missing = await surface.client.get(f"{BASE}/tasks/gitea-task-none")
    assert (missing.status_code, missing.json()["code"]) == (404, "task_not_found")


async def test_an_erased_text_is_none(surface: Surface) -> None:
    """After an instruction and a login were erased, the task shows neither, and everything else."""
    task_id = surface.tasks["succeeded"]
    key = (await surface.get(f"tasks/{task_id}"))["deliveryKey"]
    await surface.log.erase_contents([f"delivery:{key}:text", contents.login_id(7)])
    task = await surface.get(f"tasks/{task_id}")
    assert (task["author"], task["instruction"], task["authorId"]) == (None, None, 7)


async def test_filters_of_tasks(surface: Surface) -> None:
    """Each filter gives exactly the tasks that fulfil it; several together, those that fulfil all."""
    done, waits, queued = (surface.tasks[name] for name in ("succeeded", "waiting_user", "queued"))

    async def found(**params: Any) -> set[str]:
        return {item["taskId"] for item in (await surface.get("tasks", **params))["items"]}

    assert await found() == {done, waits, queued}
    assert await found(repoKey="default:acme/widget") == {done, queued}
    assert await found(resourceKey="default:acme/gadget:issue:43") == {waits}
    assert await found(state="queued") == {queued}
    assert await found(state="queued,succeeded") == {done, queued}
    assert await found(author="Alice") == {done, queued}
    assert await found(author="8") == {waits}
    assert await found(author="nobody") == set()
    assert await found(author="alice", state="waiting_user") == set()
    assert await found(until="2020-01-01T00:00:00Z") == set()
    assert await found(since="2020-01-01T00:00:00+02:00") == {done, waits, queued}
    task = await surface.get(f"tasks/{done}")
    assert await found(deliveryKey=task["deliveryKey"]) == {done}
    assert await found(deliveryId=task["deliveryKey"].partition(":")[2]) == {done}
    assert await found(threadId="thread-1", sessionKey="default:acme/widget:issue:42") == {done}


@pytest.mark.parametrize("name", LISTS)
async def test_paging_is_whole_and_stable_under_inserts(surface: Surface, name: str) -> None:
    """Following the cursors tells every item once, though new ones come in meanwhile."""
    whole = (await surface.get(name, limit=100))["items"]
    assert whole
    told: list[Any] = []
    cursor: str | None = None
    number = 100
    while True:
        page = await surface.get(name, limit=2, **({"cursor": cursor} if cursor else {}))
        told += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
        assert len(page["items"]) == 2
        if number < 103:
            await surface.story.mention(number, repo=f"acme/new{number}")
            await surface.catch_up()
            number += 1
    assert told == whole


@pytest.mark.parametrize(
    ("params", "code", "name"),
    [
        ({"limit": "0"}, "invalid_parameter", "limit"),
        ({"limit": "101"}, "invalid_parameter", "limit"),
        ({"limit": "ten"}, "invalid_parameter", "limit"),
        ({"cursor": "***"}, "invalid_parameter", "cursor"),
        ({"cursor": "eA"}, "invalid_parameter", "cursor"),
        ({"state": "sleeping"}, "invalid_parameter", "state"),
        ({"state": ","}, "invalid_parameter", "state"),
        ({"since": "yesterday"}, "invalid_parameter", "since"),
        ({"until": "2026-01-01T00:00:00"}, "invalid_parameter", "until"),
        ({"order": "up"}, "invalid_parameter", "order"),
        ({"min_position": "-1"}, "invalid_parameter", "min_position"),
        ({"commentId": "x"}, "invalid_parameter", "commentId"),
        ({"model": "gpt"}, "unknown_parameter", "model"),
        ({"resourceKey": "a", "sessionKey": "b"}, "invalid_parameter", "sessionKey"),
    ],
)
async def test_parameters_are_strict(surface: Surface, params: dict[str, str], code: str, name: str) -> None:
    """What cannot be used is a 400 that names the parameter."""
    answer = await surface.client.get(f"{BASE}/tasks", params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert answer.json()["params"]["name"] == name
    assert (await surface.client.get(f"{BASE}/tasks?limit=1&limit=2")).status_code == 400
    assert (await surface.client.get(f"{BASE}/tasks?author=%00")).status_code == 400


async def test_min_position_waits_and_then_says_so(surface: Surface) -> None:
    """A position that is shown is answered at once; one that is not is 503 ``view_behind`` after a bounded wait."""
    head = await surface.log.head()
    assert (await surface.get("tasks", min_position=head))["items"]
    await surface.projector.close()
    await surface.story.mention(78)
    for path in ("tasks", "overview", "audit"):
        answer = await surface.client.get(f"{BASE}/{path}", params={"min_position": head + 1})
        assert (answer.status_code, answer.json()["code"]) == (503, "view_behind")
        assert answer.headers["retry-after"] == "1"


async def test_the_audit_tells_the_chain(surface: Surface) -> None:
    """Every id of the chain finds the task's entries, with the delivery's id and the person's login filled in."""
    task = await surface.get(f"tasks/{surface.tasks['succeeded']}")
    delivery_id = task["deliveryKey"].partition(":")[2]
    by_task = (await surface.get("audit", taskId=task["taskId"], order="asc", limit=100))["items"]
    assert {entry["deliveryId"] for entry in by_task} == {delivery_id}
    assert by_task[0]["actor"] == "gitea:user:alice"
    by_delivery = (await surface.get("audit", deliveryId=delivery_id, order="asc", limit=100))["items"]
    assert [entry["eventId"] for entry in by_task] == [entry["eventId"] for entry in by_delivery]
    by_turn = (await surface.get("audit", turnId=task["turnId"], limit=100))["items"]
    assert {entry["turnId"] for entry in by_turn} == {task["turnId"]}
    by_comment = (await surface.get("audit", commentId=502))["items"]
    assert "reply.confirm" in [entry["action"] for entry in by_comment]
    claims = (await surface.get("audit", action="task.claim", repoKey="default:acme/widget"))["items"]
    assert [entry["taskId"] for entry in claims] == [task["taskId"]]


async def test_the_overview(surface: Surface) -> None:
    """Counts, the oldest queued task, what needs a person, running leases, control and positions."""
    running = await surface.story.mention(44, repo="acme/third")
    await surface.story.put(
        (ids.CONTROL_STREAM, GloballyPaused(actor="admin:operator", reason="maintenance", request_id="r"))
    )
    await surface.catch_up()
    overview = await surface.get("overview", min_position=await surface.log.head())
    assert set(overview["counts"]) == set(STATES)
    assert {state: n for state, n in overview["counts"].items() if n} == {
        "succeeded": 1,
        "waiting_user": 1,
        "queued": 2,
    }
    assert overview["oldestQueued"]["taskId"] == surface.tasks["queued"]
    assert [task["taskId"] for task in overview["needsPerson"]] == [surface.tasks["waiting_user"]]
    assert overview["control"]["globalPaused"] is True
    assert overview["control"]["pauseReason"] == "maintenance"
    assert overview["control"]["updatedBy"] == "admin:operator"
    assert overview["control"]["updatedAt"].endswith("Z")
    assert overview["control"]["version"] == 1
    assert overview["logPosition"] == overview["viewPosition"] == await surface.log.head()
    assert running in [item["taskId"] for item in (await surface.get("tasks"))["items"]]


async def test_an_empty_service_answers(schema: Schema) -> None:
    """Before anything happened every list is empty and the overview is all zeros."""
    log = await PostgresLog.open(schema.url, schema=schema.schema)
    views = PostgresViews(log.session)
    surface = Surface(log, views)
    await surface.projector.start()
    async with surface.client:
        for name in LISTS:
            assert await surface.get(name) == {"items": [], "nextCursor": None}
        overview = await surface.get("overview")
        assert sum(overview["counts"].values()) == 0
        assert overview["control"]["globalPaused"] is False
        assert (overview["oldestQueued"], overview["runningLeases"]) == (None, [])
    await surface.projector.close()
    await views.close()
    await log.close()


async def test_the_same_answers_over_the_database(surface: Surface, schema: Schema) -> None:
    """Over PostgreSQL the same story gives the same lists as in memory, but for times."""
    log = await PostgresLog.open(schema.url, schema=schema.schema)
    views = await PostgresViews.open(schema.url, schema=schema.schema)

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: timeless(v)
                for k, v in value.items()
                if not k.endswith("At") and k not in ("timestamp", "requestId")
            }
        return [timeless(item) for item in value] if isinstance(value, list) else value

    async with surface_over(log, views) as other:
        for path in (*LISTS, "overview", f"tasks/{surface.tasks['succeeded']}"):
            ours, theirs = await surface.get(path), await other.get(path)
            assert timeless(ours) == timeless(theirs), path
    await views.close()
    await log.close()


async def test_an_unexpected_error_is_an_answer_with_a_trace_id(surface: Surface) -> None:
    """A 500 tells its trace id and nothing else; the log has the traceback once, under the same id, without token."""
    out = io.StringIO()
    configure_logging(style="json", secrets=[TOKEN], stream=out)
    try:
        answer = await surface.client.get("/broken")
    finally:
        structlog.reset_defaults()
    body = answer.json()
    assert (answer.status_code, body["code"], body["params"]) == (500, "internal_error", {})
    assert "canary-detail" not in answer.text
    assert answer.headers["x-trace-id"] == body["traceId"]
    (line,) = [json.loads(text) for text in out.getvalue().splitlines()]
    assert line["traceId"] == body["traceId"]
    assert line["exception"].count("RuntimeError: canary-detail") == 1
    assert TOKEN not in out.getvalue()


async def test_wrong_paths_and_methods(surface: Surface) -> None:
    """Unknown paths are 404, other methods 405, both in the one form of errors."""
    for method, path, status in (
        ("GET", f"{BASE}/nothing", 404),
        ("GET", f"{BASE}/tasks/", 404),
        ("POST", f"{BASE}/tasks", 405),
        ("DELETE", f"{BASE}/overview", 405),
    ):
        answer = await surface.client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()) == {"code", "message", "params", "traceId"}


async def test_metrics_name_routes_not_addresses(surface: Surface) -> None:
    """The metrics count requests by route, so that ids never become labels."""
    await surface.client.get(f"{BASE}/tasks/{surface.tasks['succeeded']}")
    text = (await surface.client.get("/metrics")).text
    assert "turnkeeper_ready 1.0" in text
    assert 'route="/api/gitea-workflow/tasks/{task_id}"' in text
    assert surface.tasks["succeeded"] not in text
