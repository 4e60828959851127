"""The POST routes by which an operator steers: strict, idempotent, remembered with their events."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adapters.memory import MemoryLog
from adapters.postgres.log import PostgresLog
from domain import ids
from domain.control import GloballyPaused, RequestRecorded
from domain.faults import Unavailable, VersionConflict
from domain.log import AppendRequest
from domain.policy import Rules
from domain.repositories import RepositoryBlocked
from domain.sessions import SessionTaskAdmitted
from domain.tasks import TaskCancelled, TaskReceived
from projections.views import VIEWS
from services.control import Control
from services.http.app import create_app
from services.http.control import control_routes
from services.projector import Projector
from services.queries import Queries
from services.telemetry import Metrics
from services.view_store import MemoryViews
from tests.conftest import Schema
from tests.unit.projections_story import Story, moved

TOKEN = "canary-admin-token"
BASE = "/api/gitea-workflow"
REPO = "default:acme/widget"
KEY = quote(REPO, safe="")
ROUTES = (
    "control/pause",
    "control/resume",
    "tasks/gitea-task-none/cancel",
    "tasks/gitea-task-none/abort",
    "tasks/gitea-task-none/unblock",
    "tasks/gitea-task-none/retry",
    f"repos/{KEY}/disable",
    f"repos/{KEY}/enable",
)
RULES = Rules(
    bot_login="bot",
    bot_id=9,
    gitea_urls=("https://gitea.example",),
    repositories=("*",),
    receipt_templates={"queued": "taken: {code}"},
)


class Surface:
    """The application over a log, and an operator at it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.story = Story(log)
        self.projector = Projector(log, MemoryViews(), VIEWS)
        control = Control(log, rules=lambda: RULES, runner_id="runner-test", new_id=uuid.uuid4)
        app = create_app(
            ingress=[],
            queries=Queries(log, MemoryViews(), self.projector, wait=0.05),
            admin_token=TOKEN,
            metrics=Metrics(),
            ready=lambda: True,
            more=control_routes(control),
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://turnkeeper.example",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    async def post(self, path: str, request_id: str = "r-1", reason: str = "because") -> httpx.Response:
        """One act."""
        body = {"requestId": request_id, "reason": reason}
        return await self.client.post(f"{BASE}/{path}", json=body)

    async def raw(self, body: bytes, **headers: str) -> httpx.Response:
        """A pause with these bytes as its body."""
        given = {"Content-Type": "application/json", **headers}
        return await self.client.post(f"{BASE}/control/pause", content=body, headers=given)

    async def events(self) -> list[Any]:
        """The whole log's events."""
        return [row.event for row in await self.log.read(after=0, limit=10_000)]

    async def of(self, kind: type) -> list[Any]:
        """The log's events of one type."""
        return [event for event in await self.events() if isinstance(event, kind)]

    async def state(self, task_id: str, *states: str) -> None:
        """Move a queued task through these states."""
        before, version = "queued", 2
        for after in states:
            await self.story.put(
                (ids.task_stream(task_id), moved(await self._received(task_id), before, after, version))
            )
            before, version = after, version + 1

    async def _received(self, task_id: str) -> TaskReceived:
        rows = await self.log.read_stream(ids.task_stream(task_id))
        event = rows[0].event
        assert isinstance(event, TaskReceived)
        return event


@pytest.fixture(params=["memory", "postgres"])
async def surface(request: pytest.FixtureRequest) -> AsyncIterator[Surface]:
    """Over each log."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "memory":
            log: Any = MemoryLog()
        else:
            schema: Schema = request.getfixturevalue("schema")
            log = await PostgresLog.open(schema.url, schema=schema.schema)
            stack.push_async_callback(log.close)
        made = Surface(log)
        stack.push_async_callback(made.client.aclose)
        yield made


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The params of a refusal with this status and code."""
    told = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), told
    assert set(told) == {"code", "message", "params", "traceId"}
    params: dict[str, Any] = told["params"]
    return params


@pytest.mark.parametrize("path", ROUTES)
async def test_every_route_needs_the_token_and_takes_post_alone(surface: Surface, path: str) -> None:
    """Without the bearer 401 and nothing happens; another method is 405."""
    body = {"requestId": "r-1", "reason": "because"}
    answer = await surface.client.post(f"{BASE}/{path}", json=body, headers={"Authorization": "Bearer wrong"})
    refused(answer, 401, "unauthorised")
    refused(await surface.client.get(f"{BASE}/{path}"), 405, "method_not_allowed")
    assert await surface.events() == []


