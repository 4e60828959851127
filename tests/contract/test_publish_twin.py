"""A pull request that is open already: Gitea's refusal through gitea-mcp, and what the agent is told."""

from pathlib import Path

import pytest

from adapters.simulated.gitea import SimulatedGitea, seed_demo
from domain.bridge_policy import Scope
from domain.tools import ToolCall
from services.bridge import Bridge
from services.bridge_ports import ActiveTurn, BridgeRun
from tests.contract.test_bridge_with_gitea import Rest, child
from tests.unit.bridge_stage import VERSIONS, Ledger


@pytest.mark.parametrize("dialect", VERSIONS)
async def test_the_agent_is_told_the_number_of_the_open_one(tmp_path: Path, dialect: str) -> None:
    """In each dialect the 409 names the standing pull request's number, however many are open."""
    sim = SimulatedGitea(root=tmp_path / "gitea")
    await sim.start()
    try:
        world = seed_demo(sim)
        owner, name = world.repository.split("/")
        repo = sim.state.repo(world.repository)
        for branch in ("turnkeeper/t1", *(f"other-{number}" for number in range(35))):
            sim.state.commit_files(world.bot, repo, branch, {"new.txt": f"{branch}\n"})
        async with await child(world, dialect) as mcp:
            bridge = Bridge(
                run=BridgeRun(
                    task_id="t1",
                    scope=Scope(owner=owner, repo=name),
                    number=world.issue,
                    bot_id=world.bot_id,
                    bot_login=world.bot,
                ),
                backend=mcp,
                ledger=Ledger(),
                comments=Rest(world),
                active_turn=lambda: ActiveTurn(turn_id="u1"),
            )
            arguments: dict[str, object] = {
                "owner": owner, "repo": name, "title": "t", "body": "b", "base": "main", "head": "turnkeeper/t1",
            }  # fmt: skip
            tool = "create_pull_request"
            if dialect == "2026-03":
                tool, arguments["method"] = "pull_request_write", "create"
            call = ToolCall(name=tool, arguments=arguments)
            first = await bridge.call(call)
            assert not first.is_error, first
            (pull,) = [issue for issue in sim.state.issues_of(repo) if issue.pull and issue.state == "open"]
            for number in range(35):
                sim.state.open_pull(world.bot, repo, title="o", head=f"other-{number}", base="main")
            twin = await bridge.call(call)
            assert twin.is_error
            assert f"pull request #{pull.number} is open already" in twin.texts[0]
    finally:
        await sim.stop()
