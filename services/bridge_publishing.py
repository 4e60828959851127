"""The agent's own way out for commits: the tool ``publish_branch``, and the twin of a pull request (The MCP bridge).

The tool has no arguments: which commits is decided by the workspace's head, which branch by the task. Preparing reads
only. A push has its intent before it and its result after it, like every write; where the branch stands already at
the very commit nothing is written, and so nothing is intended: publishing again is harmless, also in a later turn.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence

from domain.faults import Conflict, Fault
from domain.publications import PublishOrder
from domain.tool_dialects import unwrap, whole_number
from domain.tools import ToolResult, ToolSchema, tool_name
from services.bridge_effects import Effect, Write, carry_out
from services.bridge_ports import (
    ActiveTurn,
    BridgeRun,
    EffectLedger,
    Publication,
    Publishing,
    ToolBackend,
)
from services.bridge_text import body_hash

PUBLISH = "publish_branch"
PUBLISH_BRANCH: ToolSchema = {
    "name": PUBLISH,
    "description": (
        "Publish what you have committed: the commits of your workspace's HEAD that Gitea does not have are pushed"
        " to this task's own branch, under the bot's name with the requester as co-author. Commit first (git commit);"
        " uncommitted files stay in the workspace. You can call it again after further commits; published commits "
        "must not be amended or rebased, since nothing is ever forced. The answer names the branch: open a pull "
        "request from it with the pull request tool."
    ),
    "inputSchema": {"type": "object", "properties": {}},
}
OPENING = frozenset({"create_pull_request", "pull_request_write.create"})
_LISTING = ("list_repo_pull_requests", "list_pull_requests")
_TWIN_PAGES = 5
_TWIN = "pull request already exists"


class BranchPublishing:
    """``publish_branch`` of one run; one at a time."""

    def __init__(self, run: BridgeRun, publishing: Publishing, ledger: EffectLedger) -> None:
        self._run = run
        self._publishing = publishing
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._calls = 0

    async def publish(self, turn: ActiveTurn) -> ToolResult:
        """Publish, and tell the agent where. Faults pass on: their messages say what to do."""
        self._calls += 1
        if self._calls > self._publishing.calls_per_run:
            raise Conflict(
                f"A run may publish {self._publishing.calls_per_run} times; what is published stands.",
                code="too_many_calls",
            )
        async with self._one_at_a_time:
            order = PublishOrder(
                branch=self._publishing.branch,
                committer=self._publishing.committer,
                co_author=await self._publishing.requester(),
                max_bytes=self._publishing.max_bytes,
            )
            async with self._publishing.publisher.publication(order) as ready:
                return await self._push(ready, order, turn)

    async def _push(self, ready: Publication, order: PublishOrder, turn: ActiveTurn) -> ToolResult:
        if ready.present == ready.head:
            return _published(ready, order, "these commits were published already: nothing was pushed")

        async def send() -> Effect:
            await ready.push()
            return Effect(status="succeeded", outside_id=ready.head)

        scope = self._run.scope
        effect = await carry_out(
            Write(
                operation="branch.publish",
                tool=PUBLISH,
                target=f"{scope.owner}/{scope.repo}:refs/heads/{order.branch}",
                key=f"{order.branch}@{ready.head}",
                body_hash=body_hash(ready.head),
                turn_id=turn.turn_id,
                send=send,
            ),
            self._ledger,
        )
        if effect.status == "succeeded":
            return _published(ready, order)
        if effect.status == "unknown":
            text = (
                f"outcome_unknown: no answer came ({effect.code}): the branch may or may not stand there. Call"
                f" {PUBLISH} again, which looks first"
            )
        else:
            text = f"{effect.code}: {effect.text}"
        return ToolResult(texts=(text,), is_error=True)


def _published(ready: Publication, order: PublishOrder, *notes: str) -> ToolResult:
    answer = {
        "published": True,
        "branch": order.branch,
        "head": ready.head,
        "commits": ready.commits,
        "defaultBranch": ready.default_branch,
        "uncommittedFiles": ready.uncommitted,
    }
    told = list(notes)
    if ready.uncommitted:
        told.append("what is not committed was not published and stays in the workspace")
    return ToolResult(texts=(json.dumps(answer), *told))


def is_twin(what: str, effect: Effect) -> bool:
    """Whether Gitea refused to open a pull request because one is open for the same branches."""
    return what in OPENING and effect.status == "failed" and _TWIN in effect.text


async def twin(
    arguments: Mapping[str, object], tools: Sequence[ToolSchema], backend: ToolBackend, timeout_s: float
) -> int | None:
    """The number of the open pull request between the same branches; Gitea's refusal holds only internal ids."""
    listing = next((tool_name(tool) for tool in tools if tool_name(tool) in _LISTING), None)
    if listing is None:
        return None
    head = str(arguments.get("head", "")).rpartition(":")[2]
    for page in range(1, _TWIN_PAGES + 1):
        asked = {
            "owner": arguments.get("owner"),
            "repo": arguments.get("repo"),
            "state": "open",
            "page": page,
        }
        try:
            answer = await backend.call(listing, asked, timeout_s)
        except Fault:
            return None
        found = unwrap(answer.text) if answer.outcome == "done" else None
        if not isinstance(found, list) or not found:
            return None
        for pull in found:
            if isinstance(pull, dict) and (_ref(pull, "head"), _ref(pull, "base")) == (
                head,
                arguments.get("base"),
            ):
                return whole_number(pull.get("number"))
    return None


def _ref(pull: Mapping[str, object], side: str) -> object:
    value = pull.get(side)
    return value.get("ref") if isinstance(value, Mapping) else value
