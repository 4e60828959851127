"""``turnkeeper doctor`` against the stand-in Gitea names each planted fault, with its cure."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.conftest import Schema
from tests.e2e.world import BOT, ROOT, World

MakeWorld = Callable[..., World]

pytestmark = pytest.mark.timeout(240)


async def doctor(world: World, **more: str) -> dict[str, Any]:
    """What ``doctor --json`` prints; no secret stands in it, and its exit code fits."""
    if not world.processes:
        more = {"TURNKEEPER_PORT": "9", **more}  # no service has chosen one
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services",
        "doctor",
        "--json",
        env=world.environment(**more),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    told = out.decode()
    for secret in (world.bot_token, world.admin_token, world.secret):
        assert secret not in told + err.decode()
    assert told, err.decode()
    found: dict[str, Any] = json.loads(told)
    assert process.returncode == (1 if found["status"] == "fail" else 0)
    return found


def finding(told: dict[str, Any], name: str) -> dict[str, Any]:
    """The worst check of this name."""
    order = {"fail": 0, "warn": 1, "ok": 2}
    found = [check for check in told["checks"] if check["name"] == name]
    assert found, [check["name"] for check in told["checks"]]
    worst: dict[str, Any] = min(found, key=lambda check: order[check["status"]])
    return worst


def troubles(told: dict[str, Any]) -> set[str]:
    """The names of the checks that are not ok."""
    return {check["name"] for check in told["checks"] if check["status"] != "ok"}


@contextlib.asynccontextmanager
async def set_up(world: World, **more: str) -> AsyncIterator[World]:
    """A world with a repository, a running service and one mention answered."""
    async with world:
        repo = world.repository("shop")
        await world.serve(TURNKEEPER_REPOSITORIES="alice/shop", **more)
        world.mention(repo, world.issue(repo), "why?")
        task = await world.received()
        await world.reaches(task.task_id)
        await world.sim.hooks.idle()
        yield world


async def test_a_set_up_that_works_has_no_finding(new_world: MakeWorld) -> None:
    """With everything in place only the waivers of this machine remain, and each thing is named as it is."""
    async with set_up(new_world()) as world:
        told = await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop")
        assert troubles(told) <= {"isolation"}, told
        assert BOT in finding(told, "gitea")["detail"]
        assert "comments by" in finding(told, "gitea-mcp")["detail"]
        assert "alice/shop" in finding(told, "deliveries")["detail"]
        assert finding(told, "clock")["detail"].count("agree") == 1
        assert "the service answers" in finding(told, "address")["detail"]


def revoked(world: World) -> dict[str, str]:
    del world
    return {"TURNKEEPER_GITEA_TOKEN": "0" * 40}


def without(*scopes: str) -> Callable[[World], dict[str, str]]:
    def plant(world: World) -> dict[str, str]:
        return {"TURNKEEPER_GITEA_TOKEN": world.sim.state.add_token(BOT, scopes)}

    return plant


def of_alice(world: World) -> dict[str, str]:
    token = world.sim.state.add_token("alice", ("write:issue", "write:repository", "read:user"))
    return {"TURNKEEPER_GITEA_TOKEN": token, "TURNKEEPER_BOT_LOGIN": BOT}


def read_only(world: World) -> dict[str, str]:
    world.sim.state.collaborator("alice/shop", BOT, "read")
    return {}


def hidden(world: World) -> dict[str, str]:
    world.sim.state.add_repo("alice", "secret", files={"a": "b"}, private=True)
    return {"TURNKEEPER_REPOSITORIES": "alice/shop,alice/secret"}


def archived(world: World) -> dict[str, str]:
    world.sim.state.repo("alice/shop").archived = True
    return {}


def given(**settings: str) -> Callable[[World], dict[str, str]]:
    return lambda _world: {f"TURNKEEPER_{name}": value for name, value in settings.items()}


def silent(world: World) -> dict[str, str]:
    world.repository("depot")
    return {"TURNKEEPER_REPOSITORIES": "alice/shop,alice/depot"}


PLANTED: list[tuple[str, Callable[[World], dict[str, str]], str, str, tuple[str, ...]]] = [
    ("no token", given(GITEA_TOKEN=""), "gitea", "fail", ("no token", "token")),
    ("wrong token", revoked, "gitea", "fail", ("does not know this token", "new access token")),
    ("no read:user", without("write:issue", "write:repository"), "gitea", "fail", ("read:user", "read:user")),
    (
        "no write:issue",
        without("read:issue", "write:repository", "read:user"),
        "repository alice/shop",
        "fail",
        ("write:issue", "write:issue"),
    ),
    (
        "no write:repository",
        without("write:issue", "read:repository", "read:user"),
        "repository alice/shop",
        "fail",
        ("write:repository", "write:repository"),
    ),
    ("token of another", of_alice, "gitea", "fail", ("alice", "TURNKEEPER_BOT_LOGIN")),
    (
        "another bot's id",
        given(BOT_ID="4711"),
        "gitea",
        "fail",
        ("not the configured bot", "TURNKEEPER_BOT_ID"),
    ),
    ("bot may only read", read_only, "repository alice/shop", "warn", ("push", "collaborator")),
    ("bot sees no repository", hidden, "repository alice/secret", "fail", ("does not show", "collaborator")),
    ("archived repository", archived, "repository alice/shop", "warn", ("archived", "unarchive")),
    ("no delivery ever", silent, "deliveries", "warn", ("alice/depot", "hooks install alice/depot")),
    (
        "Gitea away",
        given(GITEA_URL="http://127.0.0.1:9"),
        "gitea",
        "fail",
        ("could not be reached", "start Gitea"),
    ),
    (
        "codex missing",
        given(CODEX_COMMAND="no-such-codex app-server"),
        "codex",
        "fail",
        ("codex", "install codex"),
    ),
    (
        "gitea-mcp missing",
        given(GITEA_MCP_COMMAND="no-such-gitea-mcp"),
        "gitea-mcp",
        "fail",
        ("", "install gitea-mcp"),
    ),
    ("gitea-mcp exits", given(GITEA_MCP_COMMAND="false"), "gitea-mcp", "fail", ("", "install gitea-mcp")),
    ("not isolated", given(ISOLATION="none"), "isolation", "warn", ("not isolated", "bubblewrap")),
    ("disk full", given(DISK_FLOOR_BYTES=str(2**62)), "disk", "fail", ("too little", "free some space")),
    ("no webhook secret", given(WEBHOOK_SECRET=""), "configuration", "fail", ("WEBHOOK_SECRET", "set it")),
    ("another port", given(PORT="9"), "address", "warn", ("not running", "turnkeeper serve")),
    (
        "misspelt setting",
        given(GITEA_TOKN="x"),
        "configuration",
        "warn",
        ("TURNKEEPER_GITEA_TOKN", "config --explain"),
    ),
]


async def test_each_planted_fault_is_named(new_world: MakeWorld) -> None:
    """Every fault of the list, planted alone, is found under its name, with what is wrong and what to do."""
    async with set_up(new_world()) as world:
        missed = []
        for title, plant, name, status, (detail, cure) in PLANTED:
            settings = {"TURNKEEPER_REPOSITORIES": "alice/shop", **plant(world)}
            told = await doctor(world, **settings)
            found = finding(told, name)
            if (
                found["status"] != status
                or detail.lower() not in found["detail"].lower()
                or cure.lower() not in (found["cure"] or "").lower()
            ):
                missed.append((title, found))
            world.sim.state.collaborator("alice/shop", BOT, "write")
            world.sim.state.repo("alice/shop").archived = False
        assert missed == []


async def test_a_wrong_secret_is_seen_by_the_refusals(new_world: MakeWorld) -> None:
    """A hook with another secret: its requests were refused after the last right one, and the doctor says so."""
    async with set_up(new_world()) as world:
        repo = world.sim.state.repo("alice/shop")
        for hook in world.sim.state.hooks.values():
            hook.secret = "another"
        world.mention(repo, 1, "again?")
        await world.sim.hooks.idle()
        await world.processes[-1].end()  # what was counted is appended at the end
        await world.serve()  # the views show it
        head = await world.log.head()
        async with httpx.AsyncClient(trust_env=False) as client:
            seen = await client.get(
                f"{world.processes[-1].url}/api/gitea-workflow/audit",
                params={"min_position": str(head), "limit": "1"},
                headers={"Authorization": f"Bearer {world.admin_token}"},
            )
        assert seen.status_code == 200
        told = await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop")
        found = finding(told, "deliveries")
        assert found["status"] == "fail"
        assert "1 request without a right signature" in found["detail"]
        assert "the last right one came" in found["detail"]
        assert "hooks install" in found["cure"]


async def test_nothing_was_ever_delivered(new_world: MakeWorld) -> None:
    """Before the first delivery the doctor says that none came from the repository, and how to make the hook."""
    async with new_world() as world:
        world.repository("shop")
        told = await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop")
        found = finding(told, "deliveries")
        assert (found["status"], "alice/shop" in found["detail"]) == ("warn", True)
        assert "hooks install alice/shop" in found["cure"]
        assert finding(told, "address")["status"] == "warn"


async def test_a_gitea_of_another_name(new_world: MakeWorld) -> None:
    """Reached by a name that is not Gitea's own ROOT_URL: the doctor names the address to configure."""
    async with new_world() as world:
        world.repository("shop")
        async with proxy(world.sim.url) as url:
            told = await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop", TURNKEEPER_GITEA_URL=url)
            found = finding(told, "repository alice/shop")
            assert found["status"] == "fail"
            assert f"TURNKEEPER_GITEA_PUBLIC_URL={world.sim.url}" in found["cure"]
            told = await doctor(
                world,
                TURNKEEPER_REPOSITORIES="alice/shop",
                TURNKEEPER_GITEA_URL=url,
                TURNKEEPER_GITEA_PUBLIC_URL=world.sim.url,
            )
            assert finding(told, "repository alice/shop")["status"] == "ok"