BAD: list[tuple[bytes, str, str | None]] = [
    (b"", "invalid_json", None),
    (b"{", "invalid_json", None),
    (b"\xff", "invalid_json", None),
    (b"[" * 30_000, "invalid_json", None),
    (b'{"requestId": NaN}', "invalid_json", None),
    (b'{"requestId": ' + b"9" * 10_000 + b"}", "invalid_json", None),
    (b'{"requestId": "a", "reason": "b"} {}', "trailing_json", None),
    (b'{"requestId": "a", "reason": "b"}x', "trailing_json", None),
    (b'{"requestId": "a", "reason": "b", "reason": "c"}', "duplicate_field", "reason"),
    (b'{"requestId": "a", "reason": "b", "model": "m"}', "unknown_field", "model"),
    (b'{"requestId": "a", "reason": "b", "tool": {"name": "x"}}', "unknown_field", "tool"),
    (b'{"requestId": "a", "reason": "b", "actor": "admin:x"}', "unknown_field", "actor"),
    (b'{"requestId": "a", "reason": "b", "\\ud800": 1}', "unknown_field", "?"),
    (b"null", "wrong_type", "body"),
    (b"[]", "wrong_type", "body"),
    (b'"a"', "wrong_type", "body"),
    (b'{"requestId": 1, "reason": "b"}', "wrong_type", "requestId"),
    (b'{"requestId": "a", "reason": ["b"]}', "wrong_type", "reason"),
    (b'{"requestId": null, "reason": "b"}', "null_field", "requestId"),
    (b'{"requestId": "a", "reason": null}', "null_field", "reason"),
    (b'{"reason": "b"}', "missing_field", "requestId"),
    (b'{"requestId": "a"}', "missing_field", "reason"),
    (b'{"requestId": "", "reason": "b"}', "invalid_field", "requestId"),
    (b'{"requestId": "a b", "reason": "b"}', "invalid_field", "requestId"),
    (b'{"requestId": "' + b"a" * 101 + b'", "reason": "b"}', "invalid_field", "requestId"),
    (b'{"requestId": "a", "reason": "  "}', "invalid_field", "reason"),
    (b'{"requestId": "a", "reason": "\\u0000"}', "invalid_field", "reason"),
    (b'{"requestId": "a", "reason": "\\ud800"}', "invalid_field", "reason"),
    (b'{"requestId": "a", "reason": "' + b"b" * 2_001 + b'"}', "invalid_field", "reason"),
    (b'{"requestId": "a", "reason": "' + b"b" * 65_536 + b'"}', "body_too_large", None),
]


@pytest.mark.parametrize(("body", "code", "name"), BAD, ids=[f"{n}-{bad[1]}" for n, bad in enumerate(BAD)])
async def test_bodies_are_strict(surface: Surface, body: bytes, code: str, name: str | None) -> None:
    """Each way in which a body can be wrong is a 400 with its own code and the field's name; nothing happens."""
    assert refused(await surface.raw(body), 400, code).get("name") == name
    assert await surface.events() == []


async def test_what_else_a_request_must_be(surface: Surface) -> None:
    """Another content type is 415, a query parameter 400; the header may carry the id, but no other one."""
    body = b'{"requestId": "a", "reason": "b"}'
    refused(await surface.raw(body, **{"Content-Type": "text/plain"}), 415, "unsupported_media_type")
    answer = await surface.client.post(f"{BASE}/control/pause?force=1", content=body)
    assert refused(answer, 400, "unknown_parameter") == {"name": "force"}
    assert refused(await surface.raw(body, **{"Idempotency-Key": "b"}), 400, "idempotency_key_differs")
    assert await surface.events() == []
    answer = await surface.raw(b'{"reason": "b"}', **{"Idempotency-Key": "b"})
    assert (answer.status_code, answer.json()["requestId"]) == (200, "b")


async def test_pause_and_resume(surface: Surface) -> None:
    """The control plane's state is answered with the log's position; who and why stand in the events."""
    answer = await surface.post("control/pause", "r-1", "maintenance")
    head = await surface.log.head()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert answer.json() == {
        "requestId": "r-1",
        "action": "pause",
        "control": {
            "globalPaused": True,
            "pauseReason": "maintenance",
            "updatedBy": "admin:token",
            "version": 1,
        },
        "position": head,
    }
    assert await surface.of(GloballyPaused) == [
        GloballyPaused(actor="admin:token", reason="maintenance", request_id="r-1")
    ]
    rows = await surface.log.read(after=0, limit=10)
    assert {row.metadata["actor"] for row in rows} == {"admin:token"}
    resumed = (await surface.post("control/resume", "r-2", "done")).json()
    assert (resumed["control"]["globalPaused"], resumed["control"]["version"]) == (False, 2)
    assert resumed["position"] > head


