import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.gitea.mcp import GiteaMcp, GiteaMcpFault
from adapters.simulated.gitea import DemoWorld, SimulatedGitea, seed_demo
from domain.bridge_policy import Scope
from domain.faults import NotFound
from domain.markers import our_marker
from domain.tools import ToolCall, ToolResult
from services.bridge import Bridge
from services.bridge_ports import ActiveTurn, BridgeRun, BridgeSettings
from tests.unit.bridge_stage import VERSIONS, Ledger

ROOT = Path(__file__).parents[2]


class Rest:
    """Comments by REST, as a user of the demo (the bot, unless told otherwise)."""

    def __init__(self, world: DemoWorld, login: str | None = None) -> None:
        self._base = f"{world.url}/api/v1/repos/{world.repository}/issues"
        self._headers = {"Authorization": f"token {world.tokens[login or world.bot]}"}

    async def on(self, number: int) -> list[dict[str, Any]]:
        """List an issue's comments."""
        found: list[dict[str, Any]] = await self._ask("GET", f"/{number}/comments")
        return found

    async def edit(self, comment_id: int, body: str) -> None:
        """Edit one."""
        await self._ask("PATCH", f"/comments/{comment_id}", body)

    async def create(self, number: int, body: str) -> int:
        """Create one."""
        return int((await self._ask("POST", f"/{number}/comments", body))["id"])

    async def author_of(self, comment_id: int) -> int:
        """Find its author."""
        return int((await self._ask("GET", f"/comments/{comment_id}"))["user"]["id"])

    async def body_of(self, comment_id: int) -> str:
        """Find its text."""
        return str((await self._ask("GET", f"/comments/{comment_id}"))["body"])

    async def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        async with httpx.AsyncClient(headers=self._headers, trust_env=False) as client:
            content = None if body is None else {"body": body}
            answer = await client.request(method, self._base + path, json=content)
        if answer.status_code == 404:
            raise NotFound("there is no such comment")
        return answer.raise_for_status().json()


@asynccontextmanager
async def gitea(tmp_path: Path) -> AsyncIterator[DemoWorld]:
    sim = SimulatedGitea(root=tmp_path / "gitea")
    await sim.start()
    try:
        yield seed_demo(sim)
    finally:
        await sim.stop()


async def child(world: DemoWorld, dialect: str, *, token: str | None = None) -> GiteaMcp:
    return await GiteaMcp.start(
        [sys.executable, "-m", "adapters.simulated.gitea_mcp"],
        world.url,
        token or world.tokens[world.bot],
        environment={"PYTHONPATH": str(ROOT), "TURNKEEPER_SIMULATED_MCP_DIALECT": dialect},
    )


@pytest.mark.parametrize("dialect", VERSIONS)
async def test_reply_stands_once_in_gitea(tmp_path: Path, dialect: str) -> None:
    """In each dialect: posted, posted again shorter and longer, the issue holds one reply of the present text."""
    async with gitea(tmp_path) as world, await child(world, dialect) as mcp:
        await mcp.probe(world.bot_id)
        ledger, rest = Ledger(), Rest(world)
        owner, repo = world.repository.split("/")
        bridge = Bridge(
            run=BridgeRun(
                task_id="t1",
                scope=Scope(owner=owner, repo=repo),
                number=world.issue,
                bot_id=world.bot_id,
                bot_login=world.bot,
                secrets=(world.tokens[world.bot],),
            ),
            backend=mcp,
            ledger=ledger,
            comments=rest,
            active_turn=lambda: ActiveTurn(turn_id="u1"),
            settings=BridgeSettings(comment_limit=500),
        )
        verb, editing = mcp.dialect.create_comment, mcp.dialect.edit_comment
        assert verb is not None
        assert editing is not None

        async def post(body: str) -> ToolResult:
            arguments = verb.arguments(owner=owner, repo=repo, number=world.issue, body=body)
            return await bridge.call(ToolCall(name=verb.tool, arguments=arguments))

        first = await post(f"One, with {world.tokens[world.bot]}.")
        assert not first.is_error, first
        comment_id = json.loads(first.texts[0])["commentId"]
        assert [found["id"] for found in await rest.on(world.issue)] == [comment_id]
        assert "[redacted]" in (await rest.on(world.issue))[0]["body"]
        long = await post("many words " * 80)
        assert json.loads(long.texts[0])["commentId"] == comment_id
        await post("The end.")
        finals = [
            found
            for found in await rest.on(world.issue)
            if (marker := our_marker(found["body"])) is not None and marker.final
        ]
        assert [(found["id"], found["body"].splitlines()[0]) for found in finals] == [
            (comment_id, "The end.")
        ]
        theirs = await Rest(world, "alice").create(world.issue, "My own words.")
        arguments = editing.arguments(owner=owner, repo=repo, number=theirs, body="Not mine.")
        refused = await bridge.call(ToolCall(name=editing.tool, arguments=arguments))
        assert refused.is_error
        assert await rest.body_of(theirs) == "My own words."
        assert len(ledger.intents) == len(ledger.results)
        assert set(ledger.statuses) == {"succeeded"}


async def test_token_of_another_user_is_found_out(tmp_path: Path) -> None:
    """A token that is not the bot's is refused before anything is written."""
    async with gitea(tmp_path) as world, await child(world, "2026-03", token=world.tokens["alice"]) as mcp:
        with pytest.raises(GiteaMcpFault) as caught:
            await mcp.probe(world.bot_id)
    assert caught.value.code == "gitea_mcp_wrong_bot"


OFFICIAL = os.environ.get("TURNKEEPER_TEST_GITEA_MCP") or shutil.which("gitea-mcp")


@pytest.mark.skipif(OFFICIAL is None, reason="no official gitea-mcp is on the path")
async def test_official_program_answers_the_handshake() -> None:
    """The official program is recognised, and offers a tool to comment."""
    async with await GiteaMcp.start([str(OFFICIAL)], "http://127.0.0.1:9", "token") as mcp:
        assert mcp.dialect.create_comment is not None
        with pytest.raises(GiteaMcpFault):
            await mcp.probe(1)