async def test_clocks_that_are_apart(new_world: MakeWorld, schema: Schema) -> None:
    """A Gitea that is an hour behind, and a database that is an hour ahead, are each named with their distance."""
    async with new_world() as world:
        world.repository("shop")
        async with proxy(world.sim.url, behind=timedelta(hours=1)) as url:
            told = await doctor(
                world,
                TURNKEEPER_REPOSITORIES="alice/shop",
                TURNKEEPER_GITEA_URL=url,
                TURNKEEPER_GITEA_PUBLIC_URL=world.sim.url,
            )
            found = finding(told, "clock")
            assert found["status"] == "warn"
            assert "Gitea's clock is 3" in found["detail"]
            assert "behind" in found["detail"]
            assert "database" not in found["detail"]
            assert "NTP" in found["cure"]
        schema.advance(3600)
        found = finding(await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop"), "clock")
        assert found["status"] == "warn"
        assert "the database's clock is 3" in found["detail"]
        assert "ahead" in found["detail"]


async def test_a_bot_that_owns_the_repository(new_world: MakeWorld) -> None:
    """A bot's account that is a person's own is not a dedicated one: the doctor says what that means."""
    async with new_world() as world:
        world.sim.state.add_repo(BOT, "own", files={"a": "b"})
        found = finding(await doctor(world, TURNKEEPER_REPOSITORIES=f"{BOT}/own"), "gitea")
        assert found["status"] == "warn"
        assert "dedicated" in found["cure"]


async def test_databases_that_do_not_fit(new_world: MakeWorld) -> None:
    """A database that does not answer, or was never migrated, is named; Gitea is looked at all the same."""
    async with new_world() as world:
        world.repository("shop")
        away = "postgresql://nobody:none@127.0.0.1:9/none"
        for settings, cure in (
            ({"DATABASE_URL": away}, "DATABASE_URL"),
            ({"TURNKEEPER_DATABASE_SCHEMA": "never_migrated"}, "turnkeeper migrate"),
        ):
            told = await doctor(world, TURNKEEPER_REPOSITORIES="alice/shop", **settings)
            found = finding(told, "database")
            assert (found["status"], cure in found["cure"]) == ("fail", True)
            assert finding(told, "gitea")["status"] == "ok"
            assert finding(told, "repository alice/shop")["status"] == "ok"


@contextlib.asynccontextmanager
async def proxy(target: str, *, behind: timedelta = timedelta()) -> AsyncIterator[str]:
    """Another address of a Gitea, whose clock may be behind."""
    async with httpx.AsyncClient(base_url=target, trust_env=False) as client:

        async def pass_on(request: Request) -> Response:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name not in ("host", "content-length")
            }
            answer = await client.request(
                request.method, request.url.path, content=await request.body(), headers=headers
            )
            date = format_datetime(datetime.now(UTC) - behind, usegmt=True)
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name in ("content-type", "x-total-count")
            }
            return Response(answer.content, status_code=answer.status_code, headers={**kept, "Date": date})

        methods = ["GET", "POST", "PATCH", "PUT", "DELETE"]
        app = Starlette(routes=[Route("/{path:path}", pass_on, methods=methods)])
        config = uvicorn.Config(
            app, port=0, host="127.0.0.1", date_header=False, log_config=None, lifespan="off", ws="none"
        )
        server = _Server(config)
        serving: asyncio.Task[None] = asyncio.create_task(server.serve())
        await server.listening.wait()
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A server that says when it listens and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Nothing."""
        yield

    async def startup(self, sockets: Any = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()