async def test_a_repeat_gets_the_first_answer_and_has_no_effect(surface: Surface) -> None:
    """The same id and request answers the same forever, also after the state changed, and appends nothing."""
    task_id = await surface.story.mention(42)
    first = await surface.post(f"tasks/{task_id}/cancel")
    assert (first.status_code, first.json()["state"]) == (200, "cancelled")
    head = await surface.log.head()
    assert first.json()["position"] == head
    again = await surface.post(f"tasks/{task_id}/cancel")
    assert (again.status_code, again.json()) == (200, first.json())
    assert await surface.log.head() == head
    assert len(await surface.of(TaskCancelled)) == 1
    refused(await surface.post(f"tasks/{task_id}/cancel", "r-2"), 409, "invalid_state")


async def test_one_id_is_one_request(surface: Surface) -> None:
    """The same id with another act, target or reason is 409 ``request_conflict`` and has no effect."""
    one, other = await surface.story.mention(42), await surface.story.mention(43)
    assert (await surface.post(f"tasks/{one}/cancel")).status_code == 200
    head = await surface.log.head()
    for path, reason in (
        (f"tasks/{other}/cancel", "because"),
        (f"tasks/{one}/abort", "because"),
        (f"tasks/{one}/retry", "because"),
        (f"tasks/{one}/cancel", "another reason"),
        ("control/pause", "because"),
        (f"repos/{KEY}/disable", "because"),
    ):
        answer = await surface.post(path, reason=reason)
        assert refused(answer, 409, "request_conflict") == {"requestId": "r-1"}
    assert await surface.log.head() == head


async def test_a_refusal_is_decided_anew(surface: Surface) -> None:
    """What was refused is not remembered: the same request has its effect once the state allows it."""
    task_id = await surface.story.mention(42)
    refused(await surface.post(f"tasks/{task_id}/unblock"), 409, "invalid_state")
    assert await surface.of(RequestRecorded) == []
    await surface.state(task_id, "preparing", "blocked_workspace")
    await surface.story.put((ids.repo_stream(REPO), RepositoryBlocked(repo_key=REPO, task_id=task_id)))
    answer = await surface.post(f"tasks/{task_id}/unblock")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert [row.task for row in await surface.log.candidates(limit=10)] == [task_id]


@pytest.mark.parametrize(
    ("path", "events"), [("control/pause", 2), ("cancel", 3), ("retry", 5), (f"repos/{KEY}/disable", 2)]
)
async def test_sixteen_at_once_are_one_act(surface: Surface, path: str, events: int) -> None:
    """Sixteen at once with the same id get one answer, and the log holds one effect."""
    task_id = await surface.story.mention(42)
    if path == "retry":
        await surface.state(task_id, "preparing", "failed")
    if path in ("cancel", "retry"):
        path = f"tasks/{task_id}/{path}"
    before = len(await surface.events())
    answers = await asyncio.gather(*(surface.post(path) for _ in range(16)))
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].is_success
    after = (await surface.events())[before:]
    assert len([event for event in after if isinstance(event, RequestRecorded)]) == 1
    assert len(after) == events


