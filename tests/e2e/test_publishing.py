"""Publishing, told as stories: the agent commits, publishes, opens a pull request and says so."""

from collections.abc import Callable
from typing import Any

import pytest

from domain.effects import EffectConcluded, EffectIntended
from domain.turns import TurnItemSeen
from tests.e2e.world import BOT, World, directive, running

MakeWorld = Callable[..., World]

pytestmark = pytest.mark.timeout(240)

COMMIT = (
    "git config user.name Eve && git config user.email eve@example.org && echo 'return value + 1' >> price.py"
    " && git add price.py && git commit -q -m 'Round up'"
)
PUBLISH = {"do": "call", "name": "publish_branch", "arguments": {}}


def opening(branch: str) -> dict[str, Any]:
    """The step that opens a pull request with gitea-mcp's own tool."""
    arguments = {
        "method": "create", "owner": "alice", "repo": "shop", "title": "Round up", "body": "as asked",
        "head": branch, "base": "main",
    }  # fmt: skip
    return {"do": "call", "name": "pull_request_write", "arguments": arguments}


async def calls(world: World, task_id: str) -> list[tuple[str, str]]:
    """The agent's tool calls that ended: name and status (what it was told is in no event)."""
    found = []
    for each in await world.everything():
        event = each.event
        if isinstance(event, TurnItemSeen) and event.task_id == task_id:
            summary = event.summary
            if event.method == "item/completed" and event.item_type == "mcpToolCall":
                found.append((str(summary["tool"]), str(summary["status"])))
    return found


async def test_commits_become_a_branch_and_a_pull_request(new_world: MakeWorld, agent: str) -> None:
    """Commit, publish twice, open a pull request twice, comment: one branch, one pull request, one reply."""
    async with running(new_world(agent, TURNKEEPER_BRANCH_PATTERN="turnkeeper/{task}")) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        before = world.sim.state.git.branches(repo.id)
        steps = [
            {"do": "exec", "cmd": COMMIT},
            PUBLISH,
            PUBLISH,
            {"do": "comment", "body": "published"},
        ]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        branch = f"turnkeeper/{task.task_id}"
        branches = world.sim.state.git.branches(repo.id)
        assert set(branches) == {*before, branch}
        assert branches["main"] == before["main"]
        (commit,) = world.sim.state.git.commits(repo.id, branches[branch], exclude=before["main"])
        bot = (BOT, f"{BOT}@noreply.127.0.0.1")
        assert (commit.author[:2], commit.committer[:2]) == (bot, bot)
        assert commit.parents == (before["main"],)
        assert commit.message == "Round up\n\nCo-authored-by: alice <alice@noreply.127.0.0.1>\n"
        assert len(world.finals(repo, number, task.task_id)) == 1
        published = ("publish_branch", "completed")
        assert (await calls(world, task.task_id))[:2] == [published, published]

        pulls = [opening(branch), opening(branch), {"do": "comment", "body": "opened"}]
        head = (await world.everything())[-1].position
        world.mention(repo, number, directive("steps", pulls))
        again = await world.received(after=head)
        assert (await world.reaches(again.task_id)).to_state == "succeeded"
        (pull,) = [issue for issue in world.sim.state.issues_of(repo) if issue.pull is not None]
        assert pull.pull is not None
        assert (pull.pull.head_branch, pull.pull.base_branch) == (branch, "main")
        assert pull.pull.head_sha == branches[branch]
        said = [status for name, status in await calls(world, again.task_id) if name == "pull_request_write"]
        assert said == ["completed", "failed"]
        assert len(world.finals(repo, number, again.task_id)) == 1

        events = [each.event for each in await world.everything()]
        intents = [e for e in events if isinstance(e, EffectIntended) and e.operation == "branch.publish"]
        results = [e for e in events if isinstance(e, EffectConcluded) and e.operation == "branch.publish"]
        assert [(e.target, e.executor) for e in intents] == [(f"alice/shop:refs/heads/{branch}", "bridge")]
        assert [(e.status, e.outside_id) for e in results] == [("succeeded", branches[branch])]
        assert intents[0].fence is not None
        assert world.sim.unknown_calls == []


async def test_what_cannot_be_published_is_told_and_the_task_goes_on(new_world: MakeWorld) -> None:
    """Nothing committed, a protected branch: tool errors with their reason, and the reply still comes."""
    async with running(new_world(TURNKEEPER_BRANCH_PATTERN="bot-{task}")) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        wait = "while [ ! -e .go ]; do sleep 0.1; done; rm .go"
        steps = [
            PUBLISH,
            {"do": "exec", "cmd": wait},
            {"do": "exec", "cmd": COMMIT},
            PUBLISH,
            {"do": "comment", "body": "could not publish"},
        ]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        await world.seen(TurnItemSeen, task.task_id, method="item/started", item_type="commandExecution")
        repo.protected[f"bot-{task.task_id}"] = world.sim.state.clock()
        (world.root / "state" / "workspaces" / "default" / "alice" / "shop" / ".go").touch()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        refused = ("publish_branch", "failed")
        assert (await calls(world, task.task_id))[:2] == [refused, refused]
        assert set(world.sim.state.git.branches(repo.id)) == {"main"}
        results = [
            each.event
            for each in await world.everything()
            if isinstance(each.event, EffectConcluded) and each.event.operation == "branch.publish"
        ]
        assert [(each.status, each.error_code) for each in results] == [("failed", "branch_protected")]
        assert len(world.finals(repo, number, task.task_id)) == 1
