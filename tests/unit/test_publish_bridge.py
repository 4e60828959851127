"""``publish_branch`` at the bridge: when it is offered, what is recorded, what the agent is told."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from domain.bridge_policy import Policy
from domain.faults import Conflict, Fault, Forbidden, LeaseStale, Unavailable
from domain.publications import PublishOrder, Signature, noreply
from domain.tools import ToolAnswer, ToolCall, ToolResult, tool_name
from services.bridge import Bridge
from services.bridge_ports import Publishing
from tests.unit.bridge_stage import VERSIONS, Stage

BRANCH = "turnkeeper/t1"
HEAD = "c" * 40
BOT = noreply("codex-bot", "git.example.org")
TWIN = (
    "create acme/store/pull_request err: pull request already exists for these targets [id: 3, issue_id: 4, "
    "head_repo_id: 1, base_repo_id: 1, head_branch: turnkeeper/t1, base_branch: main]"
)


@dataclasses.dataclass(kw_only=True)
class Ready:
    """A publication of one commit; ``fault`` is what its push raises."""

    present: str | None
    fault: Fault | None
    head: str = HEAD
    commits: int = 1
    uncommitted: int = 0
    default_branch: str = "main"
    pushes: int = 0

    async def push(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.pushes += 1
        self.present = self.head


class Workspace:
    """A publisher without git: what it is asked for, and the publication that it gives."""

    def __init__(self) -> None:
        self.ready = Ready(present=None, fault=None)
        self.orders: list[PublishOrder] = []
        self.fault: Fault | None = None
        self.inside = 0
        self.most = 0

    @contextlib.asynccontextmanager
    async def publication(self, order: PublishOrder) -> AsyncIterator[Ready]:
        self.orders.append(order)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(0)
            if self.fault is not None:
                raise self.fault
            yield self.ready
        finally:
            self.inside -= 1


class Publishings(Stage):
    """A stage whose bridge can publish."""

    def __init__(self, dialect: str = "2026-03", *, policy: Policy = "repository") -> None:
        self.workspace = Workspace()
        super().__init__(dialect, policy=policy)

    def fresh_bridge(self) -> Bridge:
        async def requester() -> Signature | None:
            return noreply("alice", "git.example.org")

        return Bridge(
            run=self.run,
            backend=self.backend,
            ledger=self.ledger,
            comments=self.rest,
            active_turn=lambda: self.turn,
            settings=self.settings,
            publishing=Publishing(
                publisher=self.workspace, branch=BRANCH, committer=BOT, requester=requester, calls_per_run=5
            ),
        )

    async def publish(self) -> ToolResult:
        return await self.call("publish_branch")


def told(result: ToolResult) -> dict[str, Any]:
    """The JSON that the agent gets for a publication."""
    read: dict[str, Any] = json.loads(result.texts[0])
    return read


async def test_a_push_has_its_intent_and_its_result() -> None:
    """The intent names branch and commit, the result the remote head; the agent learns where to go on from."""
    stage = Publishings()
    result = await stage.publish()
    assert not result.is_error
    assert told(result) == {
        "published": True,
        "branch": BRANCH,
        "head": HEAD,
        "commits": 1,
        "defaultBranch": "main",
        "uncommittedFiles": 0,
    }
    (intent,) = stage.ledger.intents.values()
    assert (intent["operation"], intent["target"], intent["key"], intent["turn_id"]) == (
        "branch.publish",
        f"acme/widget:refs/heads/{BRANCH}",
        f"{BRANCH}@{HEAD}",
        "u1",
    )
    ((_, concluded),) = stage.ledger.results
    assert (concluded["status"], concluded["outside_id"]) == ("succeeded", HEAD)
    assert stage.workspace.orders[0].co_author == noreply("alice", "git.example.org")
    assert stage.backend.calls == []


async def test_the_same_commits_again_are_no_write() -> None:
    """A second call succeeds without an intent and without a push."""
    stage = Publishings()
    await stage.publish()
    result = await stage.publish()
    assert told(result)["head"] == HEAD
    assert "nothing was pushed" in result.texts[1]
    assert (stage.workspace.ready.pushes, len(stage.ledger.intents)) == (1, 1)


async def test_uncommitted_files_are_told() -> None:
    """The agent learns that what it did not commit stays behind."""
    stage = Publishings()
    stage.workspace.ready.uncommitted = 3
    result = await stage.publish()
    assert told(result)["uncommittedFiles"] == 3
    assert "stays in the workspace" in result.texts[-1]


@pytest.mark.parametrize(
    ("fault", "status", "word"),
    [
        (Conflict("moved", code="branch_moved"), "failed", "branch_moved: moved"),
        (Forbidden("no", code="branch_protected"), "failed", "branch_protected: no"),
        (Fault("again", code="push_failed"), "failed", "push_failed: again"),
        (Unavailable("gone", code="git_unreachable"), "unknown", "outcome_unknown"),
    ],
)
async def test_a_push_that_fails_is_a_tool_error(fault: Fault, status: str, word: str) -> None:
    """What became of the push stands in its result, and the agent is told what to do."""
    stage = Publishings()
    stage.workspace.ready.fault = fault
    result = await stage.publish()
    assert result.is_error
    assert word in result.texts[0]
    assert stage.ledger.statuses == [status]


async def test_what_cannot_be_prepared_is_no_write() -> None:
    """Nothing to publish is a tool error with its reason and leaves no intent."""
    stage = Publishings()
    stage.workspace.fault = Conflict("There is nothing to publish", code="nothing_to_publish")
    result = await stage.publish()
    assert result.is_error
    assert result.texts[0].startswith("nothing_to_publish: ")
    assert stage.ledger.intents == {}


async def test_a_lost_lease_pushes_nothing() -> None:
    """The fence is checked by the intent: without the lease nothing leaves."""
    stage = Publishings()
    stage.ledger.intend_fault = LeaseStale("gone")
    result = await stage.publish()
    assert result.is_error
    assert "lease_lost" in result.texts[0]
    assert stage.workspace.ready.pushes == 0


@pytest.mark.parametrize(
    ("policy", "offered"), [("repository", True), ("open", True), ("comment-only", False)]
)
async def test_the_policy_decides_whether_it_is_offered(policy: Policy, offered: bool) -> None:  # noqa: FBT001
    """It is listed where the agent may write to the repository, and refused elsewhere."""
    stage = Publishings(policy=policy)
    assert ("publish_branch" in map(tool_name, await stage.bridge.tools())) is offered
    result = await stage.publish()
    assert result.is_error is not offered
    assert stage.workspace.ready.pushes == int(offered)
    assert ("publish_branch" in map(tool_name, await Stage(policy=policy).bridge.tools())) is False


async def test_publications_go_one_after_the_other_and_have_an_end() -> None:
    """Two at once are one push; a run may not publish without end."""
    stage = Publishings()
    results = await asyncio.gather(*(stage.publish() for _ in range(5)))
    assert not any(result.is_error for result in results)
    assert (stage.workspace.most, stage.workspace.ready.pushes) == (1, 1)
    assert "too_many_calls" in (await stage.publish()).texts[0]


async def test_nothing_is_published_while_a_question_waits() -> None:
    """After a question the turn is to end: a publication in it is refused."""
    stage = Publishings()
    await stage.call("ask_user", question="which one?")
    assert "waiting_for_user" in (await stage.publish()).texts[0]
    assert stage.workspace.orders == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pull_request_that_is_open_already_is_named(version: str) -> None:
    """Gitea's refusal holds internal ids only; the agent is told the number of the one that stands."""
    stage = Publishings(version)
    name = "pull_request_write" if version == "2026-03" else "create_pull_request"
    method = {"method": "create"} if version == "2026-03" else {}
    others = [{"number": 8, "head": {"ref": "other"}, "base": {"ref": "main"}}]
    here = [{"number": 9, "head": {"ref": BRANCH}, "base": {"ref": "main"}}]

    def page(pulls: list[dict[str, Any]]) -> ToolAnswer:
        return ToolAnswer(
            outcome="done", text=json.dumps({"Result": pulls} if stage.backend.wrapped else pulls)
        )

    stage.backend.next_answers = [
        ToolAnswer(outcome="refused", code="gitea_refused", message=TWIN),
        page(others),
        page(here),
    ]
    result = await stage.bridge.call(
        ToolCall(
            name=name,
            arguments={
                "owner": "acme", "repo": "widget", "title": "t", "body": "b",
                "head": f"acme:{BRANCH}", "base": "main", **method,
            },
        )
    )  # fmt: skip
    assert result.is_error
    assert "pull_request_exists: pull request #9 is open already" in result.texts[0]
    assert stage.ledger.statuses == ["failed"]
    assert len(stage.backend.calls) == 3