async def test_sixteen_different_requests_are_decided_one_after_the_other(surface: Surface) -> None:
    """Sixteen cancels of one task at once under their own ids: one has the effect, the others are refused."""
    task_id = await surface.story.mention(42)
    answers = await asyncio.gather(
        *(surface.post(f"tasks/{task_id}/cancel", f"r-{number}") for number in range(16))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 15
    assert len(await surface.of(TaskCancelled)) == 1


async def test_the_memory_stands_in_the_same_append(surface: Surface, monkeypatch: Any) -> None:
    """An act, what it entails and the memory of its answer are one request to the log."""
    requests: list[AppendRequest] = []
    append = surface.log.append

    async def seen(request: AppendRequest) -> Any:
        requests.append(request)
        return await append(request)

    task_id = await surface.story.mention(42)
    monkeypatch.setattr(surface.log, "append", seen)
    await surface.post(f"tasks/{task_id}/abort")
    (request,) = requests
    assert [draft.event.type for draft in request.drafts] == [
        "TaskCancelled",
        "TaskTransitioned",
        "RequestRecorded",
    ]
    assert {premise.stream: premise.version for premise in request.premises}["request:r-1"] == 0


async def test_a_retry_is_one_append_and_a_new_task(surface: Surface) -> None:
    """202 with the new task, which names the old one, is queued in its session and has a receipt to send."""
    task_id = await surface.story.mention(42)
    refused(await surface.post(f"tasks/{task_id}/retry"), 409, "invalid_state")
    await surface.state(task_id, "preparing", "failed")
    answer = await surface.post(f"tasks/{task_id}/retry")
    told = answer.json()
    assert (answer.status_code, told["state"], told["retryOf"]) == (202, "queued", task_id)
    assert told["taskId"] == ids.task_id("default:retry:r-1")
    shown = (await surface.client.get(f"{BASE}/tasks/{told['taskId']}")).json()
    assert (shown["state"], shown["retryOf"], shown["instruction"]) == ("queued", task_id, "fix number 42")
    assert shown["comments"][0]["kind"] == "status"
    assert (await surface.client.get(f"{BASE}/tasks/{task_id}")).json()["state"] == "failed"
    assert [row.task for row in await surface.log.candidates(limit=10)] == [told["taskId"]]
    admitted = [event.task_id for event in await surface.of(SessionTaskAdmitted)]
    assert admitted == [task_id, told["taskId"]]
    other = await surface.post(f"tasks/{task_id}/retry", "r-2")
    assert other.json()["taskId"] != told["taskId"]


async def test_a_disabled_repository(surface: Surface) -> None:
    """Disabling and enabling answer the repository's status; meanwhile no retry makes a task."""
    task_id = await surface.story.mention(42)
    await surface.state(task_id, "preparing", "failed")
    answer = await surface.post(f"repos/{KEY}/disable")
    assert (answer.status_code, answer.json()["repoKey"], answer.json()["status"]) == (200, REPO, "disabled")
    refused(await surface.post(f"tasks/{task_id}/retry", "r-2"), 409, "repository_disabled")
    assert (await surface.post(f"repos/{KEY}/enable", "r-3")).json()["status"] == "active"
    assert (await surface.post(f"tasks/{task_id}/retry", "r-2")).status_code == 202


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        ("default%3Aacme%2Fnone", 404, "repository_not_found"),
        ("default%253Aacme%252Fwidget", 400, "invalid_repo_key"),
        ("default%3A..%2Fwidget", 400, "invalid_repo_key"),
        ("default%3Aacme%2F..", 400, "invalid_repo_key"),
        ("default%3Aacme%2Fwidget%2F..%2Fother", 400, "invalid_repo_key"),
        ("%2E%2E%2F%2E%2E", 400, "invalid_repo_key"),
        ("default%3AAcme%2FWidget", 400, "invalid_repo_key"),
        ("acme%2Fwidget", 400, "invalid_repo_key"),
    ],
)
async def test_repository_keys_are_decoded_once(surface: Surface, key: str, status: int, code: str) -> None:
    """What is still encoded after one decoding, or climbs, is no key; a key that nobody sent is 404."""
    await surface.story.mention(42)
    head = await surface.log.head()
    answer = await surface.client.post(
        f"{BASE}/repos/{key}/disable", json={"requestId": "r-1", "reason": "because"}
    )
    refused(answer, status, code)
    assert await surface.log.head() == head


@pytest.mark.parametrize("act", ["cancel", "abort", "unblock", "retry"])
async def test_a_task_that_is_not_there(surface: Surface, act: str) -> None:
    """404 names the task; an id that cannot be one is 400."""
    answer = await surface.post(f"tasks/gitea-task-none/{act}")
    assert refused(answer, 404, "task_not_found") == {"taskId": "gitea-task-none"}
    refused(await surface.post(f"tasks/a%20b/{act}"), 400, "invalid_task_id")
    assert await surface.events() == []


async def test_without_the_log_nothing_is_promised(surface: Surface, monkeypatch: Any) -> None:
    """If the log cannot be read or written the answer is 503; a lost race is decided again."""
    task_id = await surface.story.mention(42)
    append, lost = surface.log.append, [VersionConflict("somebody was faster")] * 3

    async def racing(request: AppendRequest) -> Any:
        if lost:
            raise lost.pop()
        return await append(request)

    monkeypatch.setattr(surface.log, "append", racing)
    assert (await surface.post(f"tasks/{task_id}/cancel")).status_code == 200

    async def away(_streams: Any) -> Any:
        raise Unavailable("the database does not answer", code="database_unavailable")

    monkeypatch.setattr(surface.log, "read_streams", away)
    answer = await surface.post("control/pause", "r-2")
    refused(answer, 503, "database_unavailable")
    assert json.dumps(answer.json()).find(TOKEN) == -1
